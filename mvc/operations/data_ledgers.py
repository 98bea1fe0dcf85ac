"""The ledgers of commits, read as cheaply as a long history needs.

Of a commit, its tree, the record of its data in ``state.json`` and the listed ids are read: no weights,
no other part of the state. The last few ledgers are kept, so going along a line reads each commit once,
and memory does not grow with it.
"""

from __future__ import annotations

import itertools
import os
import re
import stat
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from mvc.errors import FormatError, NotFoundError
from mvc.history.values import TreeEntry
from mvc.operations.load_state import fill_reads
from mvc.sampling.ledger import DrawnEntry, RunLedger, parse_ledger, pick_drawn
from mvc.states.containers import open_node
from mvc.states.document import STATE_FILE, Document, JsonValue, cut_entry, parse_document
from mvc.states.factory import NumpyFactory
from mvc.states.state import find_node, read_node
from mvc.workspace.released import check_content
from mvc.workspace.state_files import TensorSizes, read_small_file

if TYPE_CHECKING:
    from mvc.ids import GitId
    from mvc.workspace.context import Context

_KEPT = 16
_RANK = re.compile("ranks/([0-9]+)/(.*)", re.DOTALL)


class Ledgers:
    """The ledgers of commits; the last few that were read are kept."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._bases: dict[GitId, GitId | None] = {}
        self.read = lru_cache(_KEPT)(self._read)
        self._find = cache(self._find_place)

    def _read(self, commit: GitId) -> RunLedger | None:
        """Return the ledger of a commit; None if it has none."""
        try:
            stored = self._open(commit, "data_record")
        except FormatError:  # the user's own file of that name
            return None
        if stored is None:
            return None
        base, own = stored.find("data_record", "ledger"), stored.find("data_record", "own")
        if base is None and own is None:
            return None
        ledger = parse_ledger({} if base is None else stored.read(base))
        owns = [] if own is None else [_parse_own(stored.read(own)), *self._read_others(commit)]
        return RunLedger(ledger, tuple(owns))

    def _read_others(self, commit: GitId) -> Iterator[dict[str, DrawnEntry]]:
        """Yield what each rank but the first says that it alone saw; it is one of the pieces of its state."""
        trees: dict[str, dict[str, TreeEntry]] = {}
        for path, entry in self._context.history.read_tree(commit).items():
            if (found := _RANK.fullmatch(path)) is not None:
                trees.setdefault(found[1], {})[found[2]] = entry
        for rank in sorted(trees, key=lambda one: (len(one), one)):
            stored = self._open(commit, "pieces", trees[rank])
            if stored is None:
                continue
            pieces = open_node(stored.find("pieces"), ())
            for _, piece in () if pieces is None else pieces.items:
                place, value = stored.find("at", node=piece), stored.find("value", node=piece)
                if place == ["data_record", "own"] and value is not None:
                    yield _parse_own(stored.read(value))

    def read_value(self, commit: GitId, *path: str) -> Any:
        """Return a value in the state of a commit; None if it has no such value, or no state."""
        stored = self._open(commit, path[0])
        node = None if stored is None else stored.find(*path)
        return None if stored is None or node is None else stored.read(node)

    def _open(
        self, commit: GitId, key: str, tree: Mapping[str, TreeEntry] | None = None
    ) -> _Stored | None:
        """Return what the state has under a key; None if there is no such state, or it has no such key.

        It is that of a commit, or what lies in a folder of it, its ``tree``.
        """
        if tree is None:
            objects = self._context.history.objects
            items = objects.read_tree_items(self._find(commit)[0])
            tree = {os.fsdecode(name): TreeEntry(mode, blob) for name, mode, blob in items}
        if STATE_FILE not in tree or not stat.S_ISREG(tree[STATE_FILE].mode):
            return None
        blob = tree[STATE_FILE].blob
        check_content(self._context, [(STATE_FILE, blob)], commit=commit)
        text = read_small_file(self._context, blob)
        if f'"{key}"'.encode() not in text:
            return None
        cut = cut_entry(text, key)
        document = parse_document(text) if cut is None else Document((), (), {key: cut})
        return _Stored(self._context, tree, document)

    def before(self, commit: GitId) -> tuple[GitId | None, RunLedger]:
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
        found = None if base is None else self.read(base)
        return base, found or RunLedger()

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

    def _find_place(self, commit: GitId) -> tuple[GitId, GitId | None]:
        """Return the tree of a commit, and its first parent."""
        info = self._context.history.read_commit(commit)
        return info.tree, next(iter(info.parents), None)


class _Stored:
    """Some of a ``state.json``, and the files beside it."""

    def __init__(self, context: Context, tree: Mapping[str, TreeEntry], document: Document) -> None:
        self._context, self._tree, self._document = context, tree, document

    def find(self, *path: str, node: JsonValue = None) -> JsonValue:
        """Return a value below a node, or from the top; None if it is not there."""
        try:
            return find_node(self._document.state if node is None else node, path)
        except NotFoundError:
            return None

    def read(self, node: JsonValue) -> Any:
        """Return a value with its arrays."""
        plan = read_node(self._document, node, TensorSizes(self._context, self._tree), NumpyFactory)
        fill_reads(self._context, self._tree, plan.reads)
        return plan.build()


def _parse_own(value: object) -> dict[str, DrawnEntry]:
    return pick_drawn(parse_ledger(value))
