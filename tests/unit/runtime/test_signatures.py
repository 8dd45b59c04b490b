"""Each failure is told from the others by its own lines; the lines are those that the programs write."""

from __future__ import annotations

import pytest

from llamabuild.runtime.signatures import SIGNATURES, recognise

LOGS = {
    "runtime.draft-out-of-memory": """\
I srv  llama_server: model loaded
I srv  llama_server: listening on http://127.0.0.1:8080
ggml_backend_cuda_buffer_type_alloc_buffer: allocating 5120.00 MiB on device 1: cudaMalloc failed: out of memory
E common_speculative_impl_draft_dflash::process: llama_decode(ctx_dft) failed rc=-2 (n_tokens=512, offset=0)
""",
    "runtime.out-of-memory": """\
ggml_vulkan: Device memory allocation of size 1073741824 failed.
ggml_vulkan: vk::Device::allocateMemory: ErrorOutOfDeviceMemory
E llama_init_from_model: failed to initialize the context: failed to allocate buffer for kv cache
""",
    "runtime.boundary-copy-fault": """\
CUDA error: an illegal memory access was encountered
  current device: 1, in function ggml_backend_cuda_synchronize at ggml-cuda.cu:2987
  cudaStreamSynchronize(cuda_ctx->stream())
""",
    "runtime.tensile-missing": """\
rocBLAS error: Cannot read /opt/l/rocblas/library/TensileLibrary.dat: No such file or directory for GPU arch : gfx1201
 List of available TensileLibrary Files :
""",
    "runtime.cuda-compat": """\
ggml_cuda_init: failed to initialize CUDA: forward compatibility was attempted on non supported HW
""",
    "runtime.tensor-placement": """\
ggml/src/ggml-backend.cpp:941: pre-allocated tensor (output.weight) in a buffer (Meta()) that cannot run the operation (NONE)
""",  # noqa: E501
    "runtime.unknown-tensors": """\
llama_model_load: error loading model: done_getting_tensors: wrong number of tensors; expected 81, got 58
""",
    "runtime.port-taken": "E srv  start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 8080\n",
    "runtime.unknown-argument": "error: invalid argument: --seq-compact\n",
    "runtime.dflash2-tensor-split": """\
ggml/src/ggml-backend-meta.cpp:543: GGML_ASSERT(src_ss[0].axis != GGML_BACKEND_SPLIT_AXIS_0) failed
""",
    "runtime.libc-too-old": """\
./llama-server: /lib/x86_64-linux-gnu/libm.so.6: version `GLIBC_2.43' not found (required by ./../lib/libllama.so.0)
""",
    "runtime.library-missing": """\
./llama-server: error while loading shared libraries: libllama-server-impl.so: cannot open shared object file
""",
}  # fmt: skip


@pytest.mark.parametrize("name", LOGS)
def test_each_log_shows_its_own_failure_and_no_other(name: str) -> None:
    found = recognise(LOGS[name].splitlines())
    assert [finding.name for finding in found] == [name]
    assert found[0].evidence.splitlines()[0] in LOGS[name]
    assert found[0].hint


def test_every_signature_has_a_log() -> None:
    assert {signature.name for signature in SIGNATURES} == set(LOGS)


def test_the_first_amd_fault_line_is_a_boundary_fault() -> None:
    line = "[drm] amdgpu 0000:03:00.0: amdgpu: [gfxhub] SDMA0 page fault (src_id:0 ring:24 vmid:8 pasid:32770)"
    assert recognise([line])[0].name == "runtime.boundary-copy-fault"


def test_a_healthy_log_shows_nothing() -> None:
    healthy = """\
E llama_init_from_model: failed to initialize the context: dflash requires ctx_other to be set (this warning is normal during memory fitting)
W operator(): failed to measure the memory of the extra model, fitting without it: failed to create llama_context from model
I common_speculative_init_result: loading draft model 'dflash2.gguf'
I slot print_timing: id  0 | task 200 | draft acceptance = 0.00000 (    0 accepted /     3 generated), mean len =  1.00
"""  # noqa: E501
    assert recognise(healthy.splitlines()) == ()
