"""Write a revision into a folder, or its model in another format."""

from __future__ import annotations

import os
import time

from mvc.checkpoints.names import is_checkpoint_name
from mvc.cli.options import QUIET_PROGRESS_JSON, TENSORS
from mvc.cli.output import Output, Shown, pick, printable, stderr
from mvc.cli.parameters import CommandUsageError, argument, flag, string
from mvc.cli.progress import byte_progress
from mvc.cli.render.text import count_text, seconds_text, size_text, some_text
from mvc.cli.session import open_repo, parse_place, to_paths

_SHOWN = 5


def export(
    revision: str = argument("REV"),
    path: str | None = argument("[PATH | DIR/]"),
    output: str | None = string("-o, --output FILE", "The file, or DIR/, to write."),
    tensors: str | None = TENSORS,
    kind: str | None = string(
        "--format FORMAT", "safetensors, torch, dcp, or files as they are; else by FILE's name."
    ),
    force: bool = flag("-f, --force", "Overwrite an existing file."),
    shown: Shown = QUIET_PROGRESS_JSON,
) -> None:
    """Write all files of a revision into a folder, or its model in another format.

    DIR/ may be new, and anywhere. With -o FILE or --format, tensors of any format become one
    safetensors file, files of the Hub (DIR/), a file for torch.load, or a folder for torch's
    dcp.load. REV:PATH also names a checkpoint or a folder of shards. Without PATH, all of
    the revision's are exported.
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
    if to_folder and kind is None and (source is not None or tensors is not None):
        raise CommandUsageError("a folder takes whole revisions: name a file with -o for a part")
    names_file = is_checkpoint_name(output) and not os.path.isdir(output)
    if tensors is None and kind is None and not (to_folder or names_file):
        tensors = "*"  # a file, whatever its name
    with byte_progress("exporting", wanted=shown.progress):
        result = repo.export(
            revision, output, path=source, tensors=tensors, format=kind, force=force
        )
    seconds = seconds_text(time.perf_counter() - started_s)
    facts = pick(result, "tensors size_bytes files format left_out")
    fields = {"commit": repo.resolve(revision), "path": str(result.path), **facts}
    count = count_text(result.tensors, "tensor")
    if result.files > 1 or to_folder:
        count = f"{count_text(result.files, 'file')}, {count}"
    size = size_text(result.size_bytes)
    shown.answer(
        fields, Output.line, f"{printable(str(result.path))}: {count}, {size} in {seconds}"
    )
    if shown.as_text and result.left_out:
        stderr().line(f"left out, no plain data: {some_text(result.left_out, _SHOWN)}")
