"""List, create or delete tags."""

from __future__ import annotations

import fnmatch
from typing import TYPE_CHECKING, Annotated

import typer

from mvc.cli.group import usage
from mvc.cli.options import Json, Quiet
from mvc.cli.output import printable, stdout, write_json
from mvc.cli.render.text import short_id
from mvc.cli.session import open_repo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mvc.repo import Repo


def tag(
    context: typer.Context,
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME [REV]]")] = None,
    annotate: Annotated[
        bool, typer.Option("-a", "--annotate", help="Make an annotated tag; needs -m.")
    ] = False,
    message: Annotated[
        str | None,
        typer.Option("-m", "--message", metavar="TEXT", help="The text of an annotated tag."),
    ] = None,
    delete: Annotated[bool, typer.Option("-d", "--delete", help="Delete tags.")] = False,
    force: Annotated[bool, typer.Option("-f", "--force", help="Move a tag that exists.")] = False,
    listed: Annotated[
        str | None, typer.Option("-l", "--list", metavar="GLOB", help="Only tags that fit.")
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
        _create_tag(context, given, message, force=force, as_json=as_json)
    else:
        _list_tags(open_repo(), [*given, *([] if listed is None else [listed])], as_json=as_json)


def _delete_tags(
    context: typer.Context, names: Sequence[str], *, quiet: bool, as_json: bool
) -> None:
    if not names:
        raise usage("no tag is named", context)
    repo = open_repo(writes=True)
    deleted = [(name, repo.delete_tag(name)) for name in names]
    if as_json:
        write_json({"deleted": [{"name": name, "commit": commit} for name, commit in deleted]})
    elif not quiet:
        stdout().lines(
            f"Deleted tag '{printable(name)}' (was {short_id(commit)})" for name, commit in deleted
        )


def _create_tag(
    context: typer.Context,
    names: Sequence[str],
    message: str | None,
    *,
    force: bool,
    as_json: bool,
) -> None:
    if len(names) > 2:  # noqa: PLR2004  name and revision
        raise usage(f"{names[2]!r} is one argument too many", context)
    repo = open_repo(writes=True)
    name, revision = [*names, "HEAD"][:2]
    commit = repo.create_tag(name, revision, message=message, force=force)
    if as_json:
        write_json({"created": {"name": name, "commit": commit}})


def _list_tags(repo: Repo, globs: Sequence[str], *, as_json: bool) -> None:
    found = [
        ref
        for ref in repo.tags()
        if not globs or any(fnmatch.fnmatchcase(ref.name, glob) for glob in globs)
    ]
    if as_json:
        write_json(
            [{"name": ref.name, "commit": ref.commit, "subject": ref.subject} for ref in found]
        )
    else:
        stdout().lines(printable(ref.name) for ref in found)
