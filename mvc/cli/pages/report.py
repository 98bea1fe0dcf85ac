"""Reports as files: the JSON of a command becomes a page of HTML."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
from dataclasses import asdict
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

import mvc
from mvc.checkpoints.names import is_checkpoint_name
from mvc.cli.output import printable, stdout
from mvc.cli.pages.overview import overview_of_diff, overview_of_profile, overview_of_verify
from mvc.cli.render.log import entry_fields
from mvc.cli.render.text import size_text
from mvc.cli.session import open_repo
from mvc.errors import NotFoundError, UsageError, translate_os_errors
from mvc.fs import write_durable

if TYPE_CHECKING:
    from collections.abc import Mapping

_OVERVIEWS = {
    "diff": overview_of_diff,
    "profile": overview_of_profile,
    "verify": overview_of_verify,
}
_SHARED = ("frame.js", "histogram.js", "heatmap.js", "table.js")

# All text has a contrast of at least 4.5.
LIGHT = {
    "ground": "#f6f7f9", "raised": "#ffffff", "ink": "#1a2230", "quiet": "#596273",
    "line": "#dde1e8", "hover": "#f0f3f8", "accent": "#2456c5", "on-accent": "#ffffff",
    "second": "#c2570c", "good": "#1b7a3d", "warning": "#8f5a00", "bad": "#c22030",
    "same": "#e9ebef", "empty": "#c9ced8",
}  # fmt: skip
"""Names and colours on a light ground."""

DARK = {
    "ground": "#11151c", "raised": "#191f29", "ink": "#e6eaf1", "quiet": "#9aa5b5",
    "line": "#2c3442", "hover": "#212937", "accent": "#7aa8ff", "on-accent": "#0d1420",
    "second": "#f0954a", "good": "#5cc98a", "warning": "#e6b450", "bad": "#ff7b81",
    "same": "#242b37", "empty": "#475163",
}  # fmt: skip
"""The same names on a dark ground."""

LIGHT_RAMP = ("#dbe7f6", "#a3c4ea", "#6495d8", "#5a62bf", "#6f2c91", "#4f0a3c")
"""From a small difference to a large one, ever darker."""

DARK_RAMP = ("#1f3350", "#24567f", "#24828f", "#58b077", "#c9cf53", "#fff3bd")
"""From a small difference to a large one, ever brighter."""


def check_target(target: str | None) -> None:
    """Check, before any work, that a page can be written, if one is wanted.

    Raises:
        NotFoundError: its folder does not exist.
        UsageError: it is a folder, an option or the name of a checkpoint.
    """
    if target is None:
        return
    if target.startswith("-"):
        raise UsageError(f"{target!r} is an option, not a file", hint=f"write ./{target} for it")
    if is_checkpoint_name(target):
        raise UsageError(f"{target!r} would be a checkpoint", hint="name a page")
    if os.path.isdir(target) or not os.path.basename(target):
        raise UsageError(f"{target!r} is a folder", hint="name a file in it")
    if not os.path.isdir(os.path.dirname(target) or "."):
        raise NotFoundError(f"folder {os.path.dirname(target)!r} does not exist")


def write_comparison_page(
    kind: str, fields: Mapping[str, Any], target: str, *, quiet: bool
) -> None:
    """Write the page of a comparison, and name it on standard output unless quiet.

    Args:
        kind: the command, ``diff`` or ``verify``.
        fields: what ``--json`` prints, with ``label`` and ``commit`` of ``old`` and ``new``.
        target: the file.
        quiet: whether to say nothing.
    """
    known = {name: fields[name] for name in ("old", "new") if fields[name] is not None}
    sides = {name: {**side, **_facts(side["commit"])} for name, side in known.items()}
    title = " ".join(["mvc", kind, *(side["label"] for side in sides.values())])
    written = write_page(kind, title, {**fields, **sides}, target)
    if not quiet:
        stdout().line(written)


def _facts(commit: str | None) -> dict[str, object]:
    """Return what a report says of a commit."""
    if commit is None:
        return {}
    known = entry_fields(open_repo().show(commit))
    return {name: known[name] for name in ("subject", "step", "date")}


def write_page(kind: str, title: str, report: Mapping[str, Any], target: str) -> str:
    """Write a page as a whole or not at all; return a line that names it and its size.

    A pipe or device takes the bytes as they come.
    """
    data = page_bytes(kind, title, {**report, "overview": asdict(_OVERVIEWS[kind](report))})
    path = Path(os.path.realpath(target))
    if path.exists() and not path.is_file():
        with translate_os_errors(f"write {target}"), path.open("wb") as stream:
            stream.write(data)
    else:
        write_durable(path, [data])
    return f"{printable(target)}: {size_text(len(data))}"


def page_bytes(kind: str, title: str, report: object) -> bytes:
    """Return a page.

    Args:
        kind: ``diff`` or ``verify``: the script that draws it.
        title: the title of the window; names in it may be hostile.
        report: what ``--json`` prints, and what the page adds to it.
    """
    style = Template(_part("page.css")).substitute(
        light=_style_text(LIGHT, LIGHT_RAMP), dark=_style_text(DARK, DARK_RAMP)
    )
    # One scope for all parts, so that nothing of them is in the window's own.
    script = f'"use strict";\n{{\n{"".join(map(_part, (*_SHARED, f"{kind}.js")))}}}\n'
    # JSON that no name in it can end the element of; only ASCII, whatever is in names.
    data = json.dumps(_pack(report), allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    text = Template(_part("page.html")).substitute(
        style=style,
        style_hash=_hash(style),
        script=script,
        script_hash=_hash(script),
        title=escape(printable(title)),
        version=mvc.__version__,
        report=data,
    )
    return text.encode()


def _style_text(colours: dict[str, str], ramp: tuple[str, ...]) -> str:
    """Return colours as custom properties of CSS."""
    pairs = {**colours, "ramp": ", ".join(ramp)}
    return " ".join(f"--{name}: {value};" for name, value in pairs.items())


def _part(name: str) -> str:
    return (files("mvc.cli.pages") / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """Return what the Content-Security-Policy calls an inline script or style by."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _pack(value: object) -> object:
    """Return a report as ``unpack`` in frame.js takes it: much shorter where it is long.

    A list of objects becomes its columns, and numbers keep the digits that a page shows.
    """
    if isinstance(value, float):
        return float(f"{value:.7g}") if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {key: _pack(item) for key, item in value.items()}
    if not isinstance(value, (list, tuple)):
        return value
    objects = [item for item in value if isinstance(item, dict)]
    if not objects or len(objects) + value.count(None) < len(value):
        return [_pack(item) for item in value]
    keys = list(dict.fromkeys(key for item in objects for key in item))
    columns = [[None if item is None else item.get(key) for item in value] for key in keys]
    return {"keys": keys, "columns": [_pack(column) for column in columns]}
