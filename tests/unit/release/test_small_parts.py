"""Drivers' floors, Ninja's log, baselines, changes, packages, notes' details."""

import tomllib

import pytest

from llamabuild.core.errors import UsageError
from llamabuild.recipe.model import Recipe
from llamabuild.release.baseline import baseline_recipe, recipe_text, to_toml
from llamabuild.release.drivers import driver_floor
from llamabuild.release.licenses import host_facts, installed_packages, spdx_of
from llamabuild.release.ninja import read_ninja_log, wall_seconds
from llamabuild.release.page.charts import Node, layers
from llamabuild.release.page.html import duration, size, tag, text


@pytest.mark.parametrize(
    ("sass", "ptx", "toolkit", "floor"),
    [
        # NVIDIA's tables: SASS on the major's floor, PTX on the toolkit's own driver, Blackwell from 570 on.
        (["86"], [], "13.0.88", "580.65.06"),
        (["86"], [], "12.9", "525.60.13"),
        (["86"], ["86"], "12.9", "525.60.13"),
        ([], ["80"], "12.9", "575.51.03"),
        (["86"], ["90"], "12.9", "525.60.13, 575.51.03 for cards that are served by PTX"),
        (["120a"], [], "12.8", "570"),
        (["86", "120a"], [], "12.8", "525.60.13, 570 for sm_100 and later"),
        (["120a"], [], "13.0", "580.65.06"),
        ([], ["80"], "12.7", "unknown for CUDA 12.7"),
        (["86"], [], "", "unknown: the toolkit's version is not recorded"),
        ([], [], "13.0", ""),
    ],
)
def test_driver_floor(sass, ptx, toolkit, floor):
    assert driver_floor(sass=sass, ptx=ptx, toolkit=toolkit) == floor


def test_ninja_log(tmp_path):
    log = tmp_path / ".ninja_log"
    log.write_text(
        "# ninja log v7\n"
        "5\t225\t1\ta/CMakeFiles/x.o\tabc\n"
        "100\t1100\t1\tlib/a.so\tdef\n100\t1100\t1\tlib/a.so.0\tdef\n"
        "3000\t4000\t1\ta/CMakeFiles/x.o\tabc2\n"
        "cut\n"
    )
    steps = read_ninja_log(log)
    assert [(step.output, step.seconds) for step in steps] == [("lib/a.so", 1.0), ("a/CMakeFiles/x.o", 1.0)]
    assert wall_seconds(steps) == 2.0
    log.write_text("# ninja log v4\n1\t2\t3\tx\ty\n")
    assert read_ninja_log(log) == ()
    assert read_ninja_log(tmp_path / "none") == ()


def _recipe(**source):
    return Recipe.model_validate(
        {
            "schema": 1,
            "name": "r",
            "summary": 'a "quoted" summary\n',
            "source": {
                "repository": "https://example.org",
                "commit": "7fe450e" + "1" * 33,
                "features": ("a", "b"),
                **source,
            },
            "series": ({"name": "s"},),
            "targets": {"cpu": {"backends": ("cpu",), "cmake": {"GGML X": "ON"}}},
        }
    )


def test_a_baseline_is_the_recipe_without_patches():
    baseline = baseline_recipe(_recipe(), series_features={"b"})
    assert (baseline.name, baseline.series, baseline.source.features) == ("baseline-7fe450e", (), ("a",))
    read = Recipe.model_validate(_tuples(tomllib.loads(recipe_text(baseline))))
    assert read == baseline


def test_a_baseline_needs_a_pin():
    with pytest.raises(UsageError, match="pins no commit"):
        baseline_recipe(_recipe(commit=None), series_features=())


def _tuples(value):
    if isinstance(value, dict):
        return {key: _tuples(each) for key, each in value.items()}
    return tuple(_tuples(each) for each in value) if isinstance(value, list) else value


def test_toml_reads_back():
    document = {
        "a": 'x"\\\n\x7f\u00e9',
        "b": [1, 2],
        "c": True,
        "d": {"e f": {"g": []}},
        "h": [{"i": 1}, {"j": {"k": "l"}}],
    }
    assert tomllib.loads(to_toml(document)) == document


def test_packages_of_a_debian(tmp_path):
    (tmp_path / "var/lib/dpkg").mkdir(parents=True)
    (tmp_path / "var/lib/dpkg/status").write_text(
        "Package: a\nStatus: install ok installed\nVersion: 1:2-3\nDescription: x\n y: z\n\n"
        "Package: gone\nStatus: deinstall ok config-files\nVersion: 1\n"
    )
    assert installed_packages(tmp_path) == {"a": "1:2-3"}
    assert installed_packages(tmp_path / "none") == {}
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/os-release").write_text('ID=debian\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n')
    assert host_facts(tmp_path, kernel="6") == {
        "os": "Debian GNU/Linux 12 (bookworm)",
        "os_id": "debian",
        "kernel": "6",
    }


def test_licences_by_the_longest_name():
    assert spdx_of("libgomp1") == "GPL-3.0-or-later WITH GCC-exception-3.1"
    assert spdx_of("libhipblaslt1") == "MIT"
    assert spdx_of("unheard-of") == ""


def test_layers_put_what_is_needed_to_the_right_and_end_on_a_circle():
    nodes = [Node(name, "library") for name in "abcd"]
    columns = layers(nodes, [("a", "b"), ("b", "c"), ("a", "c"), ("c", "b")])
    place = {node.name: index for index, column in enumerate(columns) for node in column}
    assert place["a"] == 0
    assert place["b"] > place["a"]
    assert len(place) == 4
    assert layers([], []) == ()


def test_text_is_escaped_and_units_are_readable():
    assert tag("b", text('<&"'), title='"><x') == '<b title="&quot;&gt;&lt;x">&lt;&amp;&quot;</b>'
    assert [size(count) for count in (0, 999, 1000, 4811127, 123_456_789, 5_000_000_000)] == [
        "0 B", "999 B", "1 kB", "4.81 MB", "123 MB", "5 GB",
    ]  # fmt: skip
    assert [duration(seconds) for seconds in (0.04, 59, 61, 3700)] == ["0.0 s", "59.0 s", "1 min 1 s", "1 h 1 min"]
