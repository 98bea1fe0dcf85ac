"""The command ``mvc NAME`` is the function ``NAME``, with ``_`` for ``-``, of a module of that name, or of its kin's."""
