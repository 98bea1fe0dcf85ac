"""Many small cases in one test: an item of pytest for each costs more than most of them do."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any


def for_each(names: str | tuple[str, ...], cases: Iterable[Any]) -> Callable[[Any], Any]:
    """Run a test for one case after another, as ``pytest.mark.parametrize`` does in an item for each.

    The error of a case that fails names it in a note. Fixtures are the same for all cases.
    """
    keys = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    is_single = isinstance(names, str) and len(keys) == 1
    rows = [[case] if is_single else list(case) for case in cases]

    def decorate(test):
        def run(*args, **fixtures):
            for row in rows:
                case = dict(zip(keys, row, strict=True))
                try:
                    test(*args, **fixtures, **case)
                except BaseException as error:
                    error.add_note(f"case: {case!r:.1000}")
                    raise

        signature = inspect.signature(test)
        left = [param for name, param in signature.parameters.items() if name not in keys]
        run.__signature__ = signature.replace(parameters=left)
        run.__name__, run.__doc__, run.__module__ = test.__name__, test.__doc__, test.__module__
        run.pytestmark = getattr(test, "pytestmark", [])
        return run

    return decorate
