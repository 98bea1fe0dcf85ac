"""A report as one HTML file."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from html import escape
from importlib.resources import files
from string import Template

import mvc
from mvc.cli.output import printable
from mvc.cli.pages.colours import DARK, DARK_RAMP, LIGHT, LIGHT_RAMP, style_text

_SHARED = ("frame.js", "histogram.js", "heatmap.js", "table.js")


def page_bytes(kind: str, title: str, report: object) -> bytes:
    """Return a page.

    Args:
        kind: ``diff`` or ``verify``: the script that draws it.
        title: the title of the window; names in it may be hostile.
        report: what ``--json`` prints, and what the page adds to it.
    """
    style = Template(_part("page.css")).substitute(
        light=style_text(LIGHT, LIGHT_RAMP), dark=style_text(DARK, DARK_RAMP)
    )
    # One scope for all parts, so that nothing of them is in the window's own.
    script = f'"use strict";\n{{\n{"".join(map(_part, (*_SHARED, f"{kind}.js")))}}}\n'
    text = Template(_part("page.html")).substitute(
        style=style,
        style_hash=_hash(style),
        script=script,
        script_hash=_hash(script),
        title=escape(printable(title)),
        version=mvc.__version__,
        report=_data(report),
    )
    return text.encode()


def _part(name: str) -> str:
    return (files("mvc.cli.pages") / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """Return what the Content-Security-Policy calls an inline script or style by."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _data(report: object) -> str:
    """Return JSON that no name in it can end the element of; only ASCII, whatever is in names."""
    text = json.dumps(_pack(report), allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


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
    objects = [one for one in value if isinstance(one, dict)]
    if not objects or len(objects) + value.count(None) < len(value):
        return [_pack(one) for one in value]
    keys = list(dict.fromkeys(key for one in objects for key in one))
    columns = [[None if one is None else one.get(key) for one in value] for key in keys]
    return {"keys": keys, "columns": [_pack(column) for column in columns]}
