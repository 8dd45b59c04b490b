"""What an existing build, bundle or file can do, told from its CMake cache, its compile commands and its binaries."""
