"""Remove files from the worktree and the index."""

from __future__ import annotations

from mvc.cli.options import QUIET_JSON
from mvc.cli.output import Output, Shown, printable
from mvc.cli.parameters import arguments, flag
from mvc.cli.session import open_repo, shown_path, to_paths


def rm(
    paths: list[str] = arguments("PATH...", required=True),
    cached: bool = flag("--cached", "Stop tracking the files but keep them on disk."),
    force: bool = flag("-f, --force", "Remove files even if no commit holds their changes."),
    recursive: bool = flag("-r, --recursive", "Remove folders with everything tracked in them."),
    shown: Shown = QUIET_JSON,
) -> None:
    """Remove files from the worktree and the index.

    Their committed versions stay in the history.
    """
    repo = open_repo()
    removed = repo.remove(to_paths(paths), cached=cached, force=force, recursive=recursive)
    lines = (f"rm '{printable(shown_path(repo, path))}'" for path in removed)
    shown.answer({"removed": removed}, Output.lines, lines)
