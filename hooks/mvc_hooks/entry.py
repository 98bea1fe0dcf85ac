"""The user's function that builds a training or a model: ``FILE.py:FUNCTION`` or ``package.module:FUNCTION``."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from mvc import MvcError, NotFoundError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

_HINT = "write FILE.py:FUNCTION or package.module:FUNCTION; the function takes no arguments"
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


class CommandParser(argparse.ArgumentParser):
    """A parser that raises errors of mvc, with a hint."""

    def __init__(self, *, hint: str, **options: Any) -> None:
        super().__init__(**options)
        self._hint = hint

    def error(self, message: str) -> NoReturn:
        """Refuse a command line."""
        raise UsageError(message, hint=self._hint)


def load_entry(entry: str) -> Callable[[], Any]:
    """Run a file as a module, or import one, and return a function of it.

    The ``__main__`` block of a file does not run.

    Raises:
        NotFoundError: there is no such file, module or function.
        UsageError: the code fails, or what is named is not a function.
    """
    name, colon, function = entry.rpartition(":")
    if not (colon and name and function):
        raise NotFoundError(f"entry {entry!r} does not name a function", hint=_HINT)
    module = _load(name)
    build: Callable[[], Any] | None = getattr(module, function, None)
    if build is None:
        raise NotFoundError(f"{name} has no function {function!r}", hint=_HINT)
    if not callable(build):
        raise UsageError(f"{function} of {name} is a {type(build).__name__}", hint=_HINT)
    return build


def _load(name: str) -> object:
    path = Path(name)
    try:
        if path.is_file():
            return _load_file(path.resolve())
        return _import(name)
    except MvcError:
        raise
    except (Exception, SystemExit) as error:
        raise UsageError(f"{path.name} failed: {type(error).__name__}: {error}") from error


def _load_file(path: Path) -> object:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise NotFoundError(f"{path} is not a Python file", hint=_HINT)
    module = importlib.util.module_from_spec(spec)
    # As for a script: its folder is searched first, and its classes can be found by name, which
    # the workers of data loaders need.
    sys.path.insert(0, str(path.parent))
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _import(name: str) -> object:
    """Import a module of the current folder or an installed one."""
    if name.endswith(".py") or not _MODULE.fullmatch(name):
        raise NotFoundError(f"file {name!r} does not exist", hint=_HINT)
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise NotFoundError(f"module {name!r} does not exist", hint=_HINT) from error
        raise
