"""Reports as files: the JSON of a command becomes a page, a picture, or both."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mvc.checkpoints.names import is_checkpoint_name
from mvc.cli.output import printable, stdout
from mvc.cli.pages.overview import overview_of_diff
from mvc.cli.pages.page import page_bytes
from mvc.cli.pages.picture import check_can_draw, picture_bytes
from mvc.cli.pages.profiling import overview_of_profile
from mvc.cli.pages.verifying import overview_of_verify
from mvc.cli.render.log import entry_fields
from mvc.cli.render.text import size_text
from mvc.cli.session import open_repo
from mvc.errors import NotFoundError, UsageError, translate_os_errors
from mvc.fs import write_durable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mvc.cli.pages.overview import Overview

_OVERVIEWS: dict[str, Callable[[Mapping[str, Any]], Overview]] = {
    "diff": overview_of_diff,
    "profile": overview_of_profile,
    "verify": overview_of_verify,
}


def check_targets(html: str | None, png: str | None) -> None:
    """Check, before any work, that both files can be written.

    Raises:
        NotFoundError: the folder of one does not exist.
        UsageError: one is a folder, an option or the name of a checkpoint, or both are the same.
        UnsupportedError: a picture is wanted and Pillow is not installed.
    """
    if html is not None and html == png:
        raise UsageError(f"{html!r} cannot be both page and picture", hint="name two files")
    for target in (html, png):
        if target is not None and target.startswith("-"):
            raise UsageError(
                f"{target!r} is an option, not a file", hint=f"write ./{target} for it"
            )
        if target is not None and is_checkpoint_name(target):
            raise UsageError(f"{target!r} would be a checkpoint", hint="name a page or picture")
        if target is not None and (os.path.isdir(target) or not os.path.basename(target)):
            raise UsageError(f"{target!r} is a folder", hint="name a file in it")
        if target is not None and not os.path.isdir(os.path.dirname(target) or "."):
            raise NotFoundError(f"folder {os.path.dirname(target)!r} does not exist")
    if png is not None:
        check_can_draw()


def write_found(
    kind: str, fields: Mapping[str, Any], *, html: str | None, png: str | None, quiet: bool
) -> None:
    """Write the reports on what a command found, and name them on standard output unless quiet.

    Args:
        kind: the command, ``diff`` or ``verify``.
        fields: what ``--json`` prints, with ``label`` and ``commit`` of ``old`` and ``new``.
        html: the page, or None.
        png: the picture, or None.
        quiet: whether to say nothing.
    """
    known = {name: fields[name] for name in ("old", "new") if fields[name] is not None}
    sides = {name: {**side, **_facts(side["commit"])} for name, side in known.items()}
    title = " ".join(["mvc", kind, *(side["label"] for side in sides.values())])
    for path, size_bytes in write_reports(kind, title, {**fields, **sides}, html=html, png=png):
        if not quiet:
            stdout().line(f"{printable(path)}: {size_text(size_bytes)}")


def _facts(commit: str | None) -> dict[str, object]:
    """Return what a report says of a commit."""
    if commit is None:
        return {}
    known = entry_fields(open_repo().show(commit))
    return {name: known[name] for name in ("subject", "step", "date")}


def write_reports(
    kind: str, title: str, report: Mapping[str, Any], *, html: str | None, png: str | None
) -> list[tuple[str, int]]:
    """Write a page, a picture or both; return the files with their lengths in bytes."""
    overview = _OVERVIEWS[kind](report)
    written = []
    if html is not None:
        data = page_bytes(kind, title, {**report, "overview": asdict(overview)})
        written.append((html, _write(html, data)))
    if png is not None:
        written.append((png, _write(png, picture_bytes(overview))))
    return written


def _write(target: str, data: bytes) -> int:
    """Write a file as a whole or not at all; a pipe or device takes the bytes as they come."""
    path = Path(os.path.realpath(target))
    if path.exists() and not path.is_file():
        with translate_os_errors(f"write {target}"), path.open("wb") as stream:
            stream.write(data)
    else:
        write_durable(path, [data])
    return len(data)
