"""The likeness of two versions of a file, which finds files that were renamed and changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import TYPE_CHECKING

from mvc.formats.manifest import tensor_id
from mvc.history.values import EMPTY_BLOB, MODE_SYMLINK, TreeEntry
from mvc.merging.text import MAX_TEXT_BYTES
from mvc.workspace.manifests import read_stored

if TYPE_CHECKING:
    from mvc.ids import GitId
    from mvc.workspace.context import Context

_KEPT = 32
_SAME_NAMES = 0.9


def make_likeness(context: Context) -> Callable[[TreeEntry, TreeEntry], float]:
    """Return what compares two versions: 0 is nothing in common, 1 the same content.

    Of small files it is the share of bytes in equal lines, as in Git. Of checkpoints it is the mean
    of two shares, of tensors with equal names and shapes and of those with equal bits as well: a
    trained model still is that model. But nine names of ten must be there, which those of one shard
    of it are not.
    """

    @lru_cache(_KEPT)
    def read(blob: GitId) -> tuple[Counter[Hashable], Counter[Hashable]]:
        """Return names and contents of its tensors; of a small file no names, and its lines."""
        manifest, size_bytes = read_stored(context, blob)
        if manifest is None:
            data = context.history.read_blob(blob) if size_bytes <= MAX_TEXT_BYTES else b""
            lines = Counter(data.splitlines(keepends=True))
            return Counter(), Counter({line: lines[line] * len(line) for line in lines})
        tensors = list(manifest.tensors())
        return (
            Counter((view.name, view.dtype, view.shape) for view, _ in tensors),
            Counter((view.name, tensor_id(view, stored)) for view, stored in tensors),
        )

    def compare(entry: TreeEntry, other: TreeEntry) -> float:
        """Return how alike they are."""
        if EMPTY_BLOB in (entry.blob, other.blob) or MODE_SYMLINK in (entry.mode, other.mode):
            return 0.0
        (names, content), (other_names, other_content) = read(entry.blob), read(other.blob)
        same = _share(content, other_content)
        if not (names or other_names):
            return same
        named = _share(names, other_names)
        return (named + same) / 2 if named >= _SAME_NAMES else 0.0

    return compare


def _share(one: Counter[Hashable], other: Counter[Hashable]) -> float:
    whole = max(one.total(), other.total())
    return (one & other).total() / whole if whole else 0.0
