"""From a recipe to a patched tree: mirrors, resolving, patch series."""
