"""What every adapter asks of its library."""

from __future__ import annotations

import importlib
from typing import Any

from mvc import UnsupportedError


def import_library(*modules: str, extra: str) -> Any:
    """Return the first module that can be imported.

    Args:
        *modules: names, best first.
        extra: the extra of this project that installs it.

    Raises:
        ImportError: none is installed.
    """
    for name in modules:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            # A library that is installed, but lacks a module of its own, is another error.
            if error.name is None or not name.startswith(error.name):
                raise
    package = modules[0].partition(".")[0]
    raise ImportError(
        f"mvc_hooks.adapters.{extra} needs {package}: pip install 'mvc-models[{extra}]'",
        name=package,
    )


def check_processes(count: int) -> None:
    """Check that a run has one process.

    Raises:
        UnsupportedError: it has several.
    """
    if count > 1:
        raise UnsupportedError(
            f"the adapters support runs with one process, this one has {count}",
            hint="write the loop with mvc_hooks.Checkpointer, which supports several ranks",
        )


def one_or_all(values: list[Any]) -> Any:
    """Return the only value, the list of several, or None."""
    return values[0] if len(values) == 1 else values or None
