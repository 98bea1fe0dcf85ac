"""The pipeline of a run: the nodes that its loaders use, and the code of what is not a node.

What a loader uses without being a node (a dataset, ``collate_fn``, a sampler of the user's own) is
recorded as well, by its code and by the constants in it: what such objects hold may be each rank's own,
or move as the run goes on.
"""

from __future__ import annotations

import inspect
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from mvc import UsageError
from mvc_data.nodes import NodeRecord, Records, is_node
from mvc_data.reading import NodeReading, is_constant
from mvc_data.source import digest_parts
from mvc_hooks.installed import is_library_class
from mvc_hooks.parts.reach import find_loaders, walk_used

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


_MOST_TEXT = 64 * 2**10
"""Characters of code that a commit holds; what is beyond counts in the versions alone."""
_SLOTS = ("dataset", "collate_fn", "sampler", "batch_sampler", "worker_init_fn")


def read_pipeline(*ends: object) -> dict[str, NodeRecord]:
    """Return the nodes that some objects are or use, and all before them: name → record.

    Args:
        *ends: nodes, loaders, or whatever holds them; what is not a node is searched for nodes.

    Raises:
        UsageError: two nodes have one name, a node comes before itself, or something in it has no
            content that lasts.
    """
    records = Records()
    for end in ends:
        _search(records, end)
    return records.found


def read_run(loaders: Mapping[str, object], ends: object = None) -> dict[str, dict[str, Any]]:
    """Return what commits of a run say of its pipeline.

    Args:
        loaders: the loaders of the run, by name.
        ends: further nodes, or what holds them.
    """
    for end in () if ends is None else _list_ends(ends):
        if not is_node(end):
            raise UsageError(
                f"pipeline has {end!r:.80}, which is not a node",
                hint="pipeline=[node(tokenize), ...]",
            )
    records = Records()
    for end in (ends, *loaders.values()):
        _search(records, end)
    for name, loader in loaders.items():
        for place, slot, beside in _list_slots(name, loader):
            if not is_node(slot):
                with suppress(Exception):  # it did not ask to be recorded, so it ends no run
                    records.read_used(place, partial(_find_used, slot, beside))
    # As much code as there is room for.
    room, plain = _MOST_TEXT, dict[str, dict[str, Any]]()
    for name, record in records.found.items():
        kept = dict[str, str]()
        for where, text in record.code.items():
            if len(text) <= room:
                kept[where], room = text, room - len(text)
        plain[name] = {**asdict(record), "params": dict(record.params), "code": kept}
    return plain


def _list_slots(name: str, loader: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield name and object of what decides about the samples of a loader, and the dataset beside it."""
    if not isinstance(loader, DataLoader):
        yield name, loader, None
    for path, inner in find_loaders(loader).items():
        for slot in _SLOTS:
            value = getattr(inner, slot, None)
            if value is not None:
                place = ".".join(filter(None, (name, path, slot)))
                yield place, value, None if slot == "dataset" else inner.dataset


def _search(records: Records, end: object) -> None:
    """Read the nodes that an object is or uses; a list of any length is looked through."""
    for item in _list_ends(end):
        for _, used in walk_used(item, is_node):
            if is_node(used):
                records.visit(used)


def _list_ends(ends: object) -> Sequence[object]:
    """Return the items of a list, unless it is a node itself."""
    return ends if isinstance(ends, (list, tuple)) and not is_node(ends) else [ends]


def _find_used(value: object, beside: object, reading: NodeReading) -> Iterator[bytes]:
    """Yield the digests of the user's code that an object uses, without a dataset beside it."""
    for path, used in walk_used(value, lambda used: is_node(used) or used is beside):
        kind = type(used)
        if used is beside:
            continue
        if is_node(used) or isinstance(used, FunctionType):
            yield digest_parts(path, reading.digest(used, path))
        elif not is_library_class(kind) and kind.__module__ != "builtins":
            yield digest_parts(path, reading.digest(kind, path))
            # And the constants that it was made with.
            held = getattr(used, "__dict__", {})
            for name in inspect.signature(kind.__init__).parameters:
                if name in held and is_constant(held[name]):
                    yield reading.digest_named(name, held[name], f"{path}.{name}".lstrip("."))
