"""Toolchains, targets and the CMake driver."""
