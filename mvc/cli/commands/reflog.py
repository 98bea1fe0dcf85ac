"""Show where a branch or HEAD has been."""

from __future__ import annotations

from mvc.cli.options import JSON, LIMIT
from mvc.cli.output import Output, Shown, pick, printable
from mvc.cli.parameters import argument
from mvc.cli.render.text import iso_date, short_id
from mvc.cli.session import open_repo


def reflog(
    ref: str = argument("[REF]", default="HEAD"),
    limit: int | None = LIMIT,
    shown: Shown = JSON,
) -> None:
    """Show where a branch or HEAD has been, newest first.

    REF@{N} is a revision: "mvc checkout HEAD@{1}" goes back to where HEAD was before its last move.
    """
    repo = open_repo()
    entries = list(enumerate(repo.reflog(ref)))[:limit]
    fields = [
        {
            "ref": f"{ref}@{{{number}}}",
            **pick(entry, "old new"),
            "who": f"{entry.who.name} <{entry.who.email}>",
            "date": iso_date(entry.time_s, entry.timezone_s),
            "message": entry.message,
        }
        for number, entry in entries
    ]

    def write(out: Output) -> None:
        for number, entry in entries:
            name = out.style(short_id(entry.new), "yellow")
            out.line(f"{name} {printable(ref)}@{{{number}}}: {printable(entry.message)}")

    shown.page(fields, write)
