"""A stand-in for the HIP runtime that claims one GPU, so that the real libraries look for device code without one."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from llamabuild.elf.read import read_symbols

if TYPE_CHECKING:
    from pathlib import Path

KNOWN = r"""
#include <stdlib.h>
#include <string.h>
int hipGetDeviceCount(int *n) { *n = 1; return 0; }
int hipGetDevice(int *n) { *n = 0; return 0; }
/* hipDeviceProp_tR0600: 1472 bytes, gcnArchName at 1160 (hip_runtime_api.h). */
int hipGetDevicePropertiesR0600(char *p, int d) {
    memset(p, 0, 1472);
    strcpy(p + 1160, getenv("STUB_ARCH"));
    return 0;
}
int hipDeviceGetAttribute(int *v, int a, int d) { *v = 64; return 0; }
int hipMalloc(void **p, size_t n) { *p = malloc(n + 64); return 0; }
int hipMallocAsync(void **p, size_t n, void *s) { *p = malloc(n + 64); return 0; }
int hipDeviceGetDefaultMemPool(void **p, int d) { *p = (void *)8; return 0; }
int hipModuleLoadData(void **m, const void *i) { *m = (void *)8; return 0; }
int hipModuleGetFunction(void **f, void *m, const char *n) { *f = (void *)8; return 0; }
int hipStreamIsCapturing(void *s, int *c) { *c = 0; return 0; }
int hipRuntimeGetVersion(int *v) { *v = 60443484; return 0; }
void *__hipRegisterFatBinary(void *p) { static int x; return &x; }
const char *hipGetErrorString(int e) { return "stub"; }
const char *hipGetErrorName(int e) { return "stub"; }
"""

DRIVER = r"""
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
int main(int c, char **v) {
    void *h = dlopen(v[1], RTLD_NOW | RTLD_GLOBAL);
    if (!h) { puts(dlerror()); return 3; }
    void (*init)(void) = (void (*)(void))dlsym(h, "rocblas_initialize");
    if (init) { init(); return 0; }
    int (*create)(void **) = dlsym(h, "hipblasLtCreate");
    int (*layout)(void **, int, uint64_t, uint64_t, int64_t) = dlsym(h, "hipblasLtMatrixLayoutCreate");
    int (*desc)(void **, int, int) = dlsym(h, "hipblasLtMatmulDescCreate");
    int (*pref)(void **) = dlsym(h, "hipblasLtMatmulPreferenceCreate");
    int (*ask)(void *, void *, void *, void *, void *, void *, void *, int, void *, int *) =
        dlsym(h, "hipblasLtMatmulAlgoGetHeuristic");
    void *x = 0, *m = 0, *d = 0, *p = 0;
    char results[8192] = {0};
    int n = 0;
    create(&x); layout(&m, 2, 128, 128, 128); desc(&d, 2, 0); pref(&p);
    ask(x, d, m, m, m, m, p, 1, results, &n);
    return 0;
}
"""


def make_stub(folder: Path, *libraries: Path) -> Path:
    """``libamdhip64.so.6`` with everything that the libraries need of it."""
    needed = {symbol.name for path in libraries for symbol in read_symbols(path) if not symbol.defined}
    names = sorted(name for name in needed if name.startswith(("hip", "__hip")) and f" {name}(" not in KNOWN)
    names = [name for name in names if f"*{name}(" not in KNOWN and not name.startswith(("hipblas", "hipsolver"))]
    source = KNOWN + "".join(f"int {name}() {{ return 0; }}\n" for name in names)
    target = folder / "libamdhip64.so.6"
    flags = ["-w", "-shared", "-fPIC", "-Wl,-soname,libamdhip64.so.6"]
    subprocess.run(["gcc", "-x", "c", "-", "-o", target, *flags], input=source, text=True, check=True)
    return target


def make_driver(folder: Path) -> Path:
    """A program that makes rocBLAS or hipBLASLt look for its device code."""
    target = folder / "drive"
    subprocess.run(["gcc", "-w", "-x", "c", "-", "-o", target, "-ldl"], input=DRIVER, text=True, check=True)
    return target
