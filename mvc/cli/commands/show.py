"""Show one commit, or one file of it."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from mvc.cli.comparing import compare_values, read_view
from mvc.cli.options import (
    ABOVE,
    ALL,
    BY,
    JSON,
    NAME_ONLY,
    NAME_STATUS,
    SORT_BY,
    SPECTRAL,
    STAT,
    STATS,
    TENSORS,
    choose_one,
)
from mvc.cli.output import paged, printable, write_json
from mvc.cli.parameters import arguments
from mvc.cli.render.files import WITH_TENSORS, diff_fields, write_diff
from mvc.cli.render.listing import file_fields, write_listing
from mvc.cli.session import open_repo, parse_place, split_revision

if TYPE_CHECKING:
    from mvc.repo import Repo

_COMMIT_LINES = 7


def show(
    names: list[str] = arguments("[REV | REV:PATH] [[--] PATH...]"),
    tensors: str | None = TENSORS,
    stat: bool = STAT,
    name_only: bool = NAME_ONLY,
    name_status: bool = NAME_STATUS,
    stats: bool = STATS,
    by: str | None = BY,
    sort: str | None = SORT_BY,
    above: str | None = ABOVE,
    spectral: bool = SPECTRAL,
    everything: bool = ALL,
    as_json: bool = JSON,
) -> None:
    """Show one commit and what it changed, in all files or in PATHs, or one file of it.

    For REV:PATH, the content of a plain file is printed; of a checkpoint, the tensors are listed.
    --stats compares the values of its tensors with those of its first parent.
    """
    view = read_view(by, sort, above, stats=stats, spectral=spectral, everything=everything)
    forms = {"stat": stat, "name-only": name_only, "name-status": name_status}
    form = choose_one({**forms, "stats": view is not None}, "rows")
    repo = open_repo()
    if names and len(names) == 1 and ":" in names[0]:
        _show_file(repo, names[0], as_json=as_json)
        return
    revision, paths = split_revision(repo, names)
    name = revision or "HEAD"
    from mvc.cli.render.log import entry_fields, write_full

    entry, message = repo.show(name), repo.tags.message(name)
    files = repo.changes(
        entry.info.id,
        paths=paths,
        tensors=tensors,
        with_tensors=form in WITH_TENSORS or as_json,
    )
    found = None
    if view is not None:
        compare = partial(repo.compare_commit, entry.info.id, paths=paths, spectral=spectral)
        found = compare_values(partial(compare, tensors=tensors))
    if as_json:
        fields = {**entry_fields(entry), "body": entry.info.body, "tag_message": message}
        if found is not None:
            from mvc.cli.render.comparison_rows import comparison_fields

            fields["comparison"] = comparison_fields(found, view)
        write_json({**fields, **diff_fields(files)})
        return
    out = paged()
    if message is not None:
        out.line(out.style(f"tag {printable(name)}", "yellow"))
        out.lines(["", *map(printable, message.split("\n")), ""])
    write_full(out, [entry], None)
    below = replace(out, height=out.height - _COMMIT_LINES)
    if found is not None and view is not None:
        from mvc.cli.render.comparison import write_comparison

        out.line()
        write_comparison(below, found, view)
    elif files:
        out.line()
        write_diff(below, files, form, everything=everything)


def _show_file(repo: Repo, name: str, *, as_json: bool) -> None:
    revision, path = parse_place(repo, name)
    content = repo.read_file(revision, path)
    if as_json or content is None:
        (info,) = repo.ls(revision, paths=[path])
        if as_json:
            text = None if content is None else content.decode("utf-8", "replace")
            write_json({"commit": repo.resolve(revision), **file_fields(info), "content": text})
        else:
            write_listing(paged(), [info], long=False)
        return
    paged()
    sys.stdout.flush()
    sys.stdout.buffer.write(content)
    sys.stdout.buffer.flush()
