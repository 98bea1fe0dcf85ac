"""List files and tensors of a revision."""

from __future__ import annotations

from mvc.cli.options import JSON, TENSORS
from mvc.cli.output import Output, Shown, printable
from mvc.cli.parameters import arguments, flag
from mvc.cli.render.listing import file_fields, write_listing
from mvc.cli.session import open_repo, split_revision


def ls(
    names: list[str] = arguments("[REV] [[--] PATH...]"),
    tensors: str | None = TENSORS,
    long: bool = flag("-l, --long", "Also print chunks and id of each tensor."),
    name_only: bool = flag("--name-only", "Print paths of files only."),
    shown: Shown = JSON,
) -> None:
    """List files and tensors of a revision (HEAD): dtype, shape, size.

    Tensors with the same id hold the same bits, whatever their names and files.
    """
    repo = open_repo()
    revision, paths = split_revision(repo, names)
    revision = revision or "HEAD"
    found = repo.ls(revision, paths=paths, tensors=tensors)

    def fields() -> dict[str, object]:
        return {"commit": repo.resolve(revision), "files": list(map(file_fields, found))}

    if name_only:
        shown.page(fields, Output.lines, (printable(info.path) for info in found))
    else:
        shown.page(fields, write_listing, found, long=long)
