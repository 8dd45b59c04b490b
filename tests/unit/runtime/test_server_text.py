"""What a failing server is quoted with."""

from __future__ import annotations

from pathlib import Path

from llamabuild.runtime.server import clean_environment, describe_status, telling_lines

ABORT = """\
0.00.151.033 I sched_reserve: reserving ...
ggml/src/ggml-impl.h:330: fatal error
[New LWP 22237]
[Thread debugging using libthread_db enabled]
Using host libthread_db library "/lib/x86_64-linux-gnu/libthread_db.so.1".
0x00007fcc216f1c17 in __GI___wait4 (pid=22297, stat_loc=0x0) at ../sysdeps/unix/sysv/linux/wait4.c:30
30\t../sysdeps/unix/sysv/linux/wait4.c: No such file or directory.
#0  0x00007fcc216f1c17 in __GI___wait4 () at ../sysdeps/unix/sysv/linux/wait4.c:30
#1  0x00007fcc2134f5db in ggml_print_backtrace () from libggml-base.so.0
[Inferior 1 (process 7829) detached]
"""


def test_the_debugger_is_left_out() -> None:
    assert telling_lines(ABORT.splitlines(), 2) == (
        "0.00.151.033 I sched_reserve: reserving ...",
        "ggml/src/ggml-impl.h:330: fatal error",
    )


def test_how_it_ended() -> None:
    assert describe_status(1) == "with status 1"
    assert describe_status(-6) == "by signal 6 (Aborted)"


def test_only_the_choice_of_devices_comes_from_the_caller() -> None:
    env = {"CUDA_VISIBLE_DEVICES": "1", "LD_LIBRARY_PATH": "/x", "LLAMA_ARG_PORT": "1", "GGML_VK_VISIBLE_DEVICES": "0"}
    clean = clean_environment(env, home=Path("/h"))
    assert clean["CUDA_VISIBLE_DEVICES"] == "1"
    assert set(clean) == {"PATH", "LANG", "HOME", "CUDA_VISIBLE_DEVICES", "GGML_VK_VISIBLE_DEVICES"}
