"""Bring files back from the index or a revision."""

from __future__ import annotations

from mvc.cli.options import JSON, PROGRESS, QUIET
from mvc.cli.output import write_json
from mvc.cli.parameters import arguments, flag, string
from mvc.cli.progress import byte_progress
from mvc.cli.render.moves import result_fields, write_restored
from mvc.cli.session import is_revision, open_repo, to_paths
from mvc.errors import NotFoundError


def restore(
    paths: list[str] = arguments("PATH...", required=True),
    source: str | None = string("-s, --source REV", "Take them from this revision."),
    staged: bool = flag("-S, --staged", "Restore the index: unstage the files."),
    worktree: bool = flag("-W, --worktree", "Restore the worktree (default without --staged)."),
    quiet: bool = QUIET,
    progress: bool = PROGRESS,
    as_json: bool = JSON,
) -> None:
    """Bring files back from the index or a revision, and discard what they hold now.

    Without --source, the worktree is restored from the index, and the index from HEAD.
    """
    repo = open_repo()
    with byte_progress("restoring", wanted=progress and not quiet) as bar:
        try:
            result = repo.restore(
                to_paths(paths),
                source=source,
                staged=staged,
                worktree=worktree or not staged,
                progress=bar,
            )
        except NotFoundError as error:
            if source is None and is_revision(repo, paths[0]):
                error.hint = f'"mvc restore -s {paths[0]} PATH" takes files from that revision'
            raise
    if as_json:
        write_json(result_fields(result))
    elif not quiet and result.written:
        write_restored(repo, result, source, "HEAD" if staged else "the index")
