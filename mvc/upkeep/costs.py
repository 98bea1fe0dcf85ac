"""What something costs in the store: the values that ``du`` returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mvc.ids import GitId


@dataclass(frozen=True, slots=True)
class DuEntry:
    """What one branch, tag, commit, file or tensor costs.

    Attributes:
        kind: ``branch``, ``tag``, ``commit``, ``file``, ``tensor`` or ``selection``.
        name: its name; a commit's id, a file's path, or empty for bytes between tensors.
        raw_bytes: what its versions take as plain files, each version once.
        alone_bytes: stored bytes that would be freed if only it were gone.
        shared_bytes: stored bytes that it needs and others need too.
        commit: the commit that a branch, tag or commit stands for, or None.
        subject: subject of that commit, or empty.
        path: the file of a tensor, or None.
        versions: how many different versions of files are in it.
    """

    kind: str
    name: str
    raw_bytes: int
    alone_bytes: int
    shared_bytes: int
    commit: GitId | None = None
    subject: str = ""
    path: str | None = None
    versions: int = 0

    @property
    def stored_bytes(self) -> int:
        """All that it needs."""
        return self.alone_bytes + self.shared_bytes

    @property
    def ratio(self) -> float | None:
        """Stored bytes to raw bytes; None if there are no raw bytes."""
        return self.stored_bytes / self.raw_bytes if self.raw_bytes else None


@dataclass(frozen=True, slots=True)
class DuTotals:
    """What the whole repository takes.

    Attributes:
        raw_bytes: all file versions as plain files, each version once; released ones left out.
        versions: how many file versions these are.
        commits: commits that refs, HEAD and reflogs reach.
        packs: how many there are.
        pack_bytes: their length.
        index_bytes: length of pack indexes.
        object_bytes: length of Git objects: manifests, trees, commits, plain files.
        needed_bytes: stored bytes of chunks that file versions need, bases included.
        base_bytes: those of them that no version names, kept as bases of others.
        reflog_bytes: those of them that only reflogs still reach.
        unneeded_bytes: stored bytes that nothing needs; gc frees them once they are old enough.
    """

    raw_bytes: int
    versions: int
    commits: int
    packs: int
    pack_bytes: int
    index_bytes: int
    object_bytes: int
    needed_bytes: int
    base_bytes: int
    reflog_bytes: int
    unneeded_bytes: int

    @property
    def ratio(self) -> float | None:
        """Needed stored bytes to raw bytes; None if there are no raw bytes."""
        return self.needed_bytes / self.raw_bytes if self.raw_bytes else None
