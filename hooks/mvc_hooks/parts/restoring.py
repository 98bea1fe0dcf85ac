"""All parts of a run at once: captured, and given back bit by bit or not at all."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from mvc import ConflictError, MvcError
from mvc_hooks.parts.part import DETAILS, Entry, flatten_parts, list_places
from mvc_hooks.parts.tree import (
    ABSENT,
    Difference,
    edit_at,
    find_at,
    format_path,
    order_like,
    outline,
    pick_targets,
)
from mvc_hooks.parts.value import ValuePart

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from mvc_hooks.parts.part import Part
    from mvc_hooks.parts.sources import StateSource

_NAMED = 10


class InexactRestoreError(MvcError):
    """After a restore something live is not, bit for bit, what was stored."""

    kind = "inexact-restore"
    exit_code = 8


def capture_parts(parts: Mapping[str, Part]) -> dict[str, Any]:
    """Return the state of all parts, with their companions' under ``details``.

    Tensors are the live ones, not copies. Nothing is changed, no random number is drawn.
    """
    state: dict[str, Any] = {}
    for entry in list_places(parts):
        state = edit_at(state, entry.path, entry.part.capture())
    return state


def restore_parts(
    source: StateSource,
    parts: Mapping[str, Part],
    *,
    allow: Sequence[str] = (),
    leave: Collection[str] = (),
) -> dict[str, Any]:
    """Give a stored state back to the live parts, exactly; return name → value of plain values.

    Top-level names in ``leave`` stay as they are, here and in the stored state. ConflictError
    means that something is missing, extra, or of another type or shape, and nothing was touched.
    """
    parts = {name: part for name, part in parts.items() if name not in leave}
    captured, stored_outline = capture_parts(parts), source.outline()
    differences = list(find_differences(parts, outline(captured), stored_outline, leave))
    _refuse([one for one in differences if not is_allowed(one, allow)])
    stored = source.load(_lend(parts, captured, stored_outline))
    edited = _take_from(captured, stored, differences)  # what may differ stays as it is
    for entry in sorted(flatten_parts(parts), key=lambda entry: entry.part.order):
        value = find_at(edited, entry.path)
        if value is not ABSENT and not _is_kept(entry, differences):
            entry.part.restore(value)
    _check_exact(source, parts, stored, differences, leave)
    return {name: part.value for name, part in parts.items() if isinstance(part, ValuePart)}


def find_differences(
    parts: Mapping[str, Part],
    live: Mapping[str, Any],
    stored: Mapping[str, Any],
    leave: Collection[str] = (),
) -> Iterator[Difference]:
    """Yield every difference between two outlines that a restore cannot overcome."""
    for entry in list_places(parts):
        theirs = find_at(stored, entry.path)
        if theirs is not ABSENT:
            yield from entry.part.compare(find_at(live, entry.path), theirs, entry.path)
        elif entry.path[0] != DETAILS or entry.path[1] in stored:
            yield Difference(entry.path, "a part", None)
    for name in stored:
        if name not in parts and name != DETAILS and name not in leave:
            yield Difference((name,), None, "a part")


def is_allowed(difference: Difference, allow: Sequence[str]) -> bool:
    """Return whether a difference, or a container of it, matches a pattern."""
    path = format_path(difference.path)
    return any(fnmatchcase(path, one) or fnmatchcase(path, f"{one}.*") for one in allow)


def _refuse(differences: list[Difference]) -> None:
    if not differences:
        return
    path = format_path(differences[0].path)
    hint = f'nothing was changed; allow=["{path}"] keeps what is live'
    if len(differences[0].path) == 1 and differences[0].live is None:
        hint = f'nothing was changed; parts={{"{path}": ...}} passes it, allow=["{path}"] drops it'
    raise ConflictError(f"the run does not fit the stored state: {_list(differences)}", hint=hint)


def _list(found: Sequence[object]) -> str:
    more = [f"and {len(found) - _NAMED} more"] if len(found) > _NAMED else []
    return "; ".join([*map(str, found[:_NAMED]), *more])


def _lend(parts: Mapping[str, Part], captured: object, stored: object) -> dict[str, Any]:
    lent: dict[str, Any] = {}
    for entry in list_places(parts):
        theirs = find_at(stored, entry.path)
        if theirs is not ABSENT:
            targets = entry.part.targets(find_at(captured, entry.path))
            lent = edit_at(lent, entry.path, pick_targets(targets, theirs))
    return lent


def _take_from(side: Any, state: Any, differences: list[Difference]) -> Any:
    """Return a state with what another one has at every difference that was allowed."""
    for one in reversed(differences):
        state = edit_at(state, one.path, find_at(side, one.path))
    return state


def _is_kept(entry: Entry, differences: list[Difference]) -> bool:
    return any(entry.path[: len(one.path)] == one.path for one in differences)


def _check_exact(
    source: StateSource,
    parts: Mapping[str, Part],
    stored: Mapping[str, Any],
    differences: list[Difference],
    leave: Collection[str],
) -> None:
    """Capture everything again and compare it; what was allowed to differ does not count."""
    state = _take_from(stored, capture_parts(parts), differences)
    for name in leave:
        state = edit_at(state, (name,), stored.get(name, ABSENT))
    details = stored.get(DETAILS, {})
    for name in details.keys() - parts.keys():
        state = edit_at(state, (DETAILS, name), details[name])
    if not details and DETAILS not in stored:
        state.pop(DETAILS, None)
    found = source.check(order_like(state, stored))
    if found:
        raise InexactRestoreError(
            f"what was restored is not what was stored: {_list(found)}",
            hint="an object whose load_state_dict loses something is the usual reason",
        )
