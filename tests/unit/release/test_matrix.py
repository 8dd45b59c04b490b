import json

import pytest

from llamabuild.cli import main
from llamabuild.core.errors import RecipeError, UsageError
from llamabuild.recipe.load import load_recipe
from llamabuild.recipe.model import Recipe
from llamabuild.release.flavours import Flavour, read_flavours
from llamabuild.release.matrix import plan_jobs, target_of

RECIPE = Recipe.model_validate(
    {
        "schema": 1,
        "name": "r",
        "summary": "s",
        "source": {"repository": "https://example.org/x", "commit": "7" * 40},
        "targets": {
            "cpu": {"backends": ("cpu",)},
            "cuda": {"backends": ("cuda",), "arch": "86"},
            "cuda-many": {"backends": ("cuda",), "single-arch": False},
            "cuda-vulkan": {"backends": ("cuda", "vulkan"), "arch": "86"},
            "hip": {"backends": ("hip",)},
        },
    }
)


def test_a_job_for_each_target_where_no_flavour_is_named():
    recipe = RECIPE.model_copy(update={"targets": {name: RECIPE.targets[name] for name in ("cpu", "cuda")}})
    assert [job.flavour for job in plan_jobs(recipe, ())] == ["cpu", "cuda-86"]


def test_what_a_job_needs():
    cpu, dual = plan_jobs(RECIPE, [Flavour("cpu"), Flavour("cuda-vulkan")])
    assert (cpu.runs_on, cpu.toolkit, cpu.packages) == ("ubuntu-22.04", "", ())
    assert dual.runs_on == "ubuntu-26.04"
    assert dual.toolkit == "wheels:13.0"
    assert "glslc" in dual.packages
    # Measured: CPU 17 MB, one plugin 45 MB and the other 43 MB, CUDA's runtime 0.5 GB.
    assert (cpu.size_estimate_mb, dual.size_estimate_mb) == (17, 605)
    assert dual.timeout_minutes > cpu.timeout_minutes


def test_a_flavour_has_the_last_word():
    given = Flavour("cuda", "89", runs_on="big", toolkit="system", packages=())
    (job,) = plan_jobs(RECIPE, [given])
    assert (job.arch, job.runs_on, job.toolkit, job.packages) == ("89", "big", "system", ())


def test_more_archs_take_more_time_and_room():
    one, two = plan_jobs(RECIPE, [Flavour("cuda-many", "86"), Flavour("cuda-many", "86,89")])
    assert two.size_estimate_mb - one.size_estimate_mb == 45
    assert two.timeout_minutes > one.timeout_minutes


def test_cache_keys_are_apart_where_a_cache_is_of_no_use_and_have_no_comma():
    flavours = [Flavour("cpu"), Flavour("cpu", runs_on="x"), Flavour("cuda"), Flavour("cuda", toolkit="system")]
    flavours += [Flavour("cuda-many", "86,89"), Flavour("hip", "gfx1100"), Flavour("hip", "gfx1201")]
    keys = [job.cache_key for job in plan_jobs(RECIPE, flavours)]
    assert len(set(keys)) == len(keys)
    assert not any("," in key for key in keys)
    changed = RECIPE.model_copy(update={"summary": "another"})
    (before,), (after,) = plan_jobs(RECIPE, flavours[:1]), plan_jobs(changed, flavours[:1])
    assert before.cache_key != after.cache_key
    assert before.cache_prefix == after.cache_prefix
    assert before.cache_key.startswith(before.cache_prefix)


@pytest.mark.parametrize(
    ("flavour", "said"),
    [
        (Flavour("cdu"), "Did you mean"),
        (Flavour("hip"), "needs an arch"),
        (Flavour("hip", "auto"), "needs an arch"),
        (Flavour("hip", "gfx110X"), "gfx1100"),
        (Flavour("cuda", "86,89"), "exactly one arch"),
        (Flavour("cpu", "86"), "has no arch"),
    ],
)
def test_what_a_recipe_cannot_give(flavour, said):
    with pytest.raises(UsageError) as caught:
        target_of(RECIPE, flavour)
    assert said in f"{caught.value.message} {caught.value.hint}"


def test_flavours_from_words_and_files(tmp_path):
    (tmp_path / "f.toml").write_text(
        'schema = 1\n[[flavour]]\ntarget = "hip"\narch = "gfx1100"\nruns-on = "x"\npackages = ["hipcc"]\n'
    )
    assert read_flavours(["cuda:120a", "f.toml", "cpu"], tmp_path) == (
        Flavour("cuda", "120a"),
        Flavour("hip", "gfx1100", runs_on="x", packages=("hipcc",)),
        Flavour("cpu"),
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("schema = 2", "f.toml:1: schema: schema 2 is there, and this program reads schema 1"),
        ("x = 1", "no schema number"),
        ("schema = 1\n", "'flavour' is a required property"),
        (
            'schema = 1\n[[flavour]]\ntarget = "cpu"\nrun-on = "x"\n',
            "an unknown key (did you mean 'runs-on'?)",
        ),
        ('schema = 1\n[[flavour]]\narch = "86"\n', "'target' is a required property"),
        ('schema = 1\n[[flavour]]\ntarget = "cpu"\npackages = ["x; rm -rf /"]\n', "does not match"),
        ("schema = \n", "not valid TOML"),
    ],
)
def test_a_file_that_is_no_list_of_flavours(tmp_path, text, said):
    (tmp_path / "f.toml").write_text(text)
    with pytest.raises((UsageError, RecipeError)) as caught:
        read_flavours(["f.toml"], tmp_path)
    assert said in caught.value.message


@pytest.mark.parametrize("words", [["cpu", "cpu"], [":86"], ["none.toml"]])
def test_words_that_name_no_flavour(tmp_path, words):
    with pytest.raises((UsageError, RecipeError)):
        read_flavours(words, tmp_path)


def test_the_shipped_flavours_fit_the_shipped_recipe(context):
    from tests.conftest import REPOSITORY

    jobs = plan_jobs(load_recipe("dflash2-2026-09", context), read_flavours(["ci/flavours.toml"], REPOSITORY))
    assert "cpu" in {job.flavour for job in jobs}


def test_github_takes_one_line(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("LLAMABUILD_HOME", str(tmp_path))
    assert main(["matrix", "--recipe", "dflash2-2026-09", "--flavour", "cpu", "--format", "github"]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    (entry,) = json.loads(out)["include"]
    assert {
        "recipe",
        "flavour",
        "target",
        "arch",
        "runs-on",
        "toolkit",
        "cache-key",
        "size-estimate-mb",
    } <= entry.keys()
    assert main(["matrix", "--recipe", "dflash2-2026-09", "--flavour", "cpu"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["jobs"]) == (1, [entry])
