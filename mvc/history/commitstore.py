"""Objects read as what they are: commits, trees and blobs, each of the kind that was asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.errors import FormatError
from mvc.history.commits import parse_commit
from mvc.history.objects import ObjectStore
from mvc.history.trees import parse_tree_object

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mvc.history.values import CommitInfo
    from mvc.ids import GitId


class CommitStore(ObjectStore):
    """An object store that knows what commits and trees look like."""

    def read_kind(self, object_id: GitId, kind: str) -> bytes:
        """Return the content of an object that is of this kind.

        Raises:
            FormatError: it is of another kind.
            CorruptionError: it is damaged or missing.
        """
        found, data = self.read(object_id)
        if found != kind:
            raise FormatError(f"object {object_id} is a {found}, not a {kind}")
        return data

    def read_commit(self, commit_id: GitId) -> CommitInfo:
        """Return a commit.

        Raises:
            FormatError: the object is no commit.
            CorruptionError: it is damaged or missing.
        """
        return parse_commit(commit_id, self.read_kind(commit_id, "commit"))

    def read_tree_items(self, tree_id: GitId) -> Iterator[tuple[bytes, int, GitId]]:
        """Yield (name, mode, id) of one tree.

        Raises:
            FormatError: the object is no tree.
            CorruptionError: it is damaged or missing.
        """
        return parse_tree_object(tree_id, self.read_kind(tree_id, "tree"))
