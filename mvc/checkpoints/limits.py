"""Caps that every parser shares: nothing past them is a real model.

Each bounds memory and time of reading a hostile file; what a file may legally hold is far below.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from mvc.errors import FormatError
from mvc.formats.layout import FileLayout, Segment, check_layout

MAX_TENSORS = 500_000
"""Named tensors of one file. A 40,000-tensor model with two Adam moments and a step has 160,000."""
MAX_NAME_BYTES = 4096
"""UTF-8 bytes of one tensor name; state-dict keys seen in practice stay below 300."""
MAX_NAMES_BYTES = 64 * 2**20
"""UTF-8 bytes of all names of one file: 500,000 names of 134 bytes."""


@dataclass(slots=True)
class Names:
    """Names given out once each; a taken one gets ``mark`` and a number: ``~2``, ``~3`` and so on.

    ``taken`` holds names as they compare: with ``fold_case``, without regard to case.
    """

    taken: set[str]
    fold_case: bool = False
    mark: str = "~"
    _counts: dict[str, int] = field(default_factory=dict)

    def give(self, name: str) -> str:
        """Return the name, or the name with the first free number."""
        candidate = name
        while self._folded(candidate) in self.taken:
            self._counts[name] = number = self._counts.get(name, 1) + 1
            candidate = f"{name}{self.mark}{number}"
        self.taken.add(self._folded(candidate))
        return candidate

    def _folded(self, name: str) -> str:
        return name.lower() if self.fold_case else name


def check_limit(subject: str, count: int, unit: str, limit: int) -> None:
    """Raise FormatError if there is more of something than a limit allows."""
    if count > limit:
        raise FormatError(f"{subject} {count:,} {unit}, the limit is {limit:,}")


def check_names(segments: Sequence[Segment]) -> None:
    """Check number and size of the names, and that each can be written as UTF-8."""
    count = sum(len(segment.tensors) for segment in segments)
    check_limit("file names", count, "tensors", MAX_TENSORS)
    total_bytes = 0
    for segment in segments:
        for view in segment.tensors:
            try:
                size_bytes = len(view.name.encode())
            except UnicodeEncodeError:
                raise FormatError(f"tensor name {view.name[:80]!r} is not unicode text") from None
            if size_bytes > MAX_NAME_BYTES:  # the text costs time, so only then
                check_limit(
                    f"tensor name {view.name[:80]!r} has", size_bytes, "bytes", MAX_NAME_BYTES
                )
            total_bytes += size_bytes
    check_limit("tensor names together have", total_bytes, "bytes", MAX_NAMES_BYTES)


def checked_layout(
    kind: str, size_bytes: int, segments: Sequence[Segment], warning: str | None = None
) -> FileLayout:
    """Return the layout of a file after checking all that every layout promises."""
    check_names(segments)
    check_layout(size_bytes, segments)
    return FileLayout(kind, size_bytes, tuple(segments), warning)
