"""List, create or delete tags."""

from __future__ import annotations

import fnmatch
from typing import TYPE_CHECKING, Annotated

from mvc.cli.commands.branch import write_deleted
from mvc.cli.options import CommandUsageError, Json, Quiet, name_and_start
from mvc.cli.output import paged, pick, printable, write_json
from mvc.cli.parameters import Argument, Option
from mvc.cli.session import open_repo

if TYPE_CHECKING:
    from collections.abc import Sequence


def tag(
    names: Annotated[list[str] | None, Argument(metavar="[NAME [REV]]")] = None,
    annotate: Annotated[
        bool, Option("-a", "--annotate", help="Create an annotated tag; needs -m.")
    ] = False,
    message: Annotated[
        str | None, Option("-m", "--message", metavar="TEXT", help="Message of an annotated tag.")
    ] = None,
    delete: Annotated[bool, Option("-d", "--delete", help="Delete tags.")] = False,
    force: Annotated[bool, Option("-f", "--force", help="Move an existing tag.")] = False,
    listed: Annotated[
        str | None, Option("-l", "--list", metavar="GLOB", help="List only tags that match GLOB.")
    ] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """List, create or delete tags."""
    given = names or []
    if annotate and not (message or "").strip():
        raise CommandUsageError("an annotated tag needs a message: give one with -m")
    if delete:
        if not given:
            raise CommandUsageError("name a tag")
        repo = open_repo()
        deleted = [(name, repo.delete_tag(name)) for name in given]
        write_deleted("Deleted tag '{}' (was {})", deleted, quiet=quiet, as_json=as_json)
    elif given and listed is None:
        name, revision = name_and_start(given)
        repo = open_repo()
        commit = repo.create_tag(name, revision, message=message, force=force)
        if as_json:
            write_json({"created": {"name": name, "commit": commit}})
    else:
        _list_tags([*given, *([] if listed is None else [listed])], as_json=as_json)


def _list_tags(globs: Sequence[str], *, as_json: bool) -> None:
    repo = open_repo()
    found = [
        ref
        for ref in repo.tags()
        if not globs or any(fnmatch.fnmatchcase(ref.name, glob) for glob in globs)
    ]
    if as_json:
        write_json(
            [
                {
                    **pick(ref, "name commit subject"),
                    "message": repo.tag_message(f"refs/tags/{ref.name}"),
                }
                for ref in found
            ]
        )
    else:
        paged().lines(printable(ref.name) for ref in found)
