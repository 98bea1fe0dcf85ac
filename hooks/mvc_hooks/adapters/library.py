"""Finding the training library of an adapter, or saying plainly that it is not there."""

from __future__ import annotations

import importlib
from typing import Any


def import_library(*modules: str, extra: str) -> Any:
    """Return the first module that can be imported.

    Args:
        *modules: names, best first.
        extra: of this project, which installs it.

    Raises:
        ImportError: none is installed.
    """
    for name in modules:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not name.startswith(error.name):
                raise
    package = modules[0].partition(".")[0]
    raise ImportError(
        f"mvc_hooks.adapters.{extra} needs {package}; pip install 'mvc-models[{extra}]' brings it",
        name=package,
    )
