"""The ledgers of commits, read as cheaply as a long history needs.

Of a commit, its tree, the record of its data in ``state.json`` and the listed ids are read: no weights,
no other part of the state. The last few ledgers are kept, so going along a line reads each commit once,
and memory does not grow with it.
"""

from __future__ import annotations

import itertools
import os
import stat
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from mvc.errors import FormatError, NotFoundError
from mvc.history.values import TreeEntry
from mvc.operations.load_state import fill_reads
from mvc.sampling.ledger import parse_ledger
from mvc.states.document import STATE_FILE, Document, cut_entry, parse_document
from mvc.states.factory import NumpyFactory
from mvc.states.state import find_node, read_node
from mvc.workspace.released import check_content
from mvc.workspace.state_files import TensorSizes, read_small_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mvc.ids import GitId
    from mvc.sampling.ledger import LedgerEntry
    from mvc.workspace.context import Context

    Ledger = dict[str, LedgerEntry]

_KEPT = 16


class Ledgers:
    """The ledgers of commits; the last few that were read are kept."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._kept: OrderedDict[GitId, Ledger | None] = OrderedDict()
        self._commits: dict[GitId, tuple[GitId, GitId | None]] = {}  # tree and first parent
        self._bases: dict[GitId, GitId | None] = {}

    def read(self, commit: GitId) -> Ledger | None:
        """Return the ledger of a commit; None if it has none."""
        if commit not in self._kept:
            self._kept[commit] = self._read(commit)
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(commit)
        return self._kept[commit]

    def _read(self, commit: GitId) -> Ledger | None:
        try:
            found = self.read_value(commit, ("data_record", "ledger"))
        except FormatError:  # the user's own file of that name
            return None
        return None if found is None else parse_ledger(found)

    def read_value(self, commit: GitId, path: Sequence[str]) -> Any:
        """Return a value in the state of a commit; None if it has no such value, or no state."""
        tree = self.read_tree(commit)
        if STATE_FILE not in tree:
            return None
        blob = tree[STATE_FILE].blob
        check_content(self._context, [(STATE_FILE, blob)], commit=commit)
        text = read_small_file(self._context, blob)
        if f'"{path[0]}"'.encode() not in text:
            return None
        cut = cut_entry(text, path[0])
        document = parse_document(text) if cut is None else Document((), (), {path[0]: cut})
        try:
            node = find_node(document.state, path)
        except NotFoundError:
            return None
        plan = read_node(document, node, TensorSizes(self._context, tree), NumpyFactory)
        fill_reads(self._context, tree, plan.reads)
        return plan.build()

    def read_tree(self, commit: GitId) -> dict[str, TreeEntry]:
        """Return the files of a commit, without those in its folders."""
        items = self._context.history.objects.read_tree_items(self._find(commit)[0])
        return {
            os.fsdecode(name): TreeEntry(mode, blob)
            for name, mode, blob in items
            if stat.S_ISREG(mode)
        }

    def before(self, commit: GitId) -> tuple[GitId | None, Ledger]:
        """Return the newest commit before one, by first parents, that has a ledger, and that."""
        passed: list[GitId] = []
        at, base = commit, None
        while at not in self._bases:
            passed.append(at)
            parent = self._find(at)[1]
            if parent is None or self.read(parent) is not None:
                base = parent
                break
            at = parent
        else:
            base = self._bases[at]
        self._bases.update(dict.fromkeys(passed, base))
        return base, {} if base is None else self.read(base) or {}

    def line(self, commit: GitId) -> Iterator[GitId]:
        """Yield a commit and its first parents."""
        at: GitId | None = commit
        while at is not None:
            yield at
            at = self._find(at)[1]

    def find_fork(self, commit: GitId, other: GitId) -> GitId | None:
        """Return the first commit on the line of one that is on that of another; looks no further."""
        ours: set[GitId | None] = set()
        theirs: set[GitId | None] = set()
        for pair in itertools.zip_longest(self.line(commit), self.line(other)):
            ours.add(pair[0])
            theirs.add(pair[1])
            for found, known in zip(pair, (theirs, ours), strict=True):
                if found is not None and found in known:
                    return found
        return None

    def _find(self, commit: GitId) -> tuple[GitId, GitId | None]:
        if commit not in self._commits:
            info = self._context.history.read_commit(commit)
            self._commits[commit] = info.tree, next(iter(info.parents), None)
        return self._commits[commit]
