"""Which tensors differ between versions of files, also across files.

A model that was saved in other shards, or in another format, has the same tensors elsewhere: that is
no change. So what is new in a file is looked for among what is gone: the same name and bytes in any file,
the same bytes in the same file; then, in files of the same folder, the same name or the same bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mvc.formats.manifest import Manifest, StoredSegment, tensor_id
from mvc.workspace.recorded import pair_renames

if TYPE_CHECKING:
    from mvc.formats.layout import TensorView

    Pair = tuple[TensorView, StoredSegment]
    Tensors = Mapping[str, Pair]
    Place = tuple[str, str]  # path and name


@dataclass(frozen=True, slots=True)
class TensorDiff:
    """One tensor that differs.

    Attributes:
        name: its name (the new one if it was renamed).
        status: ``added``, ``removed``, ``modified`` or ``renamed``.
        dtype: dtype on the new side, or on the old one if it was removed.
        shape: shape on the same side.
        old_name: name before it was renamed.
        old_dtype: dtype before, if it changed.
        old_shape: shape before, if it changed.
        chunks_changed: chunks that the other side's tensor does not have.
        chunks_total: chunks of the tensor.
        size_bytes: its bytes.
        old_path: the file that held it before, if that was another one.
    """

    name: str
    status: str
    dtype: str
    shape: tuple[int, ...]
    old_name: str | None = None
    old_dtype: str | None = None
    old_shape: tuple[int, ...] | None = None
    chunks_changed: int = 0
    chunks_total: int = 0
    size_bytes: int = 0
    old_path: str | None = None


def compare_tensors(old: Manifest | None, new: Manifest | None) -> tuple[TensorDiff, ...]:
    """Compare two versions of a file tensor by tensor, by their names."""
    before, after = by_name(old), by_name(new)
    found = [
        _compare_tensor(before[name], pair) if name in before else _whole(*pair, "added")
        for name, pair in after.items()
    ]
    found += [_whole(*pair, "removed") for name, pair in before.items() if name not in after]
    return tuple(change for change in found if change is not None)


def by_name(manifest: Manifest | None) -> dict[str, Pair]:
    """Return the tensors of a file, or none for a file that is not there or has none."""
    return {} if manifest is None else manifest.tensors_by_name()


def _whole(
    view: TensorView, stored: StoredSegment, status: str, old_name: str | None = None
) -> TensorDiff:
    count = len(stored.chunks)
    return TensorDiff(
        view.name,
        status,
        view.dtype,
        view.shape,
        old_name,
        chunks_changed=0 if status == "renamed" else count,
        chunks_total=count,
        size_bytes=stored.segment.size_bytes,
    )


def _compare_tensor(old: Pair, new: Pair) -> TensorDiff | None:
    (old_view, old_stored), (view, stored) = old, new
    same_place = (old_view.offset_bytes, old_view.strides) == (view.offset_bytes, view.strides)
    same_kind = (old_view.dtype, old_view.shape) == (view.dtype, view.shape)
    if same_place and same_kind and old_stored.chunks == stored.chunks:
        return None
    # By content, not position: a chunk that only moved inside its tensor did not change.
    known = set(old_stored.chunks)
    return TensorDiff(
        view.name,
        "modified",
        view.dtype,
        view.shape,
        old_dtype=None if old_view.dtype == view.dtype else old_view.dtype,
        old_shape=None if old_view.shape == view.shape else old_view.shape,
        chunks_changed=sum(1 for chunk in stored.chunks if chunk not in known),
        chunks_total=len(stored.chunks),
        size_bytes=stored.segment.size_bytes,
    )


def pair_moved(
    changes: Mapping[str, Sequence[TensorDiff]],
    before: Callable[[str], Tensors],
    after: Callable[[str], Tensors],
) -> tuple[dict[str, tuple[TensorDiff, ...]], Counter[tuple[str, str]]]:
    """Find tensors that are gone from a file, and new in it under another name, or in another file.

    ``changes`` are path → what differs within each file, by name. Returned are those without tensors that
    only moved, and (old path, new path) → how many those are.
    """
    gone = _places(changes, "removed", before)
    came = _places(changes, "added", after) if gone else {}
    pairs: dict[Place, Place] = {}
    for key_of in _KEYS if came else ():
        taken = set(pairs.values())
        old = {place: key_of(place, pair) for place, pair in gone.items() if place not in taken}
        new = ((place, key_of(place, came[place])) for place in came if place not in pairs)
        pairs |= pair_renames(old, new)
    moved: Counter[tuple[str, str]] = Counter()
    found: dict[Place, TensorDiff] = {}
    for place, old_place in pairs.items():
        change = _compare_moved(place, came[place], old_place, gone[old_place])
        if change is None:
            moved[old_place[0], place[0]] += 1
        else:
            found[place] = change
    paired = {*pairs, *pairs.values()} - found.keys()
    rest = {
        path: tuple(
            found.get((path, one.name), one) for one in tensors if (path, one.name) not in paired
        )
        for path, tensors in changes.items()
    }
    return rest, moved


def _folder(place: Place) -> str:
    return place[0].rpartition("/")[0]


_KEYS: tuple[Callable[[Place, Pair], Hashable], ...] = (
    lambda _, pair: (pair[0], pair[1].chunks),
    lambda place, pair: (place[0], tensor_id(*pair)),
    lambda place, _: (_folder(place), place[1]),
    lambda place, pair: (_folder(place), tensor_id(*pair)),
)
"""By what a tensor is found again, first things first; tied tensors have the same id."""


def _places(
    changes: Mapping[str, Sequence[TensorDiff]], status: str, tensors_of: Callable[[str], Tensors]
) -> dict[Place, Pair]:
    found: dict[Place, Pair] = {}
    for path, tensors in changes.items():
        names = [one.name for one in tensors if one.status == status]
        table = tensors_of(path) if names else {}
        found |= {(path, name): table[name] for name in names}
    return found


def _compare_moved(place: Place, pair: Pair, old_place: Place, old: Pair) -> TensorDiff | None:
    """Return how a tensor differs from the one it was, or None if only its file is another."""
    if place[1] == old_place[1]:
        change = _compare_tensor(old, pair)
    else:
        change = _whole(*pair, "renamed", old_place[1])
    if change is None or place[0] == old_place[0]:
        return change
    return replace(change, old_path=old_place[0])
