"""ls, cat, export: the tensors of a revision, without checking anything out."""

from __future__ import annotations

import glob
import time
from typing import TYPE_CHECKING, Annotated

import typer

from mvc.cli.group import PathsCommand, PlainCommand, new_app, paths_behind, usage
from mvc.cli.options import Json, Quiet, ShowProgress, Tensors
from mvc.cli.output import Output, printable, stdout, write_json
from mvc.cli.progress import byte_progress
from mvc.cli.render import columns, count_text, seconds_text, shape_text, size_text
from mvc.cli.session import open_repo, parse_place, split_revisions, to_paths
from mvc.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mvc.operations.tensors import FileInfo, TensorInfo
    from mvc.repo import Repo

app = new_app()

_SHORT_TENSOR_ID = 12
_HEAD_VALUES = 20


@app.command(cls=PathsCommand)
def ls(
    context: typer.Context,
    names: Annotated[list[str] | None, typer.Argument(metavar="[REV] [[--] PATH...]")] = None,
    tensors: Tensors = None,
    long: Annotated[
        bool, typer.Option("-l", "--long", help="Also chunks and identity of every tensor.")
    ] = False,
    name_only: Annotated[bool, typer.Option("--name-only", help="Paths of files only.")] = False,
    as_json: Json = False,
) -> None:
    """List files and tensors of a revision (HEAD): dtype, shape, size.

    Tensors of equal identity hold the same bits, whatever their names and files.
    """
    repo = open_repo()
    revisions, paths = split_revisions(repo, names or (), paths_behind(context))
    if len(revisions) > 1:
        raise usage(f"ls looks at one revision, not {len(revisions)}", context)
    revision = revisions[0] if revisions else "HEAD"
    found = repo.ls(revision, paths=paths, tensors=tensors)
    if as_json:
        files = [file_fields(info) for info in found]
        write_json({"commit": repo.resolve(revision), "files": files})
    elif name_only:
        stdout().lines(printable(info.path) for info in found)
    else:
        write_listing(stdout(), found, long=long)


def file_fields(info: FileInfo) -> dict[str, object]:
    """Return one file as ``ls --json`` prints it."""
    return {
        "path": info.path,
        "mode": f"{info.mode:06o}",
        "blob": info.blob,
        "format": info.format,
        "size_bytes": info.size_bytes,
        "tensors": [tensor_fields(tensor) for tensor in info.tensors],
    }


def tensor_fields(tensor: TensorInfo) -> dict[str, object]:
    """Return one tensor as ``ls --json`` prints it."""
    return {
        "name": tensor.name,
        "dtype": tensor.dtype,
        "shape": tensor.shape,
        "size_bytes": tensor.size_bytes,
        "chunks": tensor.chunks,
        "id": tensor.id,
    }


def write_listing(out: Output, files: Sequence[FileInfo], *, long: bool) -> None:
    """Write files, and below each its tensors."""
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
        for tensor in tensors
    ]
    aligns = "<<>><" if long else "<<>"
    width = None if out.width is None else out.width - 2 * len(aligns)
    return [f"  {'  '.join(row)}".rstrip() for row in columns(rows, aligns, width=width)]


@app.command(cls=PlainCommand)
def cat(
    context: typer.Context,
    names: Annotated[
        list[str], typer.Argument(metavar="[REV:]PATH TENSOR | REV PATH TENSOR", show_default=False)
    ],
    everything: Annotated[bool, typer.Option("--all", help="Every value.")] = False,
    as_json: Json = False,
) -> None:
    """Print the values of one tensor: its kind, its range, and the first and last of them.

    Only the chunks that hold the tensor are read, and each is verified. TENSOR may be left out
    where the file has only one.
    """
    if len(names) > 3:  # noqa: PLR2004  as the usage says
        raise usage(f"{names[3]!r} is one argument too many", context)
    repo = open_repo()
    if len(names) == 3:  # noqa: PLR2004  as the usage says
        revision, path = names[0], to_paths([names[1]])[0]
    else:
        revision, path = parse_place(repo, names[0])
    info, tensor = _find_tensor(repo, revision, path, names[1:][-1] if names[1:] else None)
    from mvc.cli.values import numbers_of, value_fields, write_values

    values = repo.tensor(revision, repo.worktree / info.path, tensor.name)
    numbers = numbers_of(values)
    if as_json:
        write_json(
            {
                "commit": repo.resolve(revision),
                "path": info.path,
                "tensor": tensor.name,
                **{key: value for key, value in tensor_fields(tensor).items() if key != "name"},
                **value_fields(numbers, None if everything else _HEAD_VALUES),
            }
        )
        return
    out = stdout()
    kind = f"{shape_text(tensor.dtype, tensor.shape)}  {size_text(tensor.size_bytes)}"
    out.line(f"{out.style(printable(tensor.name), 'bold')}  {kind}  {printable(info.path)}")
    write_values(out, numbers, everything=everything)


def _find_tensor(
    repo: Repo, revision: str, path: str, name: str | None
) -> tuple[FileInfo, TensorInfo]:
    found = repo.ls(revision, paths=[path], tensors=None if name is None else glob.escape(name))
    with_tensors = [info for info in found if info.tensors]
    if not with_tensors:
        (info,) = repo.ls(revision, paths=[path])[:1]
        if not info.tensors:
            raise NotFoundError(f"{info.path!r} holds no tensor")
        hint = f'"mvc ls {revision} -- {info.path}" lists its tensors'
        raise NotFoundError(f"{info.path!r} has no tensor {name!r}", hint=hint)
    info = with_tensors[0]
    if len(info.tensors) > 1:
        raise NotFoundError(
            f"{info.path!r} has {len(info.tensors):,} tensors: name one",
            hint=f'"mvc ls {revision} -- {info.path}" lists them',
        )
    return info, info.tensors[0]


@app.command(cls=PlainCommand)
def export(
    revision: Annotated[str, typer.Argument(metavar="REV", show_default=False)],
    output: Annotated[
        str,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="The safetensors file to make.",
            show_default=False,
        ),
    ],
    path: Annotated[str | None, typer.Argument(metavar="[PATH]")] = None,
    tensors: Tensors = None,
    force: Annotated[bool, typer.Option("-f", "--force", help="Replace an existing file.")] = False,
    quiet: Quiet = False,
    progress: ShowProgress = True,
    as_json: Json = False,
) -> None:
    """Write tensors of a revision, from any format, into one new safetensors file.

    REV:PATH names the checkpoint too. Without a PATH all checkpoints of the revision are taken.
    """
    repo = open_repo()
    started_s = time.perf_counter()
    place = None if path is None else to_paths([path])[0]
    if place is None and ":" in revision:
        revision, place = parse_place(repo, revision)
    with byte_progress("exporting", wanted=progress and not quiet) as bar:
        result = repo.export(
            revision, output, path=place, tensors=tensors, force=force, progress=bar
        )
    if as_json:
        write_json(
            {
                "commit": repo.resolve(revision),
                "path": str(result.path),
                "tensors": result.tensors,
                "size_bytes": result.size_bytes,
            }
        )
    elif not quiet:
        seconds = seconds_text(time.perf_counter() - started_s)
        count = count_text(result.tensors, "tensor")
        stdout().line(
            f"{printable(str(result.path))}: {count}, {size_text(result.size_bytes)} in {seconds}"
        )
