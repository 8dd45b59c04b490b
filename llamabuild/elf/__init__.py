"""ELF files: reading, dependency closure, rpath edits, embedded device code."""
