"""``mvc log --format``: Git's fields, and those of training runs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from mvc.cli.output import printable
from mvc.cli.render.text import git_date, iso_date, number_text, short_id
from mvc.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from mvc.operations.log import LogEntry

_FIELD = re.compile(r"%(\((step|metric:[^)]*|meta:[^)]*)\)|a[nedIt]|[HhPpTsbBdDn%]|.?)", re.DOTALL)
_FIELDS: dict[str, Callable[[LogEntry], str]] = {
    "H": lambda entry: entry.info.id,
    "h": lambda entry: short_id(entry.info.id),
    "P": lambda entry: " ".join(entry.info.parents),
    "p": lambda entry: " ".join(map(short_id, entry.info.parents)),
    "T": lambda entry: entry.info.tree,
    "s": lambda entry: entry.info.subject,
    "b": lambda entry: entry.info.body,
    "B": lambda entry: entry.info.message.rstrip("\n"),
    "d": lambda entry: f" ({', '.join(entry.refs)})" if entry.refs else "",
    "D": lambda entry: ", ".join(entry.refs),
    "an": lambda entry: entry.info.author.name,
    "ae": lambda entry: entry.info.author.email,
    "at": lambda entry: str(entry.info.author_time_s),
    "ad": lambda entry: git_date(entry.info.author_time_s, entry.info.author_timezone_s),
    "aI": lambda entry: iso_date(entry.info.author_time_s, entry.info.author_timezone_s),
    "n": lambda _: "\n",
    "%": lambda _: "%",
}


def check_format(form: str) -> str:
    """Return the fields of ``format:...`` or plain text; UsageError names what is not a field."""
    form = form.removeprefix("t").removeprefix("format:") if "format:" in form[:8] else form
    found = list(_FIELD.finditer(form))
    bad = next((match[0] for match in found if not match[2] and match[1] not in _FIELDS), None)
    if bad is not None or not found:
        raise UsageError(
            f"--format has no field {bad!r}" if bad else f"--format {form[:80]!r} names no field",
            hint="fields: %H %h %P %s %b %an %ae %ad %aI %at %d %D %n %% "
            "%(step) %(metric:NAME) %(meta:NAME)",
        )
    return form


def format_entry(form: str, entry: LogEntry) -> str:
    """Return a commit's line, or lines, in a checked format."""
    return _FIELD.sub(lambda match: _value(match, entry), form)


def _value(match: re.Match[str], entry: LogEntry) -> str:
    if not match[2]:
        text = _FIELDS[match[1]](entry)
        return "\n".join(map(printable, text.split("\n")))
    kind, _, name = match[2].partition(":")
    if kind == "meta":
        return printable((entry.annotations.meta or {}).get(name, ""))
    value = entry.step if kind == "step" else entry.metrics.get(name)
    return "" if value is None else f"{value}" if kind == "step" else number_text(value)
