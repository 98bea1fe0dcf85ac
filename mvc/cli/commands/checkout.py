"""Go to a branch or revision, or bring files back from it."""

from __future__ import annotations

from typing import Annotated

import typer

from mvc.cli.group import paths_after, usage
from mvc.cli.options import Force, Json, Quiet, ShowProgress
from mvc.cli.output import stdout, write_json
from mvc.cli.progress import byte_progress
from mvc.cli.render.moves import result_fields, write_move, write_restored
from mvc.cli.render.text import short_id
from mvc.cli.session import find_previous, open_repo, split_revisions

_Detach = Annotated[bool, typer.Option("--detach", help="Go to the commit, not onto the branch.")]


def checkout(
    context: typer.Context,
    names: Annotated[list[str] | None, typer.Argument(metavar="[REV | -] [[--] PATH...]")] = None,
    new_branch: Annotated[
        str | None,
        typer.Option("-b", metavar="NAME", help="Make this branch at REV (HEAD) and go there."),
    ] = None,
    force: Force = False,
    detach: _Detach = False,
    quiet: Quiet = False,
    progress: ShowProgress = True,
    as_json: Json = False,
) -> None:
    """Go to a branch or revision, or bring files back from it.

    With PATHs HEAD stays where it is, and the files are overwritten with what REV (without one:
    the index) has. "-" is the branch or commit before the last switch.

    Every byte that is written was verified against its id. Changed files stop a checkout that
    would overwrite them, unless -f is given; nothing is touched then.
    """
    repo = open_repo(writes=True)
    head = repo.head
    given = [find_previous(repo) if name == "-" else name for name in names or ()]
    revisions, paths = split_revisions(repo, given, paths_after(context))
    if len(revisions) > 1:
        raise usage(f"there is one revision to go to, not {len(revisions)}", context)
    revision = revisions[0] if revisions else None
    if paths and (new_branch is not None or detach):
        raise usage("-b and --detach do not go with paths", context)
    with byte_progress("checking out", wanted=progress and not quiet) as bar:
        if new_branch is not None:
            result = repo.switch(new_branch, create=True, start=revision, force=force, progress=bar)
        elif not paths:
            target = revision or "HEAD"
            result = repo.checkout(target, force=force, detach=detach, progress=bar)
        elif revision is None:
            result = repo.restore(paths, progress=bar)
        else:
            result = repo.checkout(revision, paths=paths, progress=bar)
    if as_json:
        write_json(result_fields(result))
    elif not quiet and paths:
        origin = "the index" if revision is None else short_id(repo.resolve(revision))
        write_restored(stdout(), result, origin)
    elif not quiet:
        write_move(repo, stdout(), head, result, is_new=new_branch is not None)
