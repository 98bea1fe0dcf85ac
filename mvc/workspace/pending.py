"""What is under way: a merge, cherry-pick or revert that waits for a person, as Git marks it.

``MERGE_HEAD``, ``CHERRY_PICK_HEAD`` or ``REVERT_HEAD`` name the commits, ``MERGE_MSG`` the message to
be. A transition writes and removes them (``marks``) together with index, files and HEAD.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from mvc.errors import ConflictError, translate_os_errors
from mvc.fs import find_stat, open_file
from mvc.history.refs import MERGE_HEAD

if TYPE_CHECKING:
    from mvc.history.values import Index
    from mvc.ids import GitId
    from mvc.workspace.context import Context


Kind: TypeAlias = Literal["merge", "cherry-pick", "revert"]
HEADS: dict[Kind, str] = {
    "merge": MERGE_HEAD,
    "cherry-pick": "CHERRY_PICK_HEAD",
    "revert": "REVERT_HEAD",
}
MESSAGE = "MERGE_MSG"
BISECTION = "BISECT_START"
TODO, ORIGIN, OPTIONS = "sequencer/todo", "sequencer/head", "sequencer/opts"
STEPS: dict[Kind, str] = {"merge": "merge", "cherry-pick": "pick", "revert": "revert"}
_SHOWN = 5
_MAX_MESSAGE_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Pending:
    """What is under way."""

    kind: Kind  # ``merge``, ``cherry-pick`` or ``revert``
    heads: tuple[GitId, ...]  # the commits that are merged, picked or reverted
    message: str  # the message that the commit will have
    # what a sequence of commits has left to do after this one, oldest first
    rest: tuple[GitId, ...] = ()
    origin: GitId | None = None  # where HEAD was before the sequence, or None if there is none
    options: Mapping[str, str] = field(default_factory=dict)  # of the sequence, for the rest of it


def find_pending(context: Context) -> Pending | None:
    """Return what is under way, or None."""
    refs = context.history.refs
    merged = refs.merge_heads()
    for kind, name in HEADS.items():
        one = None if kind == "merge" else refs.find(name)
        heads = merged if kind == "merge" else [] if one is None else [one]
        if heads:
            return _read_pending(context, kind, heads)
    verb = _read(context, TODO).partition(" ")[0]  # between two commits of a sequence
    kinds = [kind for kind, step in STEPS.items() if step == verb]
    return _read_pending(context, kinds[0], []) if kinds else None


def _read_pending(context: Context, kind: Kind, heads: list[GitId]) -> Pending:
    lines = [line.split() for line in _read(context, TODO).splitlines()]
    named = [context.history.find_commit(words[1]) for words in lines if words[1:]]
    rest = tuple(one for one in named[1 if heads else 0 :] if one is not None)
    options = (line.strip().partition(" = ") for line in _read(context, OPTIONS).splitlines())
    # Of the message to be, the lines that are notes go.
    message = [line for line in _read(context, MESSAGE).split("\n") if not line.startswith("#")]
    return Pending(
        kind,
        tuple(heads),
        "\n".join(message).strip("\n"),
        rest if kind != "merge" else (),
        context.history.find_commit(_read(context, ORIGIN).strip() or "-"),
        {key: value for key, equals, value in options if equals},
    )


def _read(context: Context, name: str) -> str:
    path = context.git_dir / name
    try:
        with translate_os_errors(f"read {path}"), open_file(path) as file:
            return file.read(_MAX_MESSAGE_BYTES).decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        return ""


def is_marked(context: Context) -> bool:
    """Return whether something is marked as under way, even if the marks are damaged."""
    return any(find_stat(context.git_dir / name) for name in (*HEADS.values(), TODO))


def is_bisecting(context: Context) -> bool:
    """Return whether a bisection is going on."""
    return find_stat(context.git_dir / BISECTION) is not None


def check_nothing_pending(context: Context) -> None:
    """Check that nothing is under way."""
    pending = find_pending(context)
    if pending is not None:
        raise ConflictError(
            f"a {pending.kind} is under way",
            hint=f'"mvc {pending.kind} --continue" finishes it, '
            f'"mvc {pending.kind} --abort" gives it up',
        )


def check_decided(index: Index) -> None:
    """Check that no merge has left a path undecided."""
    if index.unmerged:
        from mvc.workspace.pathspec import list_paths  # noqa: PLC0415  few commands need it

        raise ConflictError(
            f"not yet merged: {list_paths(list(index.unmerged), _SHOWN)}",
            hint='"mvc status" shows how to continue or go back',
        )
