"""``make`` as a user runs it, on a small upstream: whole, again, broken, interrupted, two at once, on a full disk."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time

import pytest

from ..bundle.rocm_trees import make_tree, willing_compiler


def published(workshop, out="dist"):
    return sorted(path.name for path in (workshop.folder / out).iterdir())


def nothing_runs_in(folder):
    """Whether no process names the folder any more; the kernel may take a moment to end what was killed."""
    for _ in range(100):
        if subprocess.run(["pgrep", "-f", str(folder)], capture_output=True, check=False).returncode == 1:
            return True
        time.sleep(0.05)
    return False


WHOLE = ["BUILD_INFO.json", "BUILD_INFO.txt", "SHA256SUMS", "llama-small-cpu.tar.gz", "llama-small-cpu.tar.zst"]


def test_the_archive_runs_elsewhere_and_says_what_it_is(workshop, tmp_path):
    done = workshop.make()
    assert done.returncode == 0, done.stderr
    assert published(workshop) == WHOLE
    subprocess.run(["sha256sum", "-c", "--quiet", "SHA256SUMS"], cwd=workshop.folder / "dist", check=True)
    elsewhere = tmp_path / "else where"
    elsewhere.mkdir()
    subprocess.run(["tar", "xf", workshop.folder / "dist" / "llama-small-cpu.tar.gz", "-C", elsewhere], check=True)
    shutil.rmtree(workshop.folder / "home")
    program = elsewhere / "llama-small-cpu" / "bin" / "llama-server"
    ran = subprocess.run([program], env={}, capture_output=True, text=True, check=True)
    assert ran.stdout == "hello, fork\n"
    assert "loaded CPU backend" in ran.stderr
    info = json.loads((elsewhere / "llama-small-cpu" / "BUILD_INFO.json").read_text())
    assert info["upstream_base_commit"] == workshop.pin[0]
    assert [patch["subject"] for patch in info["patches"]] == ["base: greet the fork"]


def test_a_second_make_says_that_nothing_changed_and_touches_nothing(workshop):
    first = workshop.make()
    before = {path: path.stat().st_mtime_ns for path in (workshop.folder / "dist").iterdir()}
    again = workshop.make()
    assert (again.returncode, again.stdout) == (0, first.stdout)
    assert "nothing changed" in again.stderr
    assert before == {path: path.stat().st_mtime_ns for path in (workshop.folder / "dist").iterdir()}


@pytest.mark.parametrize("harm", ["change a byte", "delete"])
def test_a_harmed_archive_is_made_again(workshop, harm):
    workshop.make()
    sums = workshop.sums()
    archive = workshop.folder / "dist" / "llama-small-cpu.tar.zst"
    if harm == "delete":
        archive.unlink()
    else:
        status = archive.stat()
        data = bytearray(archive.read_bytes())
        data[1000] ^= 1
        archive.write_bytes(data)
        os.utime(archive, ns=(status.st_atime_ns, status.st_mtime_ns))
    again = workshop.make()
    assert (again.returncode, workshop.sums()) == (0, sums), again.stderr
    assert "nothing changed" not in again.stderr
    subprocess.run(["sha256sum", "-c", "--quiet", "SHA256SUMS"], cwd=workshop.folder / "dist", check=True)


def test_json_is_one_document_on_standard_output(workshop):
    done = workshop.run("make", "--recipe", "small", "--target", "cpu", "--json")
    told = json.loads(done.stdout)
    assert (told["schema"], told["name"], told["unchanged"]) == (1, "llama-small-cpu", False)
    assert sorted(artifact["path"].rsplit("/", 1)[1] for artifact in told["artifacts"]) == WHOLE


def test_an_updated_library_of_the_system_gives_a_new_archive(workshop, tmp_path):
    library = tmp_path / "vendor" / "libextra.so.1"
    library.parent.mkdir()

    def install(text):
        argv = ["gcc", "-shared", "-x", "c", "-", "-o", library, "-Wl,-soname,libextra.so.1"]
        subprocess.run(argv, input=f'const char *extra(void) {{ return "{text}"; }}', text=True, check=True)

    install("before")
    linked = f"target_link_libraries(ggml-base PRIVATE -Wl,--no-as-needed {library})\nadd_library(ggml-cpu"
    workshop.commit({"CMakeLists.txt": workshop.texts["CMakeLists.txt"].replace("add_library(ggml-cpu", linked)})
    workshop.recipe()
    assert workshop.make().returncode == 0
    assert "nothing changed" in workshop.make().stderr
    install("the other one")
    done = workshop.make()
    assert done.returncode == 0
    archive = workshop.folder / "dist/llama-small-cpu.tar.gz"
    shipped = subprocess.check_output(["tar", "xzOf", archive, "llama-small-cpu/lib/libextra.so.1"])
    assert b"the other one" in shipped


def test_a_new_pin_gives_a_new_archive_from_the_same_folder(workshop):
    workshop.make()
    sums = workshop.sums()
    workshop.commit({"cpu.c": workshop.texts["cpu.c"] + "int ggml_backend_extra(void) { return 7; }\n"})
    workshop.recipe(extra='[[series]]\nname = "greeting"')
    again = workshop.make()
    assert again.returncode == 0, again.stderr
    assert workshop.sums() != sums


def test_a_compile_error_shows_the_command_its_errors_and_the_log(workshop):
    workshop.commit({"cpu.c": "int broken( { return 1; }\n"})
    workshop.recipe()
    done = workshop.make()
    assert done.returncode == 6
    assert "cpu.c:1" in done.stderr
    log = re.search(r"^log: (.*)$", done.stderr, re.MULTILINE).group(1)
    with open(log) as handle:  # noqa: PTH123
        assert "broken" in handle.read()
    assert "Traceback" not in done.stderr
    assert not (workshop.folder / "dist").exists()


def test_a_patch_that_does_not_fit_stops_make_with_4(workshop):
    workshop.commit({"base.c": workshop.texts["base.c"].replace('"hello"', '"other"')})
    workshop.recipe(extra='[[series]]\nname = "greeting"')
    done = workshop.run("make", "--recipe", "small", "--target", "cpu", "--keep-conflict", workshop.folder / "conflict")
    assert done.returncode == 4
    assert "<<<<<<<" in (workshop.folder / "conflict" / "base.c").read_text()
    assert "0001-greet.patch" in done.stderr
    assert "base.c" in done.stderr
    assert not (workshop.folder / "dist").exists()


def test_what_fails_verification_is_not_published(workshop):
    workshop.recipe(target='glibc-floor = "2.2"')
    done = workshop.make()
    assert done.returncode == 1
    assert "glibc.above-floor" in done.stderr
    assert not (workshop.folder / "dist").exists()


def test_a_missing_compiler_is_told_before_anything_is_built(workshop, tmp_path):
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("git", "uname", "strip", "sh"):
        (tools / name).symlink_to(shutil.which(name))
    done = workshop.run("make", "--recipe", "small", "--target", "cpu", env={**workshop.env, "PATH": str(tools)})
    assert done.returncode == 5
    assert "compiler" in done.stderr
    assert "hint: " in done.stderr


def test_a_rocm_without_kernels_for_the_arch_is_told_before_anything_is_built(workshop, tmp_path):
    tree = make_tree(tmp_path / "rocm", "amd")
    willing_compiler(tree)
    workshop.recipe(target='[targets.hip]\nbackends = ["hip"]\narch = "gfx1201"')
    words = ("--recipe", "small", "--target", "hip", "--rocm", tree.root)
    for verb in ("make", "bundle"):
        done = workshop.run(verb, *words, "--out" if verb == "make" else "--to", "dist")
        assert done.returncode == 5, done.stderr
        assert "no kernels for gfx1201; it has them for gfx90a, gfx1030, gfx1100." in done.stderr
        assert "hint: " in done.stderr
    done = workshop.run("make", *words, "--runtime", "system")
    assert done.returncode == 6, "with the host's own runtime it is the host that has to have them"
    assert not (workshop.folder / "dist").exists()


def test_a_make_killed_at_any_point_finishes_the_next_time_with_the_same_archive(workshop):
    began = time.monotonic()
    workshop.make(out="undisturbed")
    whole = time.monotonic() - began
    shutil.rmtree(workshop.folder / "home")
    rounds = 6
    for number in range(rounds):
        with subprocess.Popen(
            workshop.argv("make", "--recipe", "small", "--target", "cpu"),
            cwd=workshop.folder, env=workshop.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        ) as run:  # fmt: skip
            time.sleep(whole * (number + 0.5) / rounds)
            run.kill()
        if (workshop.folder / "dist" / "SHA256SUMS").exists():
            break
        assert (
            not [name for name in published(workshop) if name in WHOLE] if (workshop.folder / "dist").exists() else True
        )
    done = workshop.make()
    assert done.returncode == 0, done.stderr
    assert workshop.sums() == workshop.sums("undisturbed")
    assert published(workshop) == WHOLE


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_ends_with_130_and_publishes_nothing(workshop, number):
    workshop.commit({"CMakeLists.txt": workshop.texts["CMakeLists.txt"] + "execute_process(COMMAND sleep 30)\n"})
    workshop.recipe()
    with subprocess.Popen(
        workshop.argv("make", "--recipe", "small", "--target", "cpu"),
        cwd=workshop.folder, env=workshop.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as run:  # fmt: skip
        log = workshop.folder / "home" / "logs" / "build-small-cpu.log"
        for _ in range(200):
            if log.exists() and log.stat().st_size:
                break
            time.sleep(0.05)
        run.send_signal(number)
        _, told = run.communicate(timeout=20)
    assert run.returncode == 130
    assert "interrupted" in told
    assert "Traceback" not in told
    assert not (workshop.folder / "dist").exists()
    assert nothing_runs_in(workshop.folder)


def test_two_at_once_do_not_hurt_each_other(workshop):
    runs = [
        subprocess.Popen(
            workshop.argv("make", "--recipe", "small", "--target", "cpu", "--out", out),
            cwd=workshop.folder, env=workshop.env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )
        for out in ("dist", "dist", "other")
    ]  # fmt: skip
    told = [run.communicate(timeout=120)[1] for run in runs]
    assert [run.returncode for run in runs] == [0, 0, 0], told
    assert any("waiting for another run" in text for text in told)
    assert workshop.sums() == workshop.sums("other")
    assert published(workshop) == WHOLE


@pytest.mark.parametrize("size", ["8k", "200k"])
def test_a_full_disk_leaves_nothing_under_a_final_name(workshop, size):
    """The archives go to a file system that is too small for them."""
    workshop.make(out="first")
    out = workshop.folder / "tiny"
    out.mkdir()
    script = f'mount -t tmpfs -o size={size} none "$1" || exit 77; shift; "$@"; code=$?; ls -A tiny >&2; exit $code'
    done = subprocess.run(
        ["unshare", "-m" if os.geteuid() == 0 else "-rm", "sh", "-c", script, "sh", out,
         *workshop.argv("make", "--recipe", "small", "--target", "cpu", "--out", "tiny")],
        cwd=workshop.folder, env=workshop.env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip("no mount namespace can be had here")
    assert done.returncode == 7, done.stderr
    assert "error: " in done.stderr
    assert "No space left" in done.stderr or "full" in done.stderr
    assert not [name for name in WHOLE if re.search(rf"^{re.escape(name)}$", done.stderr, re.MULTILINE)]
