"""Bring files back from the index or a revision."""

from __future__ import annotations

from mvc.cli.options import QUIET_PROGRESS_JSON
from mvc.cli.output import Output, Shown
from mvc.cli.parameters import arguments, flag, string
from mvc.cli.progress import byte_progress
from mvc.cli.render.moves import restored_text, result_fields
from mvc.cli.session import is_revision, open_repo, to_paths
from mvc.errors import NotFoundError


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
