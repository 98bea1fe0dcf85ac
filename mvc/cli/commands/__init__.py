"""The command ``mvc NAME`` is the function ``NAME`` of the module ``NAME``; ``_`` stands for ``-``."""
