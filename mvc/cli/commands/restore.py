"""Bring files back, unstage them, move the current branch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.cli.options import QUIET_PROGRESS_JSON, choose_one
from mvc.cli.output import Output, Shown, printable
from mvc.cli.parameters import CommandUsageError, arguments, flag, string
from mvc.cli.progress import byte_progress
from mvc.cli.render.moves import commit_line, restored_text, result_fields
from mvc.cli.session import is_revision, open_repo, shown_path, split_revision, to_paths
from mvc.errors import NotFoundError

if TYPE_CHECKING:
    from mvc.repo import Repo
    from mvc.workspace.checkout_plan import CheckoutResult


def restore(
    paths: list[str] = arguments("PATH...", required=True),
    source: str | None = string("-s, --source REV", "Take them from this revision."),
    staged: bool = flag("-S, --staged", "Restore the index: unstage the files."),
    worktree: bool = flag("-W, --worktree", "Restore the worktree (default without --staged)."),
    shown: Shown = QUIET_PROGRESS_JSON,
) -> None:
    """Bring files back from the index or a revision, and discard what they hold now.

    Without --source, the worktree is restored from the index, and the index from HEAD.
    """
    repo = open_repo()
    with byte_progress("restoring", wanted=shown.progress):
        try:
            result = repo.restore(
                to_paths(paths), source=source, staged=staged, worktree=worktree or not staged
            )
        except NotFoundError as error:
            if source is None and is_revision(repo, paths[0]):
                error.hint = f'"mvc restore -s {paths[0]} PATH" takes files from that revision'
            raise
    default = "HEAD" if staged else "the index"
    lines = [restored_text(repo, result, source, default)] if result.written else []
    shown.answer(result_fields(result), Output.lines, lines)


def reset(
    names: list[str] = arguments("[REV] [[--] PATH...]"),
    soft: bool = flag("--soft", "Move the branch only."),
    mixed: bool = flag("--mixed", "Reset the index too (default)."),
    hard: bool = flag("--hard", "Reset index and files too: local changes are LOST."),
    shown: Shown = QUIET_PROGRESS_JSON,
) -> None:
    """Move the current branch to a revision, or unstage files.

    With PATHs the branch stays, and their index entries become those of REV (HEAD).

    "mvc undo" takes a reset back.
    """
    mode = choose_one({"soft": soft, "mixed": mixed, "hard": hard}, "mixed")
    repo = open_repo()
    if repo.head.commit is None and names[:1] == ["HEAD"]:
        names = names[1:]  # no revision before the first commit, but "reset HEAD PATH" unstages
    revision, paths = split_revision(repo, names)
    if paths and (soft or hard):
        raise CommandUsageError(f"--{mode} cannot be used with paths")
    with byte_progress("resetting", wanted=shown.progress):
        result = repo.reset(revision or "HEAD", mode=mode, paths=paths)
    shown.answer(result_fields(result), _write_reset, repo, result, mode)


def _write_reset(out: Output, repo: Repo, result: CheckoutResult, mode: str) -> None:
    """Write where HEAD is after a hard reset, and what is unstaged after a mixed one."""
    if mode == "hard":
        out.line(f"HEAD is now at {commit_line(repo, out, result.commit)}")
    if mode != "mixed":
        return
    changed = [file for file in repo.status(untracked=False).files if file.worktree != "unmodified"]
    if changed:
        out.line("Unstaged changes after reset:")
        out.lines(f"{file.code[1]}\t{printable(shown_path(repo, file.path))}" for file in changed)
