"""One module a group of verbs: arguments in, exit code out."""
