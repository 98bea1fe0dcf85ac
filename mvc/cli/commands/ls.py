"""Files, tensors and values of a revision."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.cli.options import JSON, TENSORS, check_no_more
from mvc.cli.output import Output, Shown, pick, printable
from mvc.cli.parameters import arguments, flag
from mvc.cli.render.text import columns, count_text, shape_text, size_text
from mvc.cli.session import is_revision, open_repo, parse_place, split_revision, to_paths
from mvc.errors import NotFoundError
from mvc.tensor_names import in_layer_order

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mvc.operations.ls import FileInfo, TensorInfo
    from mvc.repo import Repo

_HEAD_VALUES = 20
TENSOR_FIELDS = "dtype shape size_bytes chunks id"
_SHORT_TENSOR_ID = 12


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


def cat(
    names: list[str] = arguments("[REV:]PATH TENSOR | REV PATH TENSOR", required=True),
    everything: bool = flag("--all", "Print every value."),
    shown: Shown = JSON,
) -> None:
    """Print the values of one tensor: dtype and shape, range, and the first and last values.

    Only the chunks of the tensor are read, and each is verified. TENSOR may be omitted if the file
    has only one.
    """
    check_no_more(names, 3)
    repo = open_repo()
    if len(names) == 3:  # noqa: PLR2004  as the usage says
        place: tuple[str, str, str | None] = (names[0], to_paths([names[1]])[0], names[2])
    else:
        place = _find_place(repo, *names)
    revision, path, name = place
    info, tensor = _find_tensor(repo, revision, path, name)
    from mvc.cli.render.values import numbers_of, value_fields, write_values

    values = repo.tensor(revision, repo.worktree / info.path, tensor.name)
    numbers = numbers_of(values)

    def fields() -> dict[str, object]:
        return {
            "commit": repo.resolve(revision),
            "path": info.path,
            "tensor": tensor.name,
            **pick(tensor, TENSOR_FIELDS),
            **value_fields(numbers, None if everything else _HEAD_VALUES),
        }

    def write(out: Output) -> None:
        kind = f"{shape_text(tensor.dtype, tensor.shape)}  {size_text(tensor.size_bytes)}"
        out.line(f"{out.style(printable(tensor.name), 'bold')}  {kind}  {printable(info.path)}")
        write_values(out, numbers, everything=everything)

    shown.page(fields, write)


def _find_place(repo: Repo, first: str, second: str | None = None) -> tuple[str, str, str | None]:
    """Return (revision, path, tensor) of ``[REV:]PATH [TENSOR]`` or ``REV PATH``."""
    revision, path = parse_place(repo, first)
    try:
        repo.ls(revision, paths=[path])
    except NotFoundError as error:
        if not is_revision(repo, first):
            raise
        if second is not None and any(one.path == second for one in repo.ls(first)):
            return first, second, None
        raise NotFoundError(
            f"{first!r} is a revision: name one of its files too",
            hint=f'"mvc cat {first} PATH {second or "TENSOR"}"; "mvc ls {first}" lists its files',
        ) from error
    return revision, path, second


def _find_tensor(
    repo: Repo, revision: str, path: str, name: str | None
) -> tuple[FileInfo, TensorInfo]:
    listed = repo.ls(revision, paths=[path])
    files = [info for info in listed if info.tensors]
    if not files:
        raise NotFoundError(f"{listed[0].path!r} has no tensors")
    found = [
        (info, tensor) for info in files for tensor in info.tensors if name in (None, tensor.name)
    ]
    hint = f'"mvc ls {revision} -- {files[0].path}" lists them'
    if not found:
        raise NotFoundError(f"{files[0].path!r} has no tensor {name!r}", hint=hint)
    if len(found) > 1 and name is None:
        raise NotFoundError(f"{files[0].path!r} has {len(found):,} tensors: name one", hint=hint)
    return found[0]


def file_fields(info: FileInfo) -> dict[str, object]:
    """Return one file for ``--json``."""
    tensors = [pick(tensor, f"name {TENSOR_FIELDS}") for tensor in in_layer_order(info.tensors)]
    head = {"path": info.path, "mode": f"{info.mode:06o}"}
    return {**head, **pick(info, "blob format size_bytes"), "tensors": tensors}


def write_listing(out: Output, files: Sequence[FileInfo], *, long: bool) -> None:
    """Write files, each followed by its tensors."""
    for info in files:
        facts = [] if info.format is None else [info.format]
        if info.tensors:
            facts.append(count_text(len(info.tensors), "tensor"))
        facts.append(size_text(info.size_bytes))
        path = out.style(printable(info.path), "bold")
        out.line(f"{path}  {out.style(', '.join(facts), 'dim')}")
        out.lines(_tensor_lines(out, info.tensors, long=long))


def _tensor_lines(out: Output, tensors: Sequence[TensorInfo], *, long: bool) -> list[str]:
    rows = [
        (
            printable(tensor.name),
            shape_text(tensor.dtype, tensor.shape),
            size_text(tensor.size_bytes),
            *((count_text(tensor.chunks, "chunk"), tensor.id[:_SHORT_TENSOR_ID]) if long else ()),
        )
        for tensor in in_layer_order(tensors)
    ]
    aligns = "<<>><" if long else "<<>"
    width, spare = None if out.width is None else out.width - 2 * len(aligns), 3 if long else None
    shown = columns(rows, aligns, width=width, spare=spare)
    return [f"  {'  '.join(row)}".rstrip() for row in shown]
