"""Write a revision into a folder, or tensors of it to a safetensors file."""

from __future__ import annotations

import time
from typing import Annotated

from mvc.cli.options import CommandUsageError, Json, Quiet, ShowProgress, Tensors
from mvc.cli.output import pick, printable, stdout, write_json
from mvc.cli.parameters import Argument, Option
from mvc.cli.progress import byte_progress
from mvc.cli.render.text import count_text, seconds_text, size_text
from mvc.cli.session import open_repo, parse_place, to_paths


def export(
    revision: Annotated[str, Argument(metavar="REV", show_default=False)],
    path: Annotated[str | None, Argument(metavar="[PATH | DIR/]")] = None,
    output: Annotated[
        str | None,
        Option("-o", "--output", metavar="FILE", help="The safetensors file, or DIR/, to write."),
    ] = None,
    tensors: Tensors = None,
    force: Annotated[bool, Option("-f", "--force", help="Overwrite an existing file.")] = False,
    quiet: Quiet = False,
    progress: ShowProgress = True,
    as_json: Json = False,
) -> None:
    """Write all files of a revision into a folder, or tensors of it to a safetensors file.

    DIR/ may be new, and anywhere. With -o FILE, tensors of any format are written to one file;
    REV:PATH also names a checkpoint. Without PATH, all checkpoints of the revision are exported.
    """
    if output is None and path is not None and path.endswith("/"):
        output, path = path, None
    if output is None:
        raise CommandUsageError('name a folder such as "DIR/", or a file with -o')
    repo = open_repo()
    started_s = time.perf_counter()
    source = None if path is None else to_paths([path])[0]
    if source is None and ":" in revision:
        revision, source = parse_place(repo, revision)
    to_folder = output.endswith("/")
    if to_folder and (source is not None or tensors is not None):
        raise CommandUsageError("a folder takes whole revisions: name a file with -o for a part")
    chosen = None if to_folder else tensors or "*"
    with byte_progress("exporting", wanted=progress and not quiet) as bar:
        result = repo.export(
            revision, output, path=source, tensors=chosen, force=force, progress=bar
        )
    if as_json:
        place = {"commit": repo.resolve(revision), "path": str(result.path)}
        write_json({**place, **pick(result, "tensors size_bytes files")})
    elif not quiet:
        seconds = seconds_text(time.perf_counter() - started_s)
        files = f"{count_text(result.files, 'file')}, " if to_folder else ""
        count = files + count_text(result.tensors, "tensor")
        stdout().line(
            f"{printable(str(result.path))}: {count}, {size_text(result.size_bytes)} in {seconds}"
        )
