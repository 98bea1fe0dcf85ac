"""Which tensors differ between versions of files, also where they lie in other files now.

A model that was saved in other shards, or in another format, has the same tensors elsewhere: that is
no change. So what is new in one file is looked for among what is gone from all others: the same bytes
under the same name, then, in the same folder, the same name or the same bytes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mvc.formats.manifest import tensor_id
from mvc.workspace.recorded import pair_renames

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from mvc.formats.layout import TensorView
    from mvc.formats.manifest import Manifest, StoredSegment

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
        old_path: the file that it lay in before, if that was another one.
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
    """Compare two versions of a file tensor by tensor; equal bytes under a new name are renamed."""
    before, after = by_name(old), by_name(new)
    gone = {name: pair for name, pair in before.items() if name not in after}
    # Tied tensors have the same id; ids cost a hash, and only renames need them.
    renamed = pair_renames(
        {name: tensor_id(*pair) for name, pair in gone.items()},
        ((name, tensor_id(*pair)) for name, pair in after.items() if name not in before),
    )
    found: list[TensorDiff] = []
    for name, (view, stored) in after.items():
        if name in before:
            change = _compare_tensor(before[name], (view, stored))
            found.extend([] if change is None else [change])
        else:
            old_name = renamed.get(name)
            found.append(_whole(view, stored, "added" if old_name is None else "renamed", old_name))
    for old_name in renamed.values():
        del gone[old_name]
    found.extend(_whole(view, stored, "removed") for view, stored in gone.values())
    return tuple(found)


def by_name(manifest: Manifest | None) -> dict[str, Pair]:
    """Return the tensors of a file."""
    if manifest is None:
        return {}
    return {view.name: (view, stored) for view, stored in manifest.tensors()}


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


def pair_across_files(
    changes: Mapping[str, Sequence[TensorDiff]],
    before: Callable[[str], Tensors],
    after: Callable[[str], Tensors],
) -> tuple[dict[str, tuple[TensorDiff, ...]], Counter[tuple[str, str]]]:
    """Find tensors that are gone from one file and new in another.

    Args:
        changes: path → what differs within each file.
        before: returns the tensors of a path on the old side.
        after: returns those on the new side.

    Returns:
        ``changes`` without tensors that only moved, and (old path, new path) → how many those are.
    """
    gone = _places(changes, "removed", before)
    came = _places(changes, "added", after) if gone else {}
    pairs: dict[Place, Place] = {}
    for key_of in (_name_and_bytes, _folder_and_name, _folder_and_bytes) if came else ():
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


def _places(
    changes: Mapping[str, Sequence[TensorDiff]], status: str, tensors_of: Callable[[str], Tensors]
) -> dict[Place, Pair]:
    found: dict[Place, Pair] = {}
    for path, tensors in changes.items():
        names = [one.name for one in tensors if one.status == status]
        table = tensors_of(path) if names else {}
        found |= {(path, name): table[name] for name in names}
    return found


def _name_and_bytes(_: Place, pair: Pair) -> Hashable:
    view, stored = pair
    return view, stored.chunks


def _folder_and_name(place: Place, _: Pair) -> Hashable:
    return place[0].rpartition("/")[0], place[1]


def _folder_and_bytes(place: Place, pair: Pair) -> Hashable:
    return place[0].rpartition("/")[0], tensor_id(*pair)


def _compare_moved(place: Place, pair: Pair, old_place: Place, old: Pair) -> TensorDiff | None:
    """Return how a tensor differs from one in another file, or None if it only moved."""
    if place[1] == old_place[1]:
        change = _compare_tensor(old, pair)
    else:
        change = _whole(*pair, "renamed", old_place[1])
    return None if change is None else replace(change, old_path=old_place[0])
