"""Which libraries a bundle leaves to its host, by soname, and why."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

_GLIBC = (
    "ld-linux*.so.*",
    "ld64.so.*",
    "libBrokenLocale.so.1",
    "libanl.so.1",
    "libc.so.6",
    "libdl.so.2",
    "libm.so.6",
    "libmvec.so.1",
    "libnsl.so.1",
    "libpthread.so.0",
    "libresolv.so.2",
    "librt.so.1",
    "libthread_db.so.1",
    "libutil.so.1",
)
# The C library belongs to its loader: the two are one build, and the loader is named by an absolute path in every
# program. So glibc sets the floor of a bundle's hosts, and nothing of it is ever copied.

_DRIVERS = (
    "libcuda.so*",
    "libcudadebugger.so*",
    "libnvidia-*",
    "libnvcuvid.so*",
    "libnvoptix.so*",
    "libEGL*.so*",
    "libGL.so*",
    "libGLX*.so*",
    "libGLdispatch.so*",
    "libOpenCL.so*",
    "libvulkan_*.so*",
    "libdxcore.so*",
    "libd3d12*.so*",
)
# These match the kernel module of the machine they run on. A copy of libcuda in front of the host's own is refused
# by GeForce cards (error 804), and llama.cpp then runs on the CPU without a word.

_SHARED_WITH_ICDS = (
    "libgcc_s.so.1",
    "libstdc++.so.6",
    "libdrm.so.*",
    "libdrm_*.so.*",
    "libX11*.so.*",
    "libxcb*.so.*",
    "libwayland-*.so.*",
)


@dataclass(frozen=True)
class LibraryPolicy:
    """What the host is trusted to have.

    libgomp is always bundled: minimal distributions lack it (lemonade-sdk/lemonade#2793).

    libstdc++ and libgcc_s are bundled as well, so that a bundle made with a newer GCC runs wherever its glibc floor is
    met, images without a C++ runtime included. With one exception: a process with the Vulkan backend also loads the
    *host's* Vulkan drivers, which are C++ and may be newer than the bundle. They would get the bundled libstdc++,
    which is in the process already, miss a ``GLIBCXX`` version in it, and the device would be gone without a message.
    A host with Vulkan drivers has its own libstdc++ and libdrm, so there they are left to it.
    """

    vulkan: bool = False
    left_out: tuple[str, ...] = ()
    """Patterns of further names that the user wants to be left to the host: a vendor's runtime that is installed."""

    def classify(self, soname: str) -> Literal["system", "driver"] | None:
        """Whose library this is when the bundle does not hold it; None for one that has to be bundled.

        Only the last part of a path counts.
        """
        name = soname.rpartition("/")[2]
        if any(fnmatchcase(name, pattern) for pattern in _DRIVERS):
            return "driver"
        if any(fnmatchcase(name, pattern) for pattern in (*_GLIBC, *self.left_out)):
            return "system"
        if self.vulkan and any(fnmatchcase(name, pattern) for pattern in _SHARED_WITH_ICDS):
            return "system"
        return None
