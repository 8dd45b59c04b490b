"""Recipes as written: their model, their loader and the table of features."""
