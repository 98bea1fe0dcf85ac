"""Remove files from the worktree and the index."""

from __future__ import annotations

from mvc.cli.options import JSON, QUIET
from mvc.cli.output import printable, stdout, write_json
from mvc.cli.parameters import arguments, flag
from mvc.cli.session import open_repo, shown_path, to_paths


def rm(
    paths: list[str] = arguments("PATH...", required=True),
    cached: bool = flag("--cached", "Stop tracking the files but keep them on disk."),
    force: bool = flag("-f, --force", "Remove files even if no commit holds their changes."),
    recursive: bool = flag("-r, --recursive", "Remove folders with everything tracked in them."),
    quiet: bool = QUIET,
    as_json: bool = JSON,
) -> None:
    """Remove files from the worktree and the index.

    Their committed versions stay in the history.
    """
    repo = open_repo()
    removed = repo.remove(to_paths(paths), cached=cached, force=force, recursive=recursive)
    if as_json:
        write_json({"removed": removed})
    elif not quiet:
        stdout().lines(f"rm '{printable(shown_path(repo, path))}'" for path in removed)
