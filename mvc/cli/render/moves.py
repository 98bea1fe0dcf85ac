"""What checkout and its relatives say of where HEAD went and which files changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.cli.output import Output, printable
from mvc.cli.render.text import count_text, short_id

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
        out.line(f"Previous HEAD position was {commit_line(repo, out, before.commit)}")
    if result.branch is None:
        out.line(f"HEAD is now at {commit_line(repo, out, result.commit)}")
        if before.branch is not None:
            out.line(
                '(detached: commits made here are on no branch; "mvc switch -c NAME" makes one)'
            )
    else:
        verb = "Switched to a new branch" if is_new else "Switched to branch"
        verb = "Already on" if result.branch == before.branch else verb
        out.line(f"{verb} '{printable(result.branch)}'")
    counts = counts_text(result)
    if counts:
        out.line(counts)


def commit_line(repo: Repo, out: Output, commit: str | None) -> str:
    """Return a commit's short id and subject."""
    subject = repo.show(commit).info.subject if commit is not None else ""
    return f"{out.style(short_id(commit), 'yellow')} {printable(subject)}".rstrip()


def counts_text(result: CheckoutResult | UndoResult) -> str:
    """Return how many files were written and removed, or nothing."""
    parts = []
    if result.written:
        parts.append(f"{count_text(len(result.written), 'file')} written")
    if result.removed:
        parts.append(f"{count_text(len(result.removed), 'file')} removed")
    return ", ".join(parts)


def write_restored(out: Output, result: CheckoutResult, origin: str) -> None:
    """Write how many paths were brought back, and from where."""
    out.line(f"Updated {count_text(len(result.written), 'path')} from {origin}")
