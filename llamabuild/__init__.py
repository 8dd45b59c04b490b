"""Build pinned, patched llama.cpp runtimes as relocatable archives that are proven to hold what they claim."""

__version__ = "0.1.0"
