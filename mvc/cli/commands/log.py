"""Show the history."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Annotated

from mvc.cli.options import Json, Limit, check_limit
from mvc.cli.output import stdout, write_json
from mvc.cli.parameters import Argument, Option
from mvc.cli.render.log import entry_fields, write_full, write_oneline
from mvc.cli.session import open_repo, split_revisions
from mvc.history.revisions import split_range

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mvc.operations.log import LogEntry
    from mvc.repo import Repo


def log(
    names: Annotated[list[str] | None, Argument(metavar="[REV | A..B]... [[--] PATH...]")] = None,
    oneline: Annotated[
        bool,
        Option("--oneline", help="Print one line per commit, with step and metrics in columns."),
    ] = False,
    graph: Annotated[bool, Option("--graph", help="Draw branches and merges on the left.")] = False,
    everything: Annotated[
        bool, Option("--all", help="Start at every branch and tag, not only at HEAD.")
    ] = False,
    limit: Limit = None,
    first_parent: Annotated[
        bool, Option("--first-parent", help="Follow only the first parent of merges.")
    ] = False,
    decorate: Annotated[
        bool,
        Option(
            "--decorate/--no-decorate",
            show_default=False,
            help="Show the names of branches and tags.",
        ),
    ] = True,
    as_json: Json = False,
) -> None:
    """Show the history, newest first, with training steps and metrics.

    A..B means the commits of B that A does not have. With PATHs, only commits that changed them
    are shown.
    """
    check_limit(limit)
    repo = open_repo()
    revisions, paths = split_revisions(repo, names)
    revisions, hidden_bases = _plain_ranges(repo, revisions)
    found = repo.log(
        *revisions, everything=everything, limit=None if paths else limit, first_parent=first_parent
    )
    entries, parents = _choose(repo, found, paths, limit, first_parent=first_parent, drawn=graph)
    is_cut = limit is not None and len(entries) == limit and not paths
    if hidden_bases and not is_cut:
        shown = {entry.info.id for entry in entries}
        parents = {
            commit: tuple(one for one in many if one in shown) for commit, many in parents.items()
        }
    if as_json:
        write_json([entry_fields(entry) for entry in entries])
        return
    write = write_oneline if oneline else write_full
    if not decorate:
        entries = [replace(entry, refs=(), is_healthy=False) for entry in entries]
    write(stdout(), entries, parents if graph else None)


def _plain_ranges(repo: Repo, revisions: Sequence[str]) -> tuple[list[str], bool]:
    """Rewrite ``A...B`` as revisions that the log knows; also return whether any are excluded."""
    plain: list[str] = []
    for revision in revisions:
        parts = split_range(revision)
        if parts is None or parts[1] == "..":
            plain.append(revision)
            continue
        base = repo.merge_base(parts[0], parts[2])
        plain += [parts[0], parts[2], *([] if base is None else [f"^{base}"])]
    return plain, any(".." in revision or revision.startswith("^") for revision in plain)


def _choose(
    repo: Repo,
    found: Iterator[LogEntry],
    paths: Sequence[str],
    limit: int | None,
    *,
    first_parent: bool,
    drawn: bool,
) -> tuple[list[LogEntry], dict[str, tuple[str, ...]]]:
    """Return the entries that changed the paths, and the parents to draw for each."""

    def parents_of(entry: LogEntry) -> tuple[str, ...]:
        return entry.info.parents[:1] if first_parent else entry.info.parents

    if not paths:
        entries = list(found)
        return entries, {entry.info.id: parents_of(entry) for entry in entries}
    if not drawn:
        return list(islice((one for one in found if _touches(repo, one, paths)), limit)), {}
    from mvc.cli.render.graph import close_gaps

    everything = list(found)
    entries = [entry for entry in everything if _touches(repo, entry, paths)][:limit]
    shown: set[str] = {entry.info.id for entry in entries}
    history = [(str(entry.info.id), parents_of(entry)) for entry in everything]
    return entries, close_gaps(history, shown)


def _touches(repo: Repo, entry: LogEntry, paths: Sequence[str]) -> bool:
    """Return whether a commit differs from every parent in these paths."""
    info = entry.info
    if not info.parents:
        return bool(repo.changes(info.id, paths=paths, with_tensors=False))
    return all(
        repo.diff(parent, info.id, paths=paths, with_tensors=False) for parent in info.parents
    )
