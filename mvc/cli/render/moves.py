"""Where HEAD went and which files changed: checkout, switch, restore, reset, undo, rollback."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.cli.output import Output, pick, printable
from mvc.cli.render.remotes import upstream_line
from mvc.cli.render.text import count_text, short_id

if TYPE_CHECKING:
    from mvc.history.values import Head
    from mvc.operations.merge import MergeResult
    from mvc.operations.rollback import RollbackResult
    from mvc.operations.undo import UndoResult
    from mvc.repo import Repo
    from mvc.workspace.checkout_plan import CheckoutResult


def result_fields(result: CheckoutResult) -> dict[str, object]:
    """Return a checkout for ``--json``."""
    return pick(result, "commit branch written removed")


def write_move(
    out: Output, repo: Repo, before: Head, result: CheckoutResult, *, is_new: bool
) -> None:
    """Write where HEAD went from ``before``."""
    if before.branch is None and before.commit not in (None, result.commit):
        out.line(f"Previous HEAD position was {commit_line(repo, out, before.commit)}")
    if result.branch is None:
        out.line(f"HEAD is now at {commit_line(repo, out, result.commit)}")
        if before.branch is not None:
            out.line(
                '(detached: commits made here belong to no branch; "mvc switch -c NAME" adds one)'
            )
    else:
        verb = "Switched to a new branch" if is_new else "Switched to branch"
        verb = "Already on" if result.branch == before.branch else verb
        out.line(f"{verb} '{printable(result.branch)}'")
        upstream = repo.remotes.upstream()
        if upstream is not None:
            out.line(printable(upstream_line(upstream)))
    write_counts(out, result)


def commit_line(repo: Repo, out: Output, commit: str | None) -> str:
    """Return a commit's short id and subject."""
    subject = repo.show(commit).info.subject if commit is not None else ""
    return f"{out.style(short_id(commit), 'yellow')} {printable(subject)}".rstrip()


def write_counts(
    out: Output,
    result: CheckoutResult | UndoResult | RollbackResult | MergeResult,
    *,
    dry_run: bool = False,
) -> None:
    """Write how many files were written and removed, or would be, if any."""
    counts = [(result.written, "written"), (result.removed, "removed")]
    would = "would be " if dry_run else ""
    parts = [f"{count_text(len(paths), 'file')} {would}{verb}" for paths, verb in counts if paths]
    if parts:
        out.line(", ".join(parts))


def restored_text(repo: Repo, result: CheckoutResult, revision: str | None, default: str) -> str:
    """Return how many paths were brought back, and from where."""
    origin = default if revision is None else short_id(repo.resolve(revision))
    return f"Updated {count_text(len(result.written), 'path')} from {origin}"
