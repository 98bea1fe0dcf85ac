"""Remove, move and rename files."""

from __future__ import annotations

from mvc.cli.options import JSON, QUIET_JSON
from mvc.cli.output import Output, Shown, printable
from mvc.cli.parameters import CommandUsageError, arguments, flag
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


def mv(
    paths: list[str] = arguments("SOURCE... TARGET", required=True),
    force: bool = flag("-f, --force", "Overwrite an existing target."),
    verbose: bool = flag("-v, --verbose", "Print every move."),
    shown: Shown = JSON,
) -> None:
    """Move or rename files in the worktree and the index.

    With several sources, the target must be a folder.
    """
    if len(paths) < 2:  # noqa: PLR2004  from and to
        raise CommandUsageError("name a source and a target")
    repo = open_repo()
    *sources, target = to_paths(paths)
    moved = repo.move(sources, target, force=force)
    lines = (" -> ".join(printable(shown_path(repo, path)) for path in pair) for pair in moved)
    fields = {"renamed": [{"old_path": old, "path": new} for old, new in moved]}
    shown.answer(fields, Output.lines, lines if verbose else ())
