"""Show one commit, or one file of it."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from mvc.cli.commands.ls import file_fields, write_listing
from mvc.cli.comparing import ALL, COMPARED, Compared, compare_values
from mvc.cli.options import JSON
from mvc.cli.output import Output, Shown, paged, printable
from mvc.cli.parameters import arguments
from mvc.cli.render.files import WITH_TENSORS, diff_fields, write_diff
from mvc.cli.session import open_repo, parse_place, split_revision

if TYPE_CHECKING:
    from mvc.cli.render.comparison_rows import View
    from mvc.operations.compare import ModelDiff
    from mvc.repo import Repo

_COMMIT_LINES = 7


def show(
    names: list[str] = arguments("[REV | REV:PATH] [[--] PATH...]"),
    compared: Compared = COMPARED,
    everything: bool = ALL,
    shown: Shown = JSON,
) -> None:
    """Show one commit and what it changed, in all files or in PATHs, or one file of it.

    For REV:PATH, the content of a plain file is printed; of a checkpoint, the tensors are listed.
    --stats compares the values of its tensors with those of its first parent.
    """
    view = compared.view(everything=everything)
    form = compared.form("stats", with_values=view is not None)
    repo = open_repo()
    if len(names) == 1 and ":" in names[0]:
        _show_file(repo, names[0], shown)
        return
    revision, paths = split_revision(repo, names)
    name = revision or "HEAD"
    from mvc.cli.render.log import entry_fields, write_full

    entry, message = repo.show(name), repo.tags.message(name)
    files = repo.changes(
        entry.info.id,
        paths=paths,
        tensors=compared.tensors,
        with_tensors=form in WITH_TENSORS or shown.as_json,
    )
    values: tuple[ModelDiff, View] | None = None
    if view is not None:
        compare = partial(repo.compare_commit, entry.info.id, paths=paths)
        options = {"tensors": compared.tensors, "spectral": compared.spectral}
        values = compare_values(partial(compare, **options)), view

    def fields() -> dict[str, object]:
        told = {**entry_fields(entry), "body": entry.info.body, "tag_message": message}
        if values is not None:
            from mvc.cli.render.comparison_rows import comparison_fields

            told["comparison"] = comparison_fields(*values)
        return {**told, **diff_fields(files)}

    def write(out: Output) -> None:
        if message is not None:
            out.line(out.style(f"tag {printable(name)}", "yellow"))
            out.lines(["", *map(printable, message.split("\n")), ""])
        write_full(out, [entry], None)
        below = replace(out, height=out.height - _COMMIT_LINES)
        if values is not None:
            from mvc.cli.render.comparison import write_comparison

            out.line()
            write_comparison(below, *values)
        elif files:
            out.line()
            write_diff(below, files, form, everything=everything)

    shown.page(fields, write)


def _show_file(repo: Repo, name: str, shown: Shown) -> None:
    revision, path = parse_place(repo, name)
    content = repo.read_file(revision, path)
    if shown.as_json or content is None:
        (info,) = repo.ls(revision, paths=[path])
        text = None if content is None else content.decode("utf-8", "replace")
        fields = {"commit": repo.resolve(revision), **file_fields(info), "content": text}
        shown.page(fields, write_listing, [info], long=False)
        return
    paged()
    sys.stdout.flush()
    sys.stdout.buffer.write(content)
    sys.stdout.buffer.flush()
