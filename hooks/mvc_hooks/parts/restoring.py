"""All parts of a run at once: captured, and given back bit by bit or not at all.

A state comes back from a ``StateSource``: a commit of a repository, an image, or values in memory.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

from mvc import ConflictError, MvcError, NotFoundError
from mvc.training import RunStore, compare_image, outline_image, read_image
from mvc_hooks.parts.part import DETAILS, Entry, Part, flatten_parts, list_places
from mvc_hooks.parts.rng import keep_rng
from mvc_hooks.parts.shards import blank_shards
from mvc_hooks.parts.tree import (
    ABSENT,
    Difference,
    edit_at,
    find_at,
    find_changes,
    format_path,
    map_leaves,
    map_tensors,
    order_like,
    outline,
    pick_targets,
)
from mvc_hooks.parts.value import ValuePart

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from mvc import Repo

State: TypeAlias = "Mapping[str, Any]"
_NAMED = 10


def _lacks_folders(name: str) -> StateSource:
    raise NotFoundError(f"there is no {name}")


@dataclass(frozen=True, slots=True, eq=False)
class StateSource:
    """A state that can be given back to a live run."""

    # Returns its structure, with ``mvc.training.ArrayOutline`` in place of every array.
    outline: Callable[[], dict[str, Any]]
    # Returns the state, with the live tensors that it is given in it, filled in place. They are
    # nested like the state, and may be less than it, never more.
    load: Callable[[State], dict[str, Any]]
    # Returns a line for every difference of a live state; none if it is the same bit for bit.
    check: Callable[[State], tuple[str, ...]]
    is_own: bool = False  # whether it holds what this rank alone had
    # As ``outline``, and each array has the identity of its bytes.
    identify: Callable[[], dict[str, Any]] = dict
    # Returns the state of a folder of the same commit.
    folder: Callable[[str], StateSource] = _lacks_folders


def from_commit(repo: Repo, revision: str, folder: str | None = None) -> StateSource:
    """Return the state of a commit, or of a folder of it; every byte is hashed as it is read, or compared."""
    return StateSource(
        outline=partial(RunStore(repo).outline_state, revision, folder=folder),
        load=lambda into: repo.load_state(revision, into=into, folder=folder),
        check=lambda state: repo.verify_state(state, revision, folder=folder).differences,
        identify=partial(RunStore(repo).outline_state, revision, folder=folder, with_content=True),
        folder=partial(from_commit, repo, revision),
    )


def from_image(files: Mapping[str, memoryview]) -> StateSource:
    """Return the state of an image, which is name → bytes of its files."""
    return StateSource(
        outline=partial(outline_image, files),
        load=lambda into: read_image(files, into=into),
        check=lambda state: compare_image(state, files),
        is_own=True,
    )


def from_values(values: State) -> StateSource:
    """Return a state in memory. It stays the caller's: nothing live will share memory with it."""
    return StateSource(
        outline=partial(outline, values),
        load=partial(map_leaves, dict(values), _copy_leaf),
        check=lambda state: tuple(
            f"{format_path(path)} differs" for path, _, _ in find_changes(state, values)
        ),
    )


def _copy_leaf(stored: Any, live: Any) -> Any:
    if isinstance(stored, np.ndarray):
        return stored.copy()
    if not isinstance(stored, torch.Tensor):
        return stored
    if not isinstance(live, torch.Tensor):
        return stored.detach().clone()
    with torch.no_grad():
        live.detach().copy_(stored)
    return live


class InexactRestoreError(MvcError):
    """After a restore something live is not, bit for bit, what was stored."""

    kind = "inexact-restore"
    exit_code = 8


class MisfitError(ConflictError):
    """The live parts and a stored state have another form; nothing was touched."""


def capture_parts(parts: Mapping[str, Part]) -> dict[str, Any]:
    """Return the state of all parts, with their companions' under ``details``.

    Tensors are the live ones, not copies. Nothing is changed, no random number is drawn.
    """
    state: dict[str, Any] = {}
    for entry in list_places(parts):
        state = edit_at(state, entry.path, entry.part.capture())
    return state


@torch.inference_mode(mode=False)  # tensors made in it could never be trained
def restore_parts(
    source: StateSource,
    parts: Mapping[str, Part],
    *,
    allow: Sequence[str] = (),
    leave: Collection[str] = (),
) -> dict[str, Any]:
    """Give a stored state back to the live parts, exactly; return name → value of plain values.

    Top-level names in ``leave`` stay as they are, here and in the stored state. ConflictError
    means that something is missing, extra, or of another type or shape, and nothing was touched;
    objects that bring their own way to load decide themselves about types and shapes.
    """
    parts = {name: part for name, part in parts.items() if name not in leave}
    captured, stored_outline = capture_parts(parts), source.outline()
    found_differences = list(find_differences(parts, outline(captured), stored_outline, leave))
    differences = [difference for difference in found_differences if is_allowed(difference, allow)]
    kept = {difference.path for difference in differences}
    differences += [
        Difference(entry.details, None, None)
        for entry in flatten_parts(parts)
        if entry.path in kept and entry.part.companion is not None
    ]
    refused = [difference for difference in found_differences if not is_allowed(difference, allow)]
    if not all(difference.may_fit for difference in refused):
        raise _refuse(refused)
    load = source.load
    if refused:
        # Once more in memory, as nothing live may be filled yet; of DTensors what is here.
        values = source.load(_lend_blank(parts, captured, stored_outline))
        _try_to_fit(_take_from(captured, values, differences), parts, refused)
        captured, load = capture_parts(parts), from_values(values).load
    stored = load(_lend(parts, captured, stored_outline))
    edited = _take_from(captured, stored, differences)  # what may differ stays as it is
    for entry in sorted(flatten_parts(parts), key=lambda entry: entry.part.order):
        value = find_at(edited, entry.path)
        is_kept = any(
            entry.path[: len(difference.path)] == difference.path for difference in differences
        )
        if value is not ABSENT and not is_kept:
            entry.part.restore(value)
    _check_exact(source, parts, stored, differences, leave)
    return {name: part.value for name, part in parts.items() if isinstance(part, ValuePart)}


def find_differences(
    parts: Mapping[str, Part],
    live: Mapping[str, Any],
    stored: Mapping[str, Any],
    leave: Collection[str] = (),
) -> Iterator[Difference]:
    """Yield every difference between two outlines that a restore cannot overcome, the outermost alone."""
    outermost = {difference.path: difference for difference in _compare_all(parts, live, stored)}
    for path, difference in outermost.items():
        if not any(path[:length] in outermost for length in range(1, len(path))):
            yield difference
    for name in stored:
        if name not in parts and name != DETAILS and name not in leave:
            yield Difference((name,), None, "a part")


def _compare_all(
    parts: Mapping[str, Part], live: Mapping[str, Any], stored: Mapping[str, Any]
) -> Iterator[Difference]:
    owners = {entry.details: entry.path for entry in flatten_parts(parts)}
    for entry in list_places(parts):
        theirs = find_at(stored, entry.path)
        if theirs is not ABSENT:
            for difference in entry.part.compare(find_at(live, entry.path), theirs, entry.path):
                # What a companion says of itself is meant of its part.
                yield replace(difference, path=owners.get(difference.path, difference.path))
        elif entry.path[0] != DETAILS or entry.path[1] in stored:
            yield Difference(entry.path, "a part", None)


def is_allowed(difference: Difference, allow: Sequence[str]) -> bool:
    """Return whether a difference, or a container of it, matches a pattern."""
    path = format_path(difference.path)
    return any(
        fnmatchcase(text, candidate)
        for pattern in allow
        for text, candidate in ((path, pattern), (path, f"{pattern}.*"), (f"{path}.", pattern))
    )


def _refuse(
    differences: list[Difference], why: str = "", lost: Sequence[str] = ()
) -> ConflictError:
    differences = sorted(
        differences, key=lambda difference: len(difference.path) > 1
    )  # whole parts first
    path = format_path(differences[0].path)
    whole = [difference for difference in differences if len(difference.path) == 1]
    is_new = all(difference.stored is None for difference in differences)
    shown = differences if is_new else whole or differences[:1]
    names = ", ".join(f'"{format_path(difference.path)}"' for difference in shown[:_NAMED])
    if lost:
        hint = f"{_list(lost)} could not be undone: start the run again"
    elif is_new:
        hint = f"nothing was changed; allow=[{names}] keeps what is live"
    elif len(differences[0].path) == 1 and differences[0].live is None:
        hint = (
            f'nothing was changed; parts={{"{path}": ...}} passes it, allow=[{names}] drops what is '
            "stored of it"
        )
    else:
        hint = (
            "nothing was changed; make the run as it was when it was committed "
            f"(allow=[{names}] would drop what is stored there)"
        )
    kind = ConflictError if lost else MisfitError
    return kind(f"the run does not fit the stored state: {_list(differences)}{why}", hint=hint)


def _try_to_fit(
    stored: Mapping[str, Any], parts: Mapping[str, Part], differences: list[Difference]
) -> None:
    """Let the parts that decide about differences take their state; if one cannot, all stay as they are."""
    entries = _find_deciding(parts, differences)
    with keep_rng():
        before: dict[str, Any] = {}
        for entry in entries:
            state = map_tensors(entry.part.capture(), lambda tensor: tensor.detach().cpu().clone())
            before = edit_at(before, entry.path, state)
        holds = [entry.part.hold(find_at(before, entry.path)) for entry in entries]
        try:
            for entry in entries:
                value = find_at(stored, entry.path)
                if value is not ABSENT:
                    entry.part.restore(map_tensors(value, torch.clone))
            inexact = _list_changes(entries, stored)
            why = f", and not exact: {_list(inexact)}" if inexact else ""
        except Exception as error:  # noqa: BLE001  whatever the user's own method raises
            why = f": {getattr(error, 'message', error)}"  # without the hint of an error of mvc
        if not why:
            return
        for take_back in holds:
            with contextlib.suppress(Exception):  # what did not load may not load this either
                take_back()
    raise _refuse(differences, f"; it was tried{why}", _list_changes(entries, before))


def _list_changes(entries: list[Entry], state: Mapping[str, Any]) -> list[str]:
    """Return the paths at which live parts are not what a state has, as far as it has them."""
    return [
        format_path((*entry.path, *path))
        for entry in entries
        if find_at(state, entry.path) is not ABSENT
        for path, *_ in find_changes(entry.part.capture(), find_at(state, entry.path))
    ]


def _find_deciding(parts: Mapping[str, Part], differences: list[Difference]) -> list[Entry]:
    """Return the parts that differences are in, in their order, each after its companion."""
    entries = flatten_parts(parts)
    names = {
        format_path(entry.path)
        for entry in entries
        for difference in differences
        if difference.path[: len(entry.path)] == entry.path
    }
    names |= {f"{DETAILS}.{name}" for name in names}
    deciding = [entry for entry in entries if format_path(entry.path) in names]
    return sorted(deciding, key=lambda entry: (entry.part.order, entry.path[0] != DETAILS))


def _list(items: Sequence[object]) -> str:
    more = [f"and {len(items) - _NAMED} more"] if len(items) > _NAMED else []
    return "; ".join([*map(str, items[:_NAMED]), *more])


def _lend(parts: Mapping[str, Part], captured: object, stored: object) -> dict[str, Any]:
    lent: dict[str, Any] = {}
    for entry in list_places(parts):
        theirs = find_at(stored, entry.path)
        if theirs is not ABSENT:
            targets = entry.part.targets(find_at(captured, entry.path), theirs)
            lent = edit_at(lent, entry.path, pick_targets(targets, theirs))
    return lent


def _lend_blank(parts: Mapping[str, Part], captured: object, stored: object) -> dict[str, Any]:
    """Return new DTensors for those that parts lend."""
    lent: dict[str, Any] = {}
    for entry in list_places(parts):
        theirs, mine = (find_at(side, entry.path) for side in (stored, captured))
        if theirs is not ABSENT:
            blank = blank_shards(entry.part.targets(mine, theirs), theirs)
            lent = edit_at(lent, entry.path, blank)
    return lent


def _take_from(side: Any, state: Any, differences: list[Difference]) -> Any:
    """Return a state with what another one has at every difference that was allowed."""
    for difference in reversed(differences):
        state = edit_at(state, difference.path, find_at(side, difference.path))
    return state


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
    inexact = source.check(order_like(state, stored))
    if inexact:
        raise InexactRestoreError(
            f"what was restored is not what was stored: {_list(inexact)}",
            hint="its load_state_dict does not keep what it is given (torch's optimizers cast state to "
            "the type of the parameters): correct it, or pass what it wraps as a part instead",
        )
