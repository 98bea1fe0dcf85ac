"""Move or rename files."""

from __future__ import annotations

from mvc.cli.options import JSON
from mvc.cli.output import Output, Shown, printable
from mvc.cli.parameters import CommandUsageError, arguments, flag
from mvc.cli.session import open_repo, shown_path, to_paths


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
