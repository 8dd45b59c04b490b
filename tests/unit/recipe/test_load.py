"""Recipes and manifests: every error in one pass, with file, line, key and the nearest known one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from llamabuild.core.errors import RecipeError
from llamabuild.recipe.features import load_features
from llamabuild.recipe.find import find_recipe
from llamabuild.recipe.load import list_recipes, list_series, load_recipe, load_series

if TYPE_CHECKING:
    from llamabuild.core.context import Context

REPOSITORY = Path(__file__).resolve().parents[3]

GOOD = """\
schema = 1
name = "r"
summary = "test"

[source]
repository = "https://example.org/llama.cpp"
ref = "v1"
commit = "7fe450e19305b828c199d602c23a8337aaa1f03b"
build-number = 5

[targets.cpu]
backends = ["cpu"]
"""


def write(context: Context, text: str, *, name: str = "r", folder: str = "recipes") -> Path:
    path = context.cwd / folder / f"{name}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def errors(context: Context, text: str) -> dict[int, str]:
    """What is said about a recipe, by line."""
    path = write(context, text)
    with pytest.raises(RecipeError) as caught:
        load_recipe("r", context)
    assert caught.value.exit_code == 2
    assert caught.value.hint
    found = {}
    for line in caught.value.details or (caught.value.message,):
        where, _, said = line.removeprefix(f"{path}:").partition(": ")
        found[int(where)] = said
    return found


def test_the_shipped_recipes_and_series_are_valid(context: Context) -> None:
    listed = {each.name: each for each in list_recipes(context)}
    assert set(listed) >= {
        "dflash2-2026-09", "multigpu-20261006", "baseline-df03399", "dflash2-tensor", "layer-split-hip"
    }  # fmt: skip
    assert [each.summary for each in (*list_recipes(context), *list_series(context)) if not each.valid] == []
    assert all(load_recipe(name, context).name == name for name in listed)


def test_a_good_recipe_is_taken_as_written(context: Context) -> None:
    write(context, GOOD)
    recipe = load_recipe("r", context)
    assert recipe.source.build_number == 5
    assert recipe.targets["cpu"].backends == ("cpu",)
    assert recipe.default_target == "auto"


def test_every_error_is_told_at_once_with_its_line(context: Context) -> None:
    text = (
        GOOD.replace("summary =", "sumary =")
        .replace("ref =", "reff =")
        .replace("build-number = 5", 'build-number = "5"')
    )
    text += 'arhc = "86"\n\n[targets.both]\nbackends = ["cuda", "hip"]\narch = "86;89"\n\n'
    text += '[targets.odd]\nbackends = ["rocm"]\n'
    found = errors(context, text)
    assert 'unknown key (did you mean "summary"?)' in found[3]
    assert 'source.reff: unknown key (did you mean "ref"?)' in found[7]
    assert "source.build-number" in found[9]
    assert 'targets.cpu.arhc: unknown key (did you mean "arch"?)' in found[13]
    assert "CUDA and HIP in one target" in found[16]
    assert "86;89" in found[17]
    assert "rocm" in found[20]
    # The missing summary stands at the file's beginning: it has no line of its own.
    assert found[1] == "summary: missing; the key is required"


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        ("schema = 1", "schema = 2", 1, "schema: 2 is not one of 1"),
        ('name = "r"', 'name = "../r"', 2, "is not a name"),
        ('ref = "v1"', 'ref = "v1"\npr = 5', 8, "one or the other"),
        ('ref = "v1"', "pr = -5", 7, "source.pr"),
        ("7fe450e19305b828c199d602c23a8337aaa1f03b", "7FE450", 8, "is not a commit id"),
        ("build-number = 5", 'tree = "fd570ef54b"', 9, "is not a full id"),
        ("build-number = 5", "date = 2026-09-23T00:00:00", 9, "no time zone"),
        ("build-number = 5", 'features = ["dflash3"]', 9, 'unknown feature \'dflash3\' (did you mean "dflash'),
        ('backends = ["cpu"]', "backends = []", 12, "the least is cpu"),
        ('backends = ["cpu"]', 'backends = ["cpu", "cpu"]', 12, "twice"),
        ('backends = ["cpu"]', 'backends = ["cpu"]\narch = "86"', 13, "no meaning without the cuda or hip backend"),
        ('backends = ["cpu"]', 'backends = ["cuda"]\narch = "gfx1201"', 13, "'gfx1201' is not a CUDA arch"),
        ('backends = ["cpu"]', 'backends = ["cuda"]\narch = "auto"', 13, "auto is for the command line alone"),
        ('backends = ["cpu"]', 'backends = ["hip"]\narch = "gfx110X"', 13, "gfx1100, gfx1101, gfx1102 or gfx1103"),
        ('backends = ["cpu"]', 'backends = ["hip"]\narch = "gfx90a:xnack-"', 13, "write gfx90a: code without a mode"),
        (
            'backends = ["cpu"]',
            'backends = ["cuda"]\nsingle-arch = false\narch = "86; 89"',
            14,
            "'86; 89' is a list with more than commas between the archs; write 86,89",
        ),
        ('backends = ["cpu"]', 'backends = ["hip"]\narch = "gfx1201,gfx1100"', 13, "exactly one arch"),
        ('backends = ["cpu"]', 'backends = ["cpu"]\nnccl = true', 13, "needs the cuda backend"),
        (
            'backends = ["cpu"]',
            'backends = ["cpu"]\ncmake = { GGML_CUDA = "ON" }',
            13,
            "targets.cpu.cmake.GGML_CUDA: not for cmake: the target's key backends decides it",
        ),
        ('backends = ["cpu"]', 'backends = ["cpu"]\n[targets.cpu.cmake]\n"GGML_NATIVE:BOOL" = "ON"', 14, "GGML_AVX512"),
        ('backends = ["cpu"]', 'backends = ["cpu"]\ncmake = { GPU_TARGETS = "gfx1100" }', 13, "the target's key arch"),
        ("[source]", 'default-target = "gpu"\n[source]', 5, "names no target of this recipe"),
        ("[targets.cpu]", '[[series]]\nname = "multigpuu"\n[targets.cpu]', 12, '(did you mean "multigpu"?)'),
        (
            "[targets.cpu]",
            '[[series]]\nname = "multigpu"\ngroups = ["async-prompt-cach"]\n[targets.cpu]',
            13,
            'no group \'async-prompt-cach\' (did you mean "async-prompt-cache"?)',
        ),
        (
            "[targets.cpu]",
            '[[series]]\nname = "multigpu"\nwithout = ["48"]\n[targets.cpu]',
            13,
            "has no patch '48'",
        ),
        (
            "[targets.cpu]",
            '[[source.mirror]]\nkind = "npm"\npackage = "p"\nversion = "1"\nmember = "../x"\n[targets.cpu]',
            15,
            "is not a path inside the package",
        ),
    ],
)  # fmt: skip
def test_each_mistake_has_its_sentence_and_line(context: Context, old: str, new: str, line: int, said: str) -> None:
    assert said in errors(context, GOOD.replace(old, new))[line]


@pytest.mark.parametrize(
    ("text", "line"),
    [('schema = 1\nname = "r\n', 2), ("schema = 1\nschema = 1\n", 2), ("schema = 1\nname =", 2), ("= 5", 1)],
)
def test_malformed_toml_is_told_with_its_line(context: Context, text: str, line: int) -> None:
    path = write(context, text)
    with pytest.raises(RecipeError, match=re.escape(f"{path}:{line}: not valid TOML")):
        load_recipe("r", context)


def test_text_that_is_not_utf8_is_told(context: Context) -> None:
    write(context, "").write_bytes(b'name = "\xff"\n')
    with pytest.raises(RecipeError, match="not UTF-8"):
        load_recipe("r", context)


def test_an_unknown_recipe_suggests_the_nearest(context: Context) -> None:
    with pytest.raises(RecipeError, match=r"did you mean \"dflash2-2026-09\"") as caught:
        load_recipe("dflash2-2026", context)
    assert caught.value.exit_code == 2
    with pytest.raises(RecipeError, match="There is no recipe file"):
        load_recipe("./nowhere.toml", context)


def test_recipes_are_looked_up_here_then_where_the_environment_says_then_in_the_package(context: Context) -> None:
    env = dict(context.env)
    context = type(context)(home=context.home, console=context.console, env=env, cwd=context.cwd)
    assert find_recipe("dflash2-2026-09", context) == REPOSITORY / "recipes" / "dflash2-2026-09.toml"
    other = write(context, GOOD, name="dflash2-2026-09", folder="other")
    env["LLAMABUILD_RECIPES"] = f"{context.cwd / 'none'}:{other.parent}"
    assert find_recipe("dflash2-2026-09", context) == other
    here = write(context, GOOD, name="dflash2-2026-09")
    assert find_recipe("dflash2-2026-09", context) == here
    assert find_recipe("other/dflash2-2026-09.toml", context) == other


def test_a_recipe_file_finds_the_series_beside_it(context: Context) -> None:
    elsewhere = write(context, GOOD + '\n[[series]]\nname = "own"\n', name="mine", folder="far/recipes")
    manifest = 'schema = 1\nname = "own"\nsummary = "x"\n[[part]]\nkind = "files"\nfiles = ["a.diff"]\n'
    write(context, manifest, name="own", folder="far/patches")
    with pytest.raises(RecipeError, match=r"there is no .*a\.diff"):
        load_recipe(str(elsewhere), context)
    (context.cwd / "far" / "patches" / "own").mkdir()
    (context.cwd / "far" / "patches" / "own" / "a.diff").write_text("diff")
    assert load_recipe(str(elsewhere), context).series[0].name == "own"


def test_the_manifest_of_the_multigpu_fork_has_its_47_commits_and_seven_groups(context: Context) -> None:
    series, _ = load_series("multigpu", context)
    (part,) = series.part
    sizes = [sum(note.group == group for note in part.commit) for group in series.groups]
    assert sizes == [2, 2, 4, 19, 9, 7, 4]
    assert (part.commit[0].id, part.commit[-1].id, part.tip) == ("b22bc5b68", "e4054f726", "e4054f726")
    assert part.base == "df03399b885831b2a1603b3abb0d8c156808e363"
    assert part.together == ((part.commit[36].id, part.commit[37].id),)
    assert "WIP (not compiled)" in part.commit[36].subject
    assert set(series.flags) == {
        "--prefill-max-partial", "--prefill-long-threshold", "--prefill-max-long", "--seq-compact"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[[part]]\nkind = "rang"\n', "kind is not one of"),
        ("[[part]]\n", "part[1].kind: missing"),
        ('[[part]]\nkind = "files"\nfiles = ["../x"]\n', "is not a path inside"),
        ('[[part]]\nkind = "files"\nfiles = []\ngroup = "g"\n', "is not one of this series' groups"),
        ('[[part]]\nkind = "files"\nfile = []\n', 'unknown key (did you mean "files"?)'),
        ('[[part]]\nkind = "archive"\nurl = "x"\nsha256 = "12"\n', "is not a SHA-256"),
    ],
)
def test_a_manifest_is_told_its_mistakes_too(context: Context, text: str, said: str) -> None:
    write(context, f'schema = 1\nname = "s"\nsummary = "x"\n{text}', name="s", folder="patches")
    with pytest.raises(RecipeError) as caught:
        load_series("s", context)
    assert any(said in line for line in (caught.value.message, *caught.value.details))


def test_features_of_a_folder_add_to_the_shipped_ones(context: Context) -> None:
    write(
        context, 'schema = 1\n[feature.mine]\nsummary = "m"\n[[feature.mine.help]]\ntext = "--mine"\n', name="features"
    )
    table = load_features(context)
    assert table["mine"].help[0].program == "llama-server"
    assert table["dflash2"].symbol[0].library == "libllama"
    write(context, 'schema = 1\n[feature.mine]\nsumary = "m"\n', name="features")
    with pytest.raises(RecipeError, match="2 errors"):
        load_features(context)
