"""checkout, switch, restore, reset, undo: from one version to another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from mvc.cli.group import PathsCommand, PlainCommand, check_alone, new_app, paths_behind, usage
from mvc.cli.moving_text import (
    result_fields,
    undo_fields,
    write_move,
    write_reset,
    write_restored,
    write_undo,
)
from mvc.cli.options import Json, Quiet, ShowProgress
from mvc.cli.output import stdout, write_json
from mvc.cli.progress import byte_progress
from mvc.cli.render import short_id
from mvc.cli.session import find_previous, open_repo, split_revisions, to_paths

if TYPE_CHECKING:
    from mvc.repo import Repo

app = new_app()

_Force = Annotated[
    bool, typer.Option("-f", "--force", help="Throw local changes away that are in the way.")
]
_Detach = Annotated[bool, typer.Option("--detach", help="Go to the commit, not onto the branch.")]


@app.command(cls=PathsCommand)
def checkout(
    context: typer.Context,
    names: Annotated[list[str] | None, typer.Argument(metavar="[REV | -] [[--] PATH...]")] = None,
    new_branch: Annotated[
        str | None,
        typer.Option("-b", metavar="NAME", help="Make this branch at REV (HEAD) and go there."),
    ] = None,
    force: _Force = False,
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
    revisions, paths = split_revisions(repo, given, paths_behind(context))
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


@app.command(cls=PlainCommand)
def switch(
    context: typer.Context,
    target: Annotated[str | None, typer.Argument(metavar="[BRANCH | - | START]")] = None,
    create: Annotated[
        str | None,
        typer.Option("-c", "--create", metavar="NAME", help="Make this branch at START (HEAD)."),
    ] = None,
    force: _Force = False,
    detach: Annotated[
        bool, typer.Option("-d", "--detach", help="Go to any revision, not onto a branch.")
    ] = False,
    quiet: Quiet = False,
    progress: ShowProgress = True,
    as_json: Json = False,
) -> None:
    """Go to a branch.

    "-" is the branch before the last switch.
    """
    check_alone(context, [("-c", create is not None), ("--detach", detach)])
    if target is None and create is None and not detach:
        raise usage("no branch is named", context)
    repo = open_repo(writes=True)
    head = repo.head
    name = find_previous(repo) if target == "-" else target
    with byte_progress("switching", wanted=progress and not quiet) as bar:
        if create is not None:
            result = repo.switch(create, create=True, start=name, force=force, progress=bar)
        elif detach:
            result = repo.checkout(name or "HEAD", force=force, detach=True, progress=bar)
        else:
            assert name is not None
            result = repo.switch(name, force=force, progress=bar)
    if as_json:
        write_json(result_fields(result))
    elif not quiet:
        write_move(repo, stdout(), head, result, is_new=create is not None)


@app.command(cls=PlainCommand)
def restore(
    paths: Annotated[list[str], typer.Argument(metavar="PATH...", show_default=False)],
    source: Annotated[
        str | None,
        typer.Option("-s", "--source", metavar="REV", help="Take them from this revision."),
    ] = None,
    staged: Annotated[
        bool, typer.Option("-S", "--staged", help="Bring back what is staged: unstage.")
    ] = False,
    worktree: Annotated[
        bool, typer.Option("-W", "--worktree", help="Bring back the files (as without --staged).")
    ] = False,
    quiet: Quiet = False,
    progress: ShowProgress = True,
    as_json: Json = False,
) -> None:
    """Bring files back from the index or a revision, whatever they hold now.

    Without --source the worktree gets what is staged, and --staged gets what HEAD has.
    """
    repo = open_repo(writes=True)
    with byte_progress("restoring", wanted=progress and not quiet) as bar:
        result = repo.restore(
            to_paths(paths),
            source=source,
            staged=staged,
            worktree=worktree or not staged,
            progress=bar,
        )
    if as_json:
        write_json(result_fields(result))
    elif not quiet and result.written:
        default = "HEAD" if staged else "the index"
        origin = default if source is None else short_id(repo.resolve(source))
        write_restored(stdout(), result, origin)


@app.command(cls=PathsCommand)
def reset(
    context: typer.Context,
    names: Annotated[list[str] | None, typer.Argument(metavar="[REV] [[--] PATH...]")] = None,
    soft: Annotated[bool, typer.Option("--soft", help="Move the branch only.")] = False,
    mixed: Annotated[
        bool, typer.Option("--mixed", help="Also the index (what happens without an option).")
    ] = False,
    hard: Annotated[
        bool, typer.Option("--hard", help="Also the files: local changes are LOST.")
    ] = False,
    quiet: Quiet = False,
    progress: ShowProgress = True,
    as_json: Json = False,
) -> None:
    """Move the current branch to a revision, or unstage files.

    With PATHs the branch stays, and their index entries become those of REV (HEAD).

    Where the branch was before is kept: "mvc undo" takes a reset back.
    """
    modes = {"soft": soft, "mixed": mixed, "hard": hard}
    check_alone(context, [(f"--{mode}", value) for mode, value in modes.items()])
    mode = next((mode for mode, value in modes.items() if value), "mixed")
    repo = open_repo(writes=True)
    behind = paths_behind(context)
    if not names and behind is None:
        revisions, paths = list[str](), list[str]()
    else:
        revisions, paths = _split_reset(repo, names or [], behind)
    if len(revisions) > 1:
        raise usage(f"there is one revision to go to, not {len(revisions)}", context)
    if paths and (soft or hard):
        raise usage(f"--{mode} does not go with paths", context)
    revision = revisions[0] if revisions else "HEAD"
    with byte_progress("resetting", wanted=progress and not quiet) as bar:
        result = repo.reset(revision, mode=mode, paths=paths, progress=bar)
    if as_json:
        write_json(result_fields(result))
    elif not quiet:
        write_reset(repo, stdout(), result, mode=mode)


def _split_reset(
    repo: Repo, names: list[str], behind: list[str] | None
) -> tuple[list[str], list[str]]:
    """Before the first commit HEAD is no revision, but ``reset HEAD PATH`` unstages all the same."""
    if repo.head.commit is None and names[:1] == ["HEAD"]:
        names = names[1:]
    return split_revisions(repo, names, behind)


@app.command(cls=PlainCommand)
def undo(
    redo: Annotated[
        bool, typer.Option("--redo", help="Do again what the last undo took back.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("-n", "--dry-run", help="Only say what would be taken back.")
    ] = False,
    force: _Force = False,
    quiet: Quiet = False,
    progress: ShowProgress = True,
    as_json: Json = False,
) -> None:
    """Take back the last commit, amend, merge, switch or reset.

    After a commit, amend or merge the branch moves back; files and index stay as they are, so the
    work is staged again. After a switch HEAD goes back to where it was. After a reset the branch,
    the index and the files return.

    "mvc undo" again steps further back, and "mvc undo --redo" returns. Changed files stop an undo
    that would overwrite them, unless -f is given. What is staged only, or was never added, is in no
    history and cannot be brought back.
    """
    repo = open_repo(writes=True)
    with byte_progress("undoing", wanted=progress and not quiet) as bar:
        result = repo.undo(redo=redo, force=force, dry_run=dry_run, progress=bar)
    if as_json:
        write_json({**undo_fields(result), "dry_run": dry_run})
    elif not quiet:
        write_undo(repo, stdout(), result, redo=redo, dry_run=dry_run)
