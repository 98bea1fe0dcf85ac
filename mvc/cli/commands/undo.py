"""Take back the last move of HEAD or its branch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.cli.options import DRY_RUN, FORCE, QUIET_PROGRESS_JSON
from mvc.cli.output import Output, Shown, pick, printable
from mvc.cli.parameters import flag
from mvc.cli.progress import byte_progress
from mvc.cli.render.moves import commit_line, write_counts
from mvc.cli.render.text import short_id
from mvc.cli.session import open_repo

if TYPE_CHECKING:
    from mvc.operations.undo import UndoResult
    from mvc.repo import Repo


def undo(
    redo: bool = flag("--redo", "Redo what the last undo took back."),
    dry_run: bool = DRY_RUN,
    force: bool = FORCE,
    shown: Shown = QUIET_PROGRESS_JSON,
) -> None:
    """Take back the last commit, amend, merge, switch or reset.

    After a commit or amend, the branch moves back; files and index stay as they are, so the work is
    staged again. After a switch, HEAD goes back to where it was. After a reset or merge, the
    branch, the index and the files return.

    Each further "mvc undo" goes one step further back; "mvc undo --redo" returns. Changed files
    stop an undo that would overwrite them, unless -f is given. What was only staged, or never
    added, is not in the history and cannot be brought back. Tags stay where they are; after a "mvc
    tag -f", undo says how to move one back.
    """
    repo = open_repo()
    with byte_progress("undoing", wanted=shown.progress):
        result = repo.undo(redo=redo, force=force, dry_run=dry_run)
    facts = pick(
        result,
        "action kind branch commit left_branch left_commit=left written removed "
        "diverged_branch tags",
    )
    fields = {**facts, "dry_run": dry_run}
    shown.answer(fields, _write_undo, repo, result, redo=redo, dry_run=dry_run)


def _write_undo(out: Output, repo: Repo, result: UndoResult, *, redo: bool, dry_run: bool) -> None:
    verbs = {
        (False, False): "Took back",
        (False, True): "Would take back",
        (True, False): "Redid",
        (True, True): "Would redo",
    }
    out.line(f"{verbs[redo, dry_run]}: {printable(result.action)}")
    place = "HEAD" if result.branch is None else f"Branch '{printable(result.branch)}'"
    position = "without a commit"
    if result.commit is not None:
        position = f"at {commit_line(repo, out, result.commit)}"
    out.line(f"{place} {'would be' if dry_run else 'is now'} {position}")
    write_counts(out, result, dry_run=dry_run)
    for name in map(printable, result.tags):
        out.line(
            f"Tag '{name}' was not moved back: \"mvc tag -f {name} {name}@{{1}}\" undoes its last move"
        )
    if result.diverged_branch is not None:
        verb = (
            "keeps the abandoned commits again" if redo else "and the note of the rollback are gone"
        )
        out.line(f"Branch '{printable(result.diverged_branch)}' {verb}")
    if result.kind == "commit" and not redo:
        out.line(
            f"Index and files {'would stay' if dry_run else 'are'} as they were; "
            f"the commit taken back is {short_id(result.left)}"
        )
