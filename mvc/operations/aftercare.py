"""What follows a commit: differences if they were asked for, and upkeep.

``commit --delta`` also means what an ``add`` stored before, whole; that is encoded again here.

Many small packs and loose objects are *gathered* on the spot, so that a long history lies in few files:
as do the levels of a log-structured store, packs of about the same length become one. Each byte is
written once more per class of length, and there are never many packs of a class. What is joined is
every record as it is, so nothing has to know what history needs, and the work of one call is bounded.
It is done alone, under the sweep lock, but only if nobody else writes at that moment. New packs are
durable before old ones go, and readers look for their chunks again, as after any sweep. A kill in
between leaves some chunks twice; the next gathering that meets them keeps one.

Other upkeep is ``repack --auto`` in another process, if ``mvc.autorepack`` is true. The process is
detached, has low priority, and ends at once if another one is at work. What it does is safe beside
commits and may be killed, so no one has to wait for it.

If a store has the content (``only_store``), the commit is pushed there first, and what is too much here goes last.

The commit already stands: what fails here costs space and nothing else, and a push that fails is told.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

from mvc.chunkstore.listing import find_crowd
from mvc.errors import MvcError
from mvc.history.config import is_true
from mvc.history.names import NOTES
from mvc.history.object_gather import (
    find_loose,
    find_short_packs,
    gather_objects,
    has_many_loose,
)
from mvc.workspace.commits import CommitResult, summarise
from mvc.workspace.context import STORE, Context

if TYPE_CHECKING:
    from subprocess import Popen

    from mvc.ids import GitId

AUTOREPACK_KEY = "mvc.autorepack"
_UPKEEP = ("repack", "--auto", "--quiet")

_Verb = TypeVar("_Verb", bound="Callable[..., CommitResult]")

_running: list[Popen[bytes]] = []


def keeps_up(verb: _Verb) -> _Verb:
    """Let a verb that commits be followed by upkeep, which changes sizes in its result."""

    @wraps(verb)
    def run(context: Context, /, *args: Any, **options: Any) -> CommitResult:
        return keep_up(context, verb(context, *args, **options))

    return run  # type: ignore[return-value]  # it has the same signature


def stores_deltas(verb: _Verb) -> _Verb:
    """Let ``delta`` of a verb that commits also mean what an earlier ``add`` stored whole."""

    @wraps(verb)
    def run(context: Context, /, *args: Any, **options: Any) -> CommitResult:
        result: CommitResult = verb(context, *args, **options)
        if not options.get("delta"):
            return result
        with contextlib.suppress(MvcError):
            from mvc.operations.repack import repack_commit  # noqa: PLC0415  rarely needed

            repack_commit(context, result.commit)
            read_tree = context.history.read_tree
            base = read_tree(result.parents[0]) if result.parents else {}
            again = summarise(
                context, result.commit, base, read_tree(result.commit), 0.0, branch=result.branch
            )
            result = replace(result, written_bytes=again.written_bytes)
        return result

    return run  # type: ignore[return-value]  # it has the same signature


def keep_up(context: Context, result: CommitResult) -> CommitResult:
    """Push a commit if a store has the content; return the result, with why that failed if it did.

    Small files are joined if there are many, and a repack starts if that is switched on and due.
    """
    if context.history.config.get(STORE) is not None:
        from mvc.operations.only_store import send_commit  # noqa: PLC0415  few have one

        result = replace(result, unsent=send_commit(context, result.branch))
    with contextlib.suppress(OSError, MvcError):  # the next commit tries again
        gather(context, result.commit)
    start_upkeep(context)
    return result


def tidy_up(context: Context, newest: GitId) -> None:
    """Do after a commit of several writers what could not be done while they held the sweep lock.

    That is to join small files, and to remove what is too much here if a store has it.
    """
    with contextlib.suppress(OSError, MvcError):  # the next commit tries again
        gather(context, newest)
        store = context.history.config.get(STORE)
        if store is not None:
            from mvc.operations.only_store import trim  # noqa: PLC0415  few have one

            trim(context, store)


def gather(context: Context, newest: GitId) -> None:
    """Join small packs and loose objects if there are many; ``newest`` is a commit made just now.

    ConflictError: somebody else is writing right now.
    """
    history = context.history
    is_crowded = has_many_loose(history.objects, newest)
    if not (is_crowded or find_short_packs(history.objects) or find_crowd(context.list_packs())):
        return
    from mvc.upkeep.sweep import upkeep_lock  # noqa: PLC0415  brings NumPy, needed rarely

    # In this order, so that a gc or repack that begins now waits and does not fail.
    with history.sweep_alone(wait=False), upkeep_lock(context):
        due = find_crowd(context.list_packs())
        if due:
            context.here.gather(due)
        starts = [*history.list_refs(NOTES).values(), newest]
        loose = find_loose(history.objects, starts) if is_crowded else []
        gather_objects(history, loose, find_short_packs(history.objects))


def start_upkeep(context: Context) -> bool:
    """Start a repack in the background if that is switched on and due; return whether it began."""
    _running[:] = [process for process in _running if process.poll() is None]
    try:
        if _running or not sys.executable or not _is_wanted(context):
            return False
        import subprocess  # noqa: PLC0415  rarely needed

        from mvc.interpreter import module_command  # noqa: PLC0415

        process = subprocess.Popen(  # noqa: S603  our own command, no shell
            module_command("mvc", *_UPKEEP),
            cwd=context.worktree,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except (OSError, MvcError):
        return False  # the next commit tries again
    _running.append(process)
    return True


def _is_wanted(context: Context) -> bool:
    wanted = context.history.config.get(AUTOREPACK_KEY)
    if wanted is None:
        return False
    if not is_true(wanted):
        return False
    from mvc.upkeep.repacked import is_due  # noqa: PLC0415  brings NumPy, needed rarely

    return is_due(context)
