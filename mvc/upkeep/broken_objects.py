"""Damaged Git objects and packs are moved out of the way, so that sound ones can take their place.

What is sound in a damaged pack is in a new one before the old goes to ``damaged/``. A pack without an
index is garbage, or in the making; what it has is taken over, and it stays.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mvc.errors import FormatError, MvcError
from mvc.history.git_pack import GitPackIndex, write_pack
from mvc.history.transfer import is_whole_pack, receive_packs
from mvc.upkeep.places import set_aside

if TYPE_CHECKING:
    from pathlib import Path

    from mvc.history.objects import ObjectStore
    from mvc.ids import GitId
    from mvc.workspace.context import Context


def set_broken_aside(context: Context) -> Iterator[str]:
    """Move damaged objects and packs to ``damaged/``; yield a line on each."""
    objects, git_dir = context.history.objects, context.git_dir
    for path in sorted((objects.folder / "pack").glob("pack-*.pack")):
        if not path.with_suffix(".idx").exists():
            _take_over(objects, path)
    for name in objects.packs.names():
        path = objects.folder / "pack" / f"{name}.pack"
        try:
            if all(_is_readable(objects, object_id) for object_id in objects.packs.read_ids(name)):
                continue
        except FormatError:
            pass  # its index is damaged
        kept = _save(context, objects, path)
        if not path.with_suffix(".idx").exists():  # else it was made again, from the sound pack
            for file in sorted(path.parent.glob(f"{name}.*")):
                set_aside(git_dir, file)
        yield f"Git pack {name}: damaged, now in damaged; of its objects {kept:,} were saved"
    for object_id in objects.loose.iterate():
        try:
            objects.loose.read(object_id)
        except FormatError:
            yield f"object {object_id}: damaged, {set_aside(git_dir, objects.loose.path(object_id))}"
    objects.close()


def _is_readable(objects: ObjectStore, object_id: GitId) -> bool:
    try:
        objects.read(object_id)
    except FormatError:
        return False
    return True


def _save(context: Context, objects: ObjectStore, path: Path) -> int:
    """Put what is sound in a pack into a new one; return how many objects that is."""
    index = path.with_suffix(".idx")
    if is_whole_pack(path):
        set_aside(context.git_dir, index)
        return _take_over(objects, path)
    try:
        ids = list(GitPackIndex.read(index))
    except (ValueError, OSError, MvcError):
        ids = []
    sound = [object_id for object_id in ids if _is_readable(objects, object_id)]
    if sound:
        write_pack(
            path.parent, len(sound), ((object_id, *objects.read(object_id)) for object_id in sound)
        )
    set_aside(context.git_dir, index)
    objects.packs.look_again()
    return len(sound)


def _take_over(objects: ObjectStore, path: Path) -> int:
    objects.packs.look_again()
    try:
        return len(receive_packs(objects, {path.stem.removeprefix("pack-"): path}))
    except FormatError:
        return 0
