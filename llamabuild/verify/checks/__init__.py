"""The checks: each module has its ``KINDS`` of findings and a ``check`` that yields findings about a subject."""
