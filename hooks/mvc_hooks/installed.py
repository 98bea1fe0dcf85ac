"""Which code comes with Python or an installed package, and is not the user's own."""

from __future__ import annotations

import sys

OWN_PACKAGES = ("mvc", "mvc_hooks", "mvc_data", "mvc_lab")
"""Top-level packages of mvc itself, wherever they are installed."""


def is_library_file(file: str) -> bool:
    """Return whether a file of code comes with Python or an installed package."""
    return "site-packages" in file or "dist-packages" in file or file.startswith(sys.base_prefix)


def is_library_class(kind: type) -> bool:
    """Return whether a class comes with Python or an installed package."""
    module = kind.__module__
    file = getattr(sys.modules.get(module), "__file__", None)
    if module == "__main__" or file is None:
        return module in sys.builtin_module_names
    return module.partition(".")[0] in OWN_PACKAGES or is_library_file(file)
