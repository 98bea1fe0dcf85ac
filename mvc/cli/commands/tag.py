"""List, create or delete tags."""

from __future__ import annotations

import fnmatch
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Context, Option

from mvc.cli.arguments import name_and_start, usage
from mvc.cli.options import Json, Quiet
from mvc.cli.output import pick, printable, stdout, write_json
from mvc.cli.render.text import short_id
from mvc.cli.session import open_repo

if TYPE_CHECKING:
    from collections.abc import Sequence


def tag(
    context: Context,
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
        raise usage("an annotated tag needs a message: give one with -m", context)
    if delete:
        _delete_tags(context, given, quiet=quiet, as_json=as_json)
    elif given and listed is None:
        name, revision = name_and_start(context, given)
        repo = open_repo(writes=True)
        commit = repo.create_tag(name, revision, message=message, force=force)
        if as_json:
            write_json({"created": {"name": name, "commit": commit}})
    else:
        _list_tags([*given, *([] if listed is None else [listed])], as_json=as_json)


def _delete_tags(context: Context, names: Sequence[str], *, quiet: bool, as_json: bool) -> None:
    if not names:
        raise usage("name a tag", context)
    repo = open_repo(writes=True)
    deleted = [(name, repo.delete_tag(name)) for name in names]
    if as_json:
        write_json({"deleted": [{"name": name, "commit": commit} for name, commit in deleted]})
    elif not quiet:
        stdout().lines(
            f"Deleted tag '{printable(name)}' (was {short_id(commit)})" for name, commit in deleted
        )


def _list_tags(globs: Sequence[str], *, as_json: bool) -> None:
    found = [
        ref
        for ref in open_repo().tags()
        if not globs or any(fnmatch.fnmatchcase(ref.name, glob) for glob in globs)
    ]
    if as_json:
        write_json([pick(ref, "name commit subject") for ref in found])
    else:
        stdout().lines(printable(ref.name) for ref in found)
