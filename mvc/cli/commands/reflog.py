"""Show where a branch or HEAD has been."""

from __future__ import annotations

from mvc.cli.options import JSON, LIMIT
from mvc.cli.output import paged, pick, printable, write_json
from mvc.cli.parameters import argument
from mvc.cli.render.text import iso_date, short_id
from mvc.cli.session import open_repo


def reflog(
    ref: str = argument("[REF]", default="HEAD"),
    limit: int | None = LIMIT,
    as_json: bool = JSON,
) -> None:
    """Show where a branch or HEAD has been, newest first.

    REF@{N} is a revision: "mvc checkout HEAD@{1}" goes back to where HEAD was before its last move.
    """
    repo = open_repo()
    entries = list(enumerate(repo.reflog(ref)))[:limit]
    if as_json:
        write_json(
            [
                {
                    "ref": f"{ref}@{{{number}}}",
                    **pick(entry, "old new"),
                    "who": f"{entry.who.name} <{entry.who.email}>",
                    "date": iso_date(entry.time_s, entry.timezone_s),
                    "message": entry.message,
                }
                for number, entry in entries
            ]
        )
        return
    out = paged()
    out.lines(
        f"{out.style(short_id(entry.new), 'yellow')} {printable(ref)}@{{{number}}}: "
        f"{printable(entry.message)}"
        for number, entry in entries
    )
