"""Take back the last commit, switch or reset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from mvc.cli.options import Force, Json, Quiet, ShowProgress
from mvc.cli.output import Output, printable, stdout, write_json
from mvc.cli.progress import byte_progress
from mvc.cli.render.moves import commit_line, counts_text
from mvc.cli.render.text import short_id
from mvc.cli.session import open_repo

if TYPE_CHECKING:
    from mvc.operations.undo import UndoResult
    from mvc.repo import Repo


def undo(
    redo: Annotated[
        bool, typer.Option("--redo", help="Do again what the last undo took back.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("-n", "--dry-run", help="Only say what would be taken back.")
    ] = False,
    force: Force = False,
    quiet: Quiet = False,
    progress: ShowProgress = True,
    as_json: Json = False,
) -> None:
    """Take back the last commit, amend, merge, switch or reset.

    After a commit, amend or merge the branch moves back; files and index stay as they are, so the
    work is staged again. After a switch HEAD goes back to where it was. After a reset the branch,
    the index and the files return.

    "mvc undo" again steps further back, and "mvc undo --redo" returns. Changed files stop an undo
    that would overwrite them, unless -f is given. What is staged only, or was never added, is in no
    history and cannot be brought back.
    """
    repo = open_repo(writes=True)
    with byte_progress("undoing", wanted=progress and not quiet) as bar:
        result = repo.undo(redo=redo, force=force, dry_run=dry_run, progress=bar)
    if as_json:
        write_json({**undo_fields(result), "dry_run": dry_run})
    elif not quiet:
        write_undo(repo, stdout(), result, redo=redo, dry_run=dry_run)


def undo_fields(result: UndoResult) -> dict[str, object]:
    """Return what ``undo --json`` prints."""
    return {
        "action": result.action,
        "kind": result.kind,
        "branch": result.branch,
        "commit": result.commit,
        "left_branch": result.left_branch,
        "left_commit": result.left,
        "written": result.written,
        "removed": result.removed,
    }


def write_undo(repo: Repo, out: Output, result: UndoResult, *, redo: bool, dry_run: bool) -> None:
    """Write what was taken back (or done again), and where HEAD is now."""
    verbs = {
        (False, False): "Took back",
        (False, True): "Would take back",
        (True, False): "Did again",
        (True, True): "Would do again",
    }
    out.line(f"{verbs[redo, dry_run]}: {printable(result.action)}")
    place = "HEAD" if result.branch is None else f"Branch '{printable(result.branch)}'"
    position = "without a commit"
    if result.commit is not None:
        position = f"at {commit_line(repo, out, result.commit)}"
    out.line(f"{place} {'would be' if dry_run else 'is now'} {position}")
    counts = counts_text(result)
    if counts:
        out.line(counts)
    if result.kind == "commit" and not redo:
        out.line(
            f"Index and files {'would stay' if dry_run else 'are'} as they were; "
            f"what was committed is {short_id(result.left)}"
        )
