"""Which targets ``doctor`` looks at, for which arch, and what it says of the GPUs, on recorded machines."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from llamabuild.build.host import Host
from llamabuild.cli import main

from .test_devices import SMI, lspci, pci

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CARDS = "00000000:01:00.0, RTX 3090, 8.6, 24576, 580.95\n00000000:02:00.0, RTX 5090, 12.0, 32607, 580.95"


@pytest.fixture
def doctor(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    def run(host: Host, *words: str) -> tuple[int, str, str]:
        monkeypatch.setenv("LLAMABUILD_HOME", str(tmp_path))
        monkeypatch.setattr(Host, "of", lambda _: host)
        code = main(["doctor", *words])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def test_without_a_target_each_that_the_gpus_allow_is_looked_at(doctor: Any, machines: Any) -> None:
    files = pci("0000:03:00.0", "0x1002", "0x744c")
    host = machines.plain(files=files, outputs={SMI: CARDS, "rocminfo": "  Name:   gfx1100\n"})
    code, out, _ = doctor(host, "--json")
    assert code == 0
    document = json.loads(out)
    seen = [(each["target"], each["arch"], each["ok"]) for each in document["targets"]]
    assert seen == [("cpu", "", True), ("cuda", "120", False), ("cuda", "86", False), ("hip", "gfx1100", False)]
    assert {name: document[name] for name in ("target", "ok", "tools")} == {
        name: document["targets"][0][name] for name in ("target", "ok", "tools")
    }
    _, out, _ = doctor(host)
    assert out.startswith("target cpu: ready\n")
    assert "\ntarget hip gfx1100: cannot be built on this host\n" in out


def test_different_gpus_are_a_choice_as_for_make(doctor: Any, machines: Any) -> None:
    host = machines.plain(outputs={SMI: CARDS})
    for words, asked in (([], "--target cuda"), (["--arch", "auto"], "--arch auto")):
        code, out, err = doctor(host, "--target", "cuda", *words)
        assert (code, out) == (2, "")
        assert f"{asked}: this host has different NVIDIA GPUs: RTX 3090 (0000:01:00.0): 86; RTX 5090" in err
        assert "give --arch 120 or 86" in err


def test_an_arch_that_is_none_of_the_hosts_is_said(doctor: Any, machines: Any) -> None:
    plain = machines.plain()
    assert "\nnote: no NVIDIA GPU here: tried for 86\n" in doctor(plain, "--target", "cuda")[1]
    for words, note in (([], "no NVIDIA GPU here: tried for 86"), (["--arch", "89"], "")):
        assert json.loads(doctor(plain, "--target", "cuda", *words, "--json")[1])["note"] == note
    code, _, err = doctor(plain, "--target", "hip", "--arch", "auto")
    assert code == 2
    assert "--arch auto: no AMD GPU was found in this host" in err
    silent = machines.plain(files=pci("0000:01:00.0", "0x10de", "0x2204"), failures={SMI: "Failed to initialize NVML"})
    assert "says 'Failed to initialize NVML': tried for 86\n" in doctor(silent)[1]


@pytest.mark.parametrize(
    ("vendor", "said"), [("0x1002", "off (never any collectives over PCIe)"), ("0x10de", "off"), ("0x8086", "off")]
)
def test_pcie_atomics_mean_something_for_amd_alone(vendor: str, said: str, doctor: Any, machines: Any) -> None:
    host = machines.plain(files=pci("0000:03:00.0", vendor, "0x1234"), outputs=lspci("0000:03:00.0", "-"))
    assert f"  PCIe atomics: {said}\n" in doctor(host)[1]
