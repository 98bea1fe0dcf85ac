"""Which ranks of a run share a folder, and which of them have just a store in common."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc import fs
from mvc.errors import UsageError
from mvc.workspace.staging import FOLDER, scratch_folder

if TYPE_CHECKING:
    from mvc.workspace.context import Context

_NAME = "mark"
_MARK = re.compile("[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Where the repository of a rank is, as compared with that of rank 0.

    Attributes:
        sees_mark: whether it is in the same folder.
        store: what has the content of the repository (``mvc.store``), if a store has.
    """

    sees_mark: bool
    store: str | None


@contextlib.contextmanager
def leave_mark(context: Context) -> Iterator[str]:
    """Leave a mark in the repository's folder, which ``look_for_mark`` finds; usable as a context manager.

    It yields the name of the mark, which is there until the end of the block.

    Raises:
        StorageError: nothing can be written there.
    """
    with scratch_folder(context) as folder:
        fs.write_durable(folder / _NAME, [b""])
        yield folder.name


def sees_mark(context: Context, mark: str) -> bool:
    """Return whether a mark is in the repository's folder."""
    if not _MARK.fullmatch(mark):
        raise UsageError(f"{mark[:80]!r} is not a mark")
    return fs.find_stat(context.git_dir / FOLDER / mark / _NAME) is not None


def choose_senders(found: Sequence[Whereabouts]) -> tuple[bool, ...]:
    """Return for every rank whether it sends what it stores to the common store.

    Those that see the mark of rank 0 do not: one folder is enough.

    Raises:
        UsageError: a rank has neither the folder nor the store of rank 0.
    """
    store = found[0].store
    for rank, one in enumerate(found):
        if one.sees_mark or (store is not None and one.store == store):
            continue
        where = "no store" if one.store is None else f"the store {one.store}"
        common = "none" if store is None else store
        raise UsageError(
            f"rank {rank} sees another folder than rank 0, and has {where}, where rank 0 has {common}: "
            "they share nothing that could hold a commit",
            hint="either put the repository on a file system that all machines see (on each, "
            '"mvc doctor --shared" tests it), or give each machine a repository of its own with the same '
            'store: "mvc init --store URL"',
        )
    return tuple(not one.sees_mark for one in found)
