"""What is under way: a merge, cherry-pick or revert that waits for a person, as Git marks it.

``MERGE_HEAD``, ``CHERRY_PICK_HEAD`` or ``REVERT_HEAD`` name the commits, ``MERGE_MSG`` the message to
be. A transition writes and removes them (``marks``) together with index, files and HEAD.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from mvc.errors import ConflictError, translate_os_errors
from mvc.fs import open_file
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
TODO = "sequencer/todo"
_SHOWN = 5
_MAX_MESSAGE_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Pending:
    """What is under way.

    Attributes:
        kind: ``merge``, ``cherry-pick`` or ``revert``.
        heads: the commits that are merged, picked or reverted.
        message: the message that the commit will have.
        rest: what a sequence of commits has left to do after this one, oldest first.
    """

    kind: Kind
    heads: tuple[GitId, ...]
    message: str
    rest: tuple[GitId, ...] = ()


def find_pending(context: Context) -> Pending | None:
    """Return what is under way, or None."""
    refs = context.history.refs
    merged = refs.merge_heads()
    for kind, name in HEADS.items():
        one = None if kind == "merge" else refs.find(name)
        heads = merged if kind == "merge" else [] if one is None else [one]
        if heads:
            return Pending(kind, tuple(heads), _read_message(context), _read_rest(context))
    return None


def _read_message(context: Context) -> str:
    """Return the message to be, without the lines that are notes."""
    lines = _read(context, MESSAGE).split("\n")
    return "\n".join(line for line in lines if not line.startswith("#")).strip("\n")


def _read_rest(context: Context) -> tuple[GitId, ...]:
    lines = _read(context, TODO).splitlines()[1:]  # the first is under way
    words = [line.split() for line in lines]
    found = [context.history.find_commit(word[1]) for word in words if word[1:]]
    return tuple(one for one in found if one is not None)


def _read(context: Context, name: str) -> str:
    path = context.git_dir / name
    try:
        with translate_os_errors(f"read {path}"), open_file(path) as file:
            return file.read(_MAX_MESSAGE_BYTES).decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        return ""


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
        shown = ", ".join(map(repr, list(index.unmerged)[:_SHOWN]))
        more = len(index.unmerged) - _SHOWN
        raise ConflictError(
            f"not yet merged: {shown}{f' and {more:,} more' if more > 0 else ''}",
            hint='"mvc status" says how to go on, or back',
        )
