"""The ledgers of commits, as ``data seen`` and ``data who`` read them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from mvc.errors import FormatError, NotFoundError
from mvc.operations.load_state import fill_reads
from mvc.sampling.ledger import DrawnEntry, RunLedger, parse_ledger
from mvc.states.containers import open_node
from mvc.states.document import STATE_FILE, parse_document
from mvc.states.factory import NumpyFactory
from mvc.states.state import find_node, read_node
from mvc.workspace.state_files import TensorSizes, read_state_text, read_state_tree

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mvc.history.values import TreeEntry
    from mvc.ids import GitId
    from mvc.states.document import Document, JsonValue
    from mvc.workspace.context import Context

_ENTRY, _OWN = "data_record", "own"
_RANK = re.compile(rf"(ranks/[0-9]+)/{re.escape(STATE_FILE)}")


class Ledgers:
    """The ledgers of commits, each read once."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._known: dict[GitId, RunLedger | None] = {}

    def read(self, commit: GitId) -> RunLedger | None:
        """Return the ledger of a commit; None if it has none."""
        if commit not in self._known:
            self._known[commit] = _read_ledger(self._context, commit)
        return self._known[commit]

    def before(self, commit: GitId) -> tuple[GitId | None, RunLedger]:
        """Return the newest commit before one, by first parents, that has a ledger, and that."""
        for parent in self.line(commit):
            found = None if parent == commit else self.read(parent)
            if found is not None:
                return parent, found
        return None, RunLedger()

    def line(self, commit: GitId) -> Iterator[GitId]:
        """Yield a commit and its first parents."""
        for info in self._context.history.walk([commit], first_parent=True):
            yield info.id


def _read_ledger(context: Context, commit: GitId) -> RunLedger | None:
    try:
        document = _StoredDocument(context, commit)
    except (FormatError, NotFoundError):  # no state; a file of the user's own of that name
        return None
    entry = document.find(_ENTRY)
    base, own = (None if entry is None else document.find(one, entry) for one in ("ledger", _OWN))
    if base is None and own is None:
        return None
    ledger = parse_ledger({} if base is None else document.read(base))
    owns = [] if own is None else [_parse_own(document.read(own)), *_read_others(context, document)]
    return RunLedger(ledger, tuple(owns))


def _read_others(context: Context, document: _StoredDocument) -> Iterator[dict[str, DrawnEntry]]:
    """Yield what each rank but the first says that it alone saw; it is one of the pieces of its state."""
    for folder in document.folders:
        stored = _StoredDocument(context, document.commit, folder)
        pieces = open_node(stored.find("pieces"), ())
        for _, piece in () if pieces is None else pieces.items:
            path, value = stored.find("at", piece), stored.find("value", piece)
            if path == [_ENTRY, _OWN] and value is not None:
                yield _parse_own(stored.read(value))


def _parse_own(value: object) -> dict[str, DrawnEntry]:
    found = parse_ledger(value).items()
    return {name: entry for name, entry in found if isinstance(entry, DrawnEntry)}


class _StoredDocument:
    """The ``state.json`` of a commit, or of a folder of it, of which only some values are read."""

    def __init__(self, context: Context, commit: GitId, folder: str | None = None) -> None:
        self._context, self.commit = context, commit
        self._tree: Mapping[str, TreeEntry] = read_state_tree(context, commit, folder)
        self._document: Document = parse_document(read_state_text(context, commit, commit, folder))

    @property
    def folders(self) -> list[str]:
        """The folders of what single ranks have, by rank."""
        found = [_RANK.fullmatch(path) for path in self._tree] if self._document.folders else []
        return sorted((one[1] for one in found if one is not None), key=lambda one: (len(one), one))

    def find(self, name: str, node: JsonValue = None) -> JsonValue:
        """Return a value below a node, or at the top; None if it is not there."""
        try:
            return find_node(self._document.state if node is None else node, (name,))
        except NotFoundError:
            return None

    def read(self, node: JsonValue) -> Any:
        """Return a value with its arrays."""
        plan = read_node(self._document, node, TensorSizes(self._context, self._tree), NumpyFactory)
        fill_reads(self._context, self._tree, plan.reads)
        return plan.build()
