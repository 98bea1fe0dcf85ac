"""FILE.py:FUNCTION: the user's function that builds a training."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mvc import MvcError, NotFoundError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

_HINT = "write FILE.py:FUNCTION; the function takes nothing and returns a Training"


def load_entry(entry: str) -> Callable[[], Any]:
    """Run a file as a module and return a function of it; its ``__main__`` block does not run.

    Raises:
        NotFoundError: no such file, or no such function in it.
        UsageError: the file fails, or the name is of something that cannot be called.
    """
    name, colon, function = entry.rpartition(":")
    path = Path(name)
    if not (colon and name and function):
        raise NotFoundError(f"entry {entry!r} names no function", hint=_HINT)
    if not path.is_file():
        raise NotFoundError(f"file {name!r} does not exist", hint=_HINT)
    found = getattr(_load_file(path.resolve()), function, None)
    if found is None:
        raise NotFoundError(f"{name} has no function {function!r}", hint=_HINT)
    if not callable(found):
        raise UsageError(f"{function} of {name} is a {type(found).__name__}", hint=_HINT)
    build: Callable[[], Any] = found
    return build


def _load_file(path: Path) -> object:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise NotFoundError(f"{path} is no Python file", hint=_HINT)
    module = importlib.util.module_from_spec(spec)
    # As for a script: its folder is looked into first, and its classes can be found by name, which
    # the workers of data loaders need.
    sys.path.insert(0, str(path.parent))
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except MvcError:
        raise
    except Exception as error:
        raise UsageError(f"{path.name} failed: {type(error).__name__}: {error}") from error
    return module
