"""What follows a commit: differences if they were asked for, and upkeep.

``commit --delta`` also means what an ``add`` stored before, whole; that is encoded again here.

Many small packs are joined on the spot (``upkeep.gather``). Other upkeep is ``repack --auto`` in another process, if ``mvc.autorepack`` is true. The process is
detached, has low priority, and ends at once if another one is at work. What it does is safe beside
commits and may be killed, so no one has to wait for it.

The commit already stands: what fails here costs space and nothing else.
"""

from __future__ import annotations

import contextlib
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from mvc.errors import MvcError
from mvc.upkeep.gather import gather
from mvc.workspace.commits import summarise

if TYPE_CHECKING:
    from subprocess import Popen

    from mvc.workspace.commits import CommitResult
    from mvc.workspace.context import Context

AUTOREPACK_KEY = "mvc.autorepack"
_TRUE = frozenset({"true", "yes", "on", "1"})
_UPKEEP = ("repack", "--auto", "--quiet")

_running: list[Popen[bytes]] = []


def follow_commit(context: Context, result: CommitResult, *, delta: bool | None) -> CommitResult:
    """Do what follows a commit; return the commit's result, with the sizes as they are now."""
    with contextlib.suppress(MvcError):
        if delta:
            from mvc.operations.repack import repack_commit  # noqa: PLC0415  rarely needed

            repack_commit(context, result.commit)
            result = replace(result, written_bytes=_count_written(context, result))
    keep_up(context)
    return result


def _count_written(context: Context, result: CommitResult) -> int:
    history = context.history
    base = history.read_tree(result.parents[0]) if result.parents else {}
    tree = history.read_tree(result.commit)
    return summarise(context, result.commit, base, tree, 0.0, branch=result.branch).written_bytes


def keep_up(context: Context) -> None:
    """Join small files if there are many, and start a repack if that is switched on and due."""
    with contextlib.suppress(OSError, MvcError):  # the next commit tries again
        gather(context)
    start_upkeep(context)


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
    if (context.history.get_config(AUTOREPACK_KEY) or "").lower() not in _TRUE:
        return False
    from mvc.upkeep.repacked import is_due  # noqa: PLC0415  brings NumPy, needed rarely

    return is_due(context)
