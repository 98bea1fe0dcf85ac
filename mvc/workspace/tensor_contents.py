"""Which tensors the files of a commit hold, for walks along history: no tensor is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.formats.manifest import MANIFEST_PREFIX, MAX_MANIFEST_BYTES, is_manifest
from mvc.formats.manifest_lines import find_contents

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mvc.history.values import TreeEntry
    from mvc.ids import GitId
    from mvc.workspace.context import Context

_TABLES_KEPT = 64


class TensorContents:
    """Reads name → content of the tensors in stored files; the last ones read are kept."""

    def __init__(self, context: Context) -> None:
        self._history = context.history
        self._tables: dict[GitId, dict[str, bytes]] = {}
        self.reads = 0
        """How many manifests were read."""

    def find(self, tree: Mapping[str, TreeEntry], path: str) -> Mapping[str, bytes]:
        """Return those of a path of a tree; nothing if it is missing there, or a plain file."""
        entry = tree.get(path)
        if entry is None:
            return {}
        table = self._tables.get(entry.blob)
        if table is None:
            while len(self._tables) >= _TABLES_KEPT:
                self._tables.pop(next(iter(self._tables)))
            table = self._tables[entry.blob] = self._read(entry.blob)
        return table

    def _read(self, blob: GitId) -> dict[str, bytes]:
        size_bytes, start = self._history.blob_start(blob, len(MANIFEST_PREFIX))
        if not is_manifest(start) or size_bytes > MAX_MANIFEST_BYTES:
            return {}
        self.reads += 1
        return find_contents(self._history.read_blob(blob))
