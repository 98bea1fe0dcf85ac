"""What checkout, switch, restore, reset and undo say of what they did."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.cli.output import Output, printable
from mvc.cli.render import count_text, short_id
from mvc.cli.session import shown_path

if TYPE_CHECKING:
    from mvc.history.values import Head
    from mvc.operations.undo import UndoResult
    from mvc.repo import Repo
    from mvc.workspace.checkout_plan import CheckoutResult


def result_fields(result: CheckoutResult) -> dict[str, object]:
    """Return what ``checkout --json`` and its sisters print."""
    return {
        "commit": result.commit,
        "branch": result.branch,
        "written": result.written,
        "removed": result.removed,
    }


def write_move(
    repo: Repo, out: Output, before: Head, result: CheckoutResult, *, is_new: bool
) -> None:
    """Write where HEAD went from ``before``."""
    if before.branch is None and before.commit not in (None, result.commit):
        out.line(f"Previous HEAD position was {_commit_line(repo, out, before.commit)}")
    if result.branch is None:
        out.line(f"HEAD is now at {_commit_line(repo, out, result.commit)}")
        if before.branch is not None:
            out.line(
                '(detached: commits made here are on no branch; "mvc switch -c NAME" makes one)'
            )
    else:
        verb = "Switched to a new branch" if is_new else "Switched to branch"
        verb = "Already on" if result.branch == before.branch else verb
        out.line(f"{verb} '{printable(result.branch)}'")
    counts = _counts(result)
    if counts:
        out.line(counts)


def _commit_line(repo: Repo, out: Output, commit: str | None) -> str:
    subject = repo.show(commit).info.subject if commit is not None else ""
    return f"{out.style(short_id(commit), 'yellow')} {printable(subject)}".rstrip()


def _counts(result: CheckoutResult | UndoResult) -> str:
    parts = []
    if result.written:
        parts.append(f"{count_text(len(result.written), 'file')} written")
    if result.removed:
        parts.append(f"{count_text(len(result.removed), 'file')} removed")
    return ", ".join(parts)


def write_restored(out: Output, result: CheckoutResult, origin: str) -> None:
    """Write how many paths were brought back, and from where."""
    out.line(f"Updated {count_text(len(result.written), 'path')} from {origin}")


def write_reset(repo: Repo, out: Output, result: CheckoutResult, *, mode: str) -> None:
    """Write where the branch is after a hard reset, what is unstaged after a mixed one."""
    if mode == "hard":
        out.line(f"HEAD is now at {_commit_line(repo, out, result.commit)}")
    if mode != "mixed":
        return
    changed = [file for file in repo.status(untracked=False).files if file.worktree != "unmodified"]
    if changed:
        out.line("Unstaged changes after reset:")
        out.lines(f"{file.code[1]}\t{printable(shown_path(repo, file.path))}" for file in changed)


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
        position = f"at {_commit_line(repo, out, result.commit)}"
    out.line(f"{place} {'would be' if dry_run else 'is now'} {position}")
    counts = _counts(result)
    if counts:
        out.line(counts)
    if result.kind == "commit" and not redo:
        out.line(
            f"Index and files {'would stay' if dry_run else 'are'} as they were; "
            f"what was committed is {short_id(result.left)}"
        )
