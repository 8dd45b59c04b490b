"""Every rule of serve-check on a line that it is about, and on one that it is not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llamabuild.core.errors import UsageError
from llamabuild.runtime.command_line import parse_words, read_environment_file, read_unit
from llamabuild.runtime.gguf_model import Model, load_model
from llamabuild.runtime.help_flags import Flags, parse_help
from llamabuild.runtime.serve_case import Case
from llamabuild.runtime.serve_check import ALL_RULES, parse_atomics
from llamabuild.runtime.tiny import write_tiny_model

HELP = """\
0.00.001 I srv  main: initializing ...
----- common params -----

-h,    --help, --usage                  print usage and exit
-c,    --ctx-size N                     size of the context (default: 0)
                                        (env: LLAMA_ARG_CTX_SIZE)
-b,    --batch-size N                   batch
-ub,   --ubatch-size N                  micro-batch
-np,   --parallel N                     slots
                                        - one: the default
-kvu,  --kv-unified, -no-kvu, --no-kv-unified
                                        one cache for all
                                        (env: LLAMA_ARG_KV_UNIFIED)
-m,    --model FNAME                    model
                                        (env: LLAMA_ARG_MODEL)
-fa,   --flash-attn [on|off|auto]       attention
-ctk,  --cache-type-k TYPE              keys
-ctv,  --cache-type-v TYPE              values
-sm,   --split-mode {none,layer,row,tensor}
                                        how to split
-ts,   --tensor-split N0,N1,N2,...      shares
-dev,  --device <dev1,dev2,..>          devices
--rpc SERVERS                           servers
-ngl,  --gpu-layers, --n-gpu-layers N   layers
-ot,   --override-tensor <tensor name pattern>=<buffer type>,...
                                        places
-cmoe, --cpu-moe                        experts on the CPU
-ncmoe, --n-cpu-moe N                   experts of N layers on the CPU
-ncffn, --n-cpu-ffn N                   feed-forward of N layers on the CPU
-fit,  --fit [on|off]                   fit
--rope-scaling {none,linear,yarn}       scaling
--range START END                       two words
-md,   --spec-draft-model FNAME         drafter
-hfd,  --spec-draft-hf REPO             drafter
--spec-draft-override-tensor, -otd <tensor name pattern>=<buffer type>,...
                                        places
--spec-draft-type-k, -ctkd TYPE         keys
--spec-draft-type-v, -ctvd TYPE         values
--spec-draft-device, -devd <dev1,dev2,..>
                                        device
--spec-draft-n-max N                    drafted tokens
--spec-type none,draft-simple,draft-mtp,draft-dflash
                                        kinds
--draft, --draft-max N                  the argument has been removed. use --spec-draft-n-max
--port PORT                             port
"""


@pytest.fixture(scope="module")
def flags() -> Flags:
    return Flags(parse_help(HELP).by_name, version="version: 0.5.0 (build 11146, commit 7fe450e19)")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    folder = tmp_path_factory.mktemp("models")
    kinds = ("dense", "moe", "hybrid", "dflash2")
    return {kind: load_model(str(write_tiny_model(folder / f"{kind}.gguf", kind=kind))) for kind in kinds}


def test_flags_of_a_help_text(flags: Flags) -> None:
    assert flags.by_name["-kvu"].names == ("-kvu", "--kv-unified", "-no-kvu", "--no-kv-unified")
    assert flags.by_name["-kvu"].values == 0
    assert flags.by_name["--range"].values == 2
    assert flags.by_name["-sm"].choices == ("none", "layer", "row", "tensor")
    assert flags.by_name["-ot"].names == ("-ot", "--override-tensor")
    assert flags.by_name["-ot"].choices == flags.by_name["-dev"].choices == ()
    assert flags.by_name["--spec-type"].choices[-1] == "draft-dflash"
    assert flags.by_name["-ctkd"].values == 1
    assert flags.by_name["-m"].env == "LLAMA_ARG_MODEL"
    assert flags.by_name["--draft"].removed.startswith("the argument has been removed. use")
    assert flags.find("--ctx_size") is flags.by_name["-c"]
    assert flags.build == 11146
    assert "- one" not in "".join(flags.by_name)


def found(flags: Flags, text: str, *, env: dict[str, str] | None = None, **known: Any) -> dict[str, str]:
    """Names of findings with their severities, for a line that is sound but for ``text``."""
    line = parse_words(["llama-server", *text.split()], flags, env=env)
    case = Case(line=line, flags=flags, **known)
    return {finding.name: finding.severity for rule in ALL_RULES for finding in rule.findings(case)}


SOUND = "--ctx-size 4096 --fit off"

BAD = {
    "flag.unknown": [f"{SOUND} --ctx-sise 5", f"{SOUND} --parallel=1", f"{SOUND} -np 1 stray"],
    "flag.value": [f"{SOUND} -sm sideways", f"{SOUND} --spec-type none,draft-x", f"{SOUND} --port"],
    "flag.removed": [f"{SOUND} --draft-max 5"],
    "flag.repeated": [f"{SOUND} -c 8192"],
    "context.divided": [f"{SOUND} -np 2"],
    "context.fit": ["-np 1", "-c 4096 -ts 1,2", "-c 0"],
    "cache.flash-attention": [f"{SOUND} -fa off -ctv q8_0"],
    "override.device": [f"{SOUND} -ot exps=CUDA1", f"{SOUND} -otd blk=Vulkan0"],
    "rpc.order": [f"{SOUND} -devd RPC1 --rpc a:1,b:2"],
    "split.tensor-attention": [f"{SOUND} -sm tensor -fa off"],
}
GOOD = {
    "flag.unknown": [f"{SOUND} --ctx_size 4096 -np 1", f"{SOUND} -ngl -1"],
    "flag.value": [f"{SOUND} -fa 1", f"{SOUND} -sm row", f"{SOUND} --range 1 2"],
    "flag.removed": [f"{SOUND} --spec-draft-n-max 5"],
    "flag.repeated": [f"{SOUND} -c 4096", f"{SOUND} -ot a=CPU -ot b=CPU"],
    "context.divided": [f"{SOUND} -np 1", f"{SOUND} -np 2 -kvu"],
    "context.fit": ["-c 4096 -np 1", "-fit off"],
    "cache.flash-attention": [f"{SOUND} -fa off -ctk q8_0", f"{SOUND} -ctv q8_0", f"{SOUND} -fa off -ctv bf16"],
    "override.device": [f"{SOUND} -ot exps=CPU"],
    "rpc.order": [f"{SOUND} --rpc a:1,b:2 -devd RPC1", f"{SOUND} -devd CUDA1 --rpc a:1"],
    "split.tensor-attention": [f"{SOUND} -sm layer -fa off"],
}


@pytest.mark.parametrize("name", BAD)
def test_rules_about_the_line_alone(flags: Flags, name: str) -> None:
    for text in BAD[name]:
        assert name in found(flags, text), text
    for text in GOOD[name]:
        assert name not in found(flags, text), text


def test_a_sound_line_has_no_findings(flags: Flags, models: dict[str, Model]) -> None:
    text = f"{SOUND} -np 1 -md d -devd CUDA1 --spec-draft-n-max 7 --spec-type draft-dflash"
    known = {"model": models["hybrid"], "draft": models["dflash2"], "devices": ("CUDA0", "CUDA1")}
    assert found(flags, text, **known, symbols=frozenset({"llama_model_dflash_selector_top_k"})) == {}


def test_the_nearest_flag_is_named(flags: Flags) -> None:
    line = parse_words(["llama-server", "--ctx-sise", "512"], flags)
    (finding,) = next(rule for rule in ALL_RULES if rule.name == "flag.unknown").findings(Case(line, flags))
    assert "The nearest is --ctx-size." in finding.hint
    assert finding.evidence == "--ctx-sise 512"


def test_devices(flags: Flags) -> None:
    two = {"devices": ("CUDA0", "CUDA1")}
    assert found(flags, f"{SOUND} -dev CUDA0,CUDA2", **two)["device.unknown"] == "error"
    assert "device.unknown" not in found(flags, f"{SOUND} -dev CUDA0,CUDA2")
    assert "device.unknown" not in found(flags, f"{SOUND} -dev none", **two)
    assert "split.shares" in found(flags, f"{SOUND} -ts 1,2,3", **two)
    assert "split.shares" not in found(flags, f"{SOUND} -ts 1,2", **two)
    assert "override.device" not in found(flags, f"{SOUND} -ot exps=CUDA0", devices=("CUDA0",))
    assert found(flags, f"{SOUND} -ot exps=CUDA0", **two)["override.device"] == "warning"
    mixed = {"devices": ("CUDA0", "Vulkan1")}
    assert found(flags, f"{SOUND} -ot exps=Vulkan1", **mixed)["override.backend"] == "error"
    assert "override.backend" not in found(flags, f"{SOUND} -ot exps=CUDA0", **two)


def test_splits(flags: Flags, models: dict[str, Model]) -> None:
    assert "split.atomics" in found(flags, f"{SOUND} -sm tensor", atomics=False)
    assert "split.atomics" not in found(flags, f"{SOUND} -sm tensor", atomics=True)
    assert "split.atomics" not in found(flags, SOUND, atomics=False)
    old = Flags(flags.by_name, version="version: 9875 (abc)")
    assert "split.tensor-experts" in found(old, f"{SOUND} -sm tensor -ncmoe 2")
    assert "split.tensor-experts" not in found(flags, f"{SOUND} -sm tensor -ncmoe 2")
    assert "memory.pinned" in found(flags, f"{SOUND} -ncmoe 1", devices=("CUDA0",))
    assert "memory.pinned" not in found(
        flags, f"{SOUND} -ncmoe 1", devices=("CUDA0",), env={"GGML_CUDA_NO_PINNED": "1"}
    )
    assert "experts.layers" in found(flags, f"{SOUND} -ncmoe 1", model=models["dense"])
    assert "experts.layers" in found(flags, f"{SOUND} -ncmoe 9", model=models["moe"])
    assert "experts.layers" not in found(flags, f"{SOUND} -ncmoe 1", model=models["moe"])


def test_drafters(flags: Flags, models: dict[str, Model]) -> None:
    pair = {"model": models["hybrid"], "draft": models["dflash2"]}
    assert found(flags, f"{SOUND} -md d --spec-draft-n-max 8", **pair)["draft.block-size"] == "warning"
    two = {"devices": ("CUDA0", "CUDA1")}
    assert "draft.pinned" in found(flags, f"{SOUND} -md d -sm tensor -devd CUDA0", **pair)
    assert "draft.pinned" not in found(flags, f"{SOUND} -md d -sm tensor", **pair)
    whole = replace(models["dflash2"], input_bytes=100)
    assert "draft.pinned" not in found(flags, f"{SOUND} -md d -sm tensor -devd CUDA0", draft=whole)
    assert "draft.unpinned" in found(flags, f"{SOUND} -md d", **two)
    assert found(flags, f"{SOUND} -md d -devd CUDA0", **two)["draft.elsewhere"] == "error"
    assert "draft.elsewhere" not in found(flags, f"{SOUND} -md d -devd CUDA1", **two)
    whole = replace(models["dflash2"], input_bytes=100)
    assert "draft.elsewhere" not in found(flags, f"{SOUND} -md d -devd CUDA0", draft=whole, **two)
    assert "draft.unpinned" in found(flags, f"{SOUND} -md d -ts 3/1")
    assert "draft.unpinned" not in found(flags, f"{SOUND} -md d -devd CUDA1", **two)
    assert "draft.unpinned" not in found(flags, f"{SOUND} -md d", devices=("CUDA0",))
    for symbols, there in ((frozenset(), True), (frozenset({"llama_model_get_split_mode"}), False)):
        assert ("draft.tensor-series" in found(flags, f"{SOUND} -md d -sm tensor", symbols=symbols, **pair)) is there
    assert "draft.unknown" in found(flags, f"{SOUND} -md d", symbols=frozenset(), **pair)
    assert "draft.missing" in found(flags, f"{SOUND} --spec-type draft-dflash")
    assert "draft.missing" in found(flags, f"{SOUND} --spec-type draft-mtp", model=models["hybrid"])


def test_a_drafter_without_a_window_takes_the_targets_context(flags: Flags, models: dict[str, Model]) -> None:
    # 256 bytes a position: a GiB at four million positions.
    text = "-c 4194304 --fit off -md d"
    draft = models["dflash2"]
    assert "draft.context" in found(flags, text, model=models["hybrid"], draft=draft)
    assert "draft.context" not in found(flags, SOUND + " -md d", model=models["hybrid"], draft=draft)
    windowed = replace(draft, sliding_window=2048, layers=tuple(replace(layer, sliding=True) for layer in draft.layers))
    assert "draft.context" not in found(flags, text, model=models["hybrid"], draft=windowed)


def test_a_drafter_of_another_target(flags: Flags, models: dict[str, Model]) -> None:
    pair = {"model": models["hybrid"], "draft": replace(models["dflash2"], target_layers=(1, 61))}
    assert "draft.target" in found(flags, f"{SOUND} -md d", **pair)
    pair["draft"] = replace(models["dflash2"], vocab=5)
    assert "draft.target" in found(flags, f"{SOUND} -md d", **pair)


def test_context_is_capped_at_what_was_trained(flags: Flags, models: dict[str, Model]) -> None:
    assert "context.capped" in found(flags, "-c 8192 --fit off -np 1", model=models["dense"])
    assert "context.capped" not in found(flags, "-c 8192 --fit off -np 2", model=models["dense"])
    assert "context.capped" not in found(flags, "-c 8192 --fit off --rope-scaling yarn", model=models["dense"])


def test_blocks_of_a_quantised_cache(flags: Flags, models: dict[str, Model]) -> None:
    for kind, there in (("q8_0", True), ("f16", False)):
        assert ("cache.block" in found(flags, f"{SOUND} -ctk {kind}", model=models["dense"])) is there
    wide = replace(models["dense"], key_length=64, value_length=64)
    assert "cache.block" not in found(flags, f"{SOUND} -ctk q8_0 -ctv q4_0", model=wide)
    assert "cache.block" not in found(flags, f"{SOUND} -ctk q8_0 -fa off", model=models["dense"])
    latent = replace(wide, latent_attention=True)
    assert "cache.block" in found(flags, f"{SOUND} -ctk q8_0", model=latent)
    assert "cache.block" not in found(flags, f"{SOUND} -ctk q8_0 -ctv q8_0", model=latent)


def test_bench_lists_against_sweeps(flags: Flags) -> None:
    for words, there in (("-dev CUDA0,Vulkan1", True), ("-dev CUDA0/Vulkan1", False), ("-ts 0.85,0.15", True)):
        line = parse_words(["./llama-bench", *words.split()], flags)
        names = {finding.name for rule in ALL_RULES for finding in rule.findings(Case(line, flags))}
        assert ("bench.lists" in names) is there
    assert "bench.lists" not in found(flags, f"{SOUND} -dev CUDA0,Vulkan1")


def test_every_rule_names_its_source_and_what_would_disprove_it() -> None:
    assert len({rule.name for rule in ALL_RULES}) == len(ALL_RULES)
    assert all(rule.source and rule.disproof for rule in ALL_RULES)


def test_words_before_the_program_are_taken_off(flags: Flags) -> None:
    line = parse_words(["env", "LLAMA_ARG_CTX_SIZE=512", "nice", "-n", "5", "/opt/b/llama-server", "-np", "2"], flags)
    assert (line.program, line.value("--ctx-size"), line.value("-np")) == ("llama-server", "512", "2")
    # A flag on the line overrides the variable: it comes later.
    line = parse_words(["llama-server", "-c", "1024"], flags, env={"LLAMA_ARG_CTX_SIZE": "512"})
    assert line.value("-c") == "1024"
    assert parse_words(["-kvu"], flags).has("--kv-unified")
    assert not parse_words(["--no-kv-unified"], flags).has("--kv-unified")


def test_a_unit_file(tmp_path: Path, flags: Flags) -> None:
    (tmp_path / "llama.env").write_text("# a comment\nexport LLAMA_ARG_CTX_SIZE=65536\nEXTRA='-np 2'\n")
    unit = tmp_path / "llama.service"
    unit.write_text(
        '[Service]\nEnvironment=MODEL=/m.gguf "NAME=two words"\n'
        f"EnvironmentFile=-{tmp_path}/llama.env\nEnvironmentFile=-/nowhere/env\n"
        "ExecStart=\nExecStart=-/opt/llama/bin/llama-server -m ${MODEL} \\\n    --port 8080 $EXTRA\n"
    )
    words, env = read_unit(unit)
    assert words == ["/opt/llama/bin/llama-server", "-m", "/m.gguf", "--port", "8080", "-np", "2"]
    assert parse_words(words, flags, env=env).value("--ctx-size") == "65536"
    unit.write_text("[Service]\nType=simple\n")
    with pytest.raises(UsageError, match="has no ExecStart"):
        read_unit(unit)
    (tmp_path / "bad.env").write_text("just words\n")
    with pytest.raises(UsageError, match=r"bad\.env:1 is not NAME=value"):
        read_environment_file(tmp_path / "bad.env")
    with pytest.raises(UsageError, match="cannot be read"):
        read_unit(tmp_path / "none.service")


def test_atomics_of_lspci() -> None:
    text = """\
00:02.0 VGA compatible controller: Advanced Micro Devices [AMD/ATI] Navi 48
\tCapabilities: [64] Express (v2) Legacy Endpoint
\t\t\t AtomicOpsCap: 32bit+ 64bit+ 128bitCAS-
\t\t\t AtomicOpsCtl: ReqEn{}
01:00.0 Ethernet controller: Intel
\t\t\t AtomicOpsCtl: ReqEn-
"""
    assert parse_atomics(text.format("+")) is True
    assert parse_atomics(text.format("-")) is False
    assert parse_atomics("00:00.0 VGA compatible controller: x\n") is None
