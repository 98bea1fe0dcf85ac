"""ls, cat, export: the tensors of a revision, without checking anything out."""

from __future__ import annotations

import glob
import time
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from mvc.cli.options import CommandUsageError, Json, Quiet, ShowProgress, Tensors
from mvc.cli.output import pick, printable, stdout, write_json
from mvc.cli.progress import byte_progress
from mvc.cli.render.files import TENSOR_FIELDS, file_fields, write_listing
from mvc.cli.render.text import count_text, seconds_text, shape_text, size_text
from mvc.cli.session import open_repo, parse_place, split_revision, to_paths
from mvc.errors import NotFoundError

if TYPE_CHECKING:
    from mvc.operations.ls import FileInfo, TensorInfo
    from mvc.repo import Repo

_HEAD_VALUES = 20


def ls(
    names: Annotated[list[str] | None, Argument(metavar="[REV] [[--] PATH...]")] = None,
    tensors: Tensors = None,
    long: Annotated[
        bool, Option("-l", "--long", help="Also print chunks and id of each tensor.")
    ] = False,
    name_only: Annotated[bool, Option("--name-only", help="Print paths of files only.")] = False,
    as_json: Json = False,
) -> None:
    """List files and tensors of a revision (HEAD): dtype, shape, size.

    Tensors with the same id hold the same bits, whatever their names and files.
    """
    repo = open_repo()
    revision, paths = split_revision(repo, names)
    revision = revision or "HEAD"
    found = repo.ls(revision, paths=paths, tensors=tensors)
    if as_json:
        files = [file_fields(info) for info in found]
        write_json({"commit": repo.resolve(revision), "files": files})
    elif name_only:
        stdout().lines(printable(info.path) for info in found)
    else:
        write_listing(stdout(), found, long=long)


def cat(
    names: Annotated[
        list[str], Argument(metavar="[REV:]PATH TENSOR | REV PATH TENSOR", show_default=False)
    ],
    everything: Annotated[bool, Option("--all", help="Print every value.")] = False,
    as_json: Json = False,
) -> None:
    """Print the values of one tensor: dtype and shape, range, and the first and last values.

    Only the chunks of the tensor are read, and each is verified. TENSOR may be omitted if the file
    has only one.
    """
    if len(names) > 3:  # noqa: PLR2004  as the usage says
        raise CommandUsageError(f"unexpected argument {names[3]!r}")
    repo = open_repo()
    if len(names) == 3:  # noqa: PLR2004  as the usage says
        revision, path = names[0], to_paths([names[1]])[0]
    else:
        revision, path = parse_place(repo, names[0])
    info, tensor = _find_tensor(repo, revision, path, names[1:][-1] if names[1:] else None)
    from mvc.cli.render.values import numbers_of, value_fields, write_values

    values = repo.tensor(revision, repo.worktree / info.path, tensor.name)
    numbers = numbers_of(values)
    if as_json:
        write_json(
            {
                "commit": repo.resolve(revision),
                "path": info.path,
                "tensor": tensor.name,
                **pick(tensor, TENSOR_FIELDS),
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
            raise NotFoundError(f"{info.path!r} has no tensors")
        hint = f'"mvc ls {revision} -- {info.path}" lists its tensors'
        raise NotFoundError(f"{info.path!r} has no tensor {name!r}", hint=hint)
    info = with_tensors[0]
    if len(info.tensors) > 1:
        raise NotFoundError(
            f"{info.path!r} has {len(info.tensors):,} tensors: name one",
            hint=f'"mvc ls {revision} -- {info.path}" lists them',
        )
    return info, info.tensors[0]


def export(
    revision: Annotated[str, Argument(metavar="REV", show_default=False)],
    output: Annotated[
        str,
        Option(
            "-o",
            "--output",
            metavar="FILE",
            help="The safetensors file to write.",
            show_default=False,
        ),
    ],
    path: Annotated[str | None, Argument(metavar="[PATH]")] = None,
    tensors: Tensors = None,
    force: Annotated[bool, Option("-f", "--force", help="Overwrite an existing file.")] = False,
    quiet: Quiet = False,
    progress: ShowProgress = True,
    as_json: Json = False,
) -> None:
    """Write tensors of a revision, from any format, to one safetensors file.

    REV:PATH also names a checkpoint. Without PATH, all checkpoints of the revision are exported.
    """
    repo = open_repo()
    started_s = time.perf_counter()
    source = None if path is None else to_paths([path])[0]
    if source is None and ":" in revision:
        revision, source = parse_place(repo, revision)
    with byte_progress("exporting", wanted=progress and not quiet) as bar:
        result = repo.export(
            revision, output, path=source, tensors=tensors, force=force, progress=bar
        )
    if as_json:
        place = {"commit": repo.resolve(revision), "path": str(result.path)}
        write_json({**place, **pick(result, "tensors size_bytes")})
    elif not quiet:
        seconds = seconds_text(time.perf_counter() - started_s)
        count = count_text(result.tensors, "tensor")
        stdout().line(
            f"{printable(str(result.path))}: {count}, {size_text(result.size_bytes)} in {seconds}"
        )
