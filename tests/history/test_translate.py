import errno
import importlib
import inspect
import pkgutil

import dulwich
import pytest

from mvc.errors import CorruptionError, FormatError, NotFoundError, StorageError
from mvc.history.translate import translate_damage
from support.cases import for_each

MODULES = ["errors", "objects", "object_store", "pack", "refs", "index", "config", "ignore", "file",
           "reflog", "wildmatch", "midx", "lru_cache"]  # fmt: skip


def exceptions_of(name):
    module = importlib.import_module(f"dulwich.{name}")
    for _, kind in inspect.getmembers(module, inspect.isclass):
        if issubclass(kind, Exception) and kind.__module__.startswith("dulwich"):
            yield kind


def test_the_list_of_modules_names_all_that_the_history_imports():
    known = {module.name for module in pkgutil.iter_modules(dulwich.__path__)}
    assert set(MODULES) <= known


@for_each("name", MODULES)
def test_no_exception_of_dulwich_gets_through(name):
    for kind in exceptions_of(name):
        fault = kind.__new__(kind)  # whatever its constructor wants
        wanted = StorageError if issubclass(kind, OSError) else CorruptionError
        with pytest.raises(wanted, match="commit 12") as caught, translate_damage("commit 12"):
            raise fault
        assert caught.value.__cause__ is fault


@pytest.mark.parametrize("fault", [KeyError("x"), ValueError(), StopIteration(), IndexError("y")])
def test_what_parsers_stumble_over_is_damage(fault):
    with pytest.raises(FormatError), translate_damage("x", FormatError, None):
        raise fault


def test_what_is_no_damage_stays_what_it_is():
    with pytest.raises(StorageError, match="no space"), translate_damage("x"):
        raise OSError(errno.ENOSPC, "No space left on device")
    for fault in (NotFoundError("n"), FileNotFoundError(), KeyboardInterrupt(), MemoryError()):
        with pytest.raises(type(fault)) as caught, translate_damage("x"):
            raise fault
        assert caught.value is fault
