"""checkout, switch, restore, reset: from one version to another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from mvc.cli.group import PathsCommand, PlainCommand, check_alone, new_app, paths_behind, usage
from mvc.cli.options import Json, Quiet, ShowProgress
from mvc.cli.output import Output, printable, stdout, write_json
from mvc.cli.progress import byte_progress
from mvc.cli.render import count_text, short_id
from mvc.cli.session import find_previous, open_repo, shown_path, split_revisions, to_paths

if TYPE_CHECKING:
    from mvc.history.values import Head
    from mvc.operations.checkout_plan import CheckoutResult
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
        _write_restored(stdout(), result, origin)
    elif not quiet:
        _write_move(repo, stdout(), head, result, is_new=new_branch is not None)


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
        _write_move(repo, stdout(), head, result, is_new=create is not None)


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
        _write_restored(stdout(), result, origin)


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

    Where the branch was before is kept: "mvc reset --hard HEAD@{1}" takes a reset back.
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
        _write_reset(repo, stdout(), result, mode=mode)


def _split_reset(
    repo: Repo, names: list[str], behind: list[str] | None
) -> tuple[list[str], list[str]]:
    """Before the first commit HEAD is no revision, but ``reset HEAD PATH`` unstages all the same."""
    if repo.head.commit is None and names[:1] == ["HEAD"]:
        names = names[1:]
    return split_revisions(repo, names, behind)


def result_fields(result: CheckoutResult) -> dict[str, object]:
    """Return what ``checkout --json`` and its sisters print."""
    return {
        "commit": result.commit,
        "branch": result.branch,
        "written": result.written,
        "removed": result.removed,
    }


def _write_move(
    repo: Repo, out: Output, before: Head, result: CheckoutResult, *, is_new: bool
) -> None:
    if before.branch is None and before.commit not in (None, result.commit):
        out.line(f"Previous HEAD position was {_commit_line(repo, out, before.commit)}")
    if result.branch is None:
        out.line(f"HEAD is now at {_commit_line(repo, out, result.commit)}")
        if before.branch is not None:
            out.line(
                '(detached: commits made here are on no branch; "mvc switch -c NAME" makes one)'
            )
    else:
        verb = "Switched to" if result.branch != before.branch else "Already on"
        what = "a new branch" if is_new else "branch"
        if verb == "Already on":
            what = ""
        out.line(" ".join(filter(None, [verb, what, f"'{printable(result.branch)}'"])))
    counts = _counts(result)
    if counts:
        out.line(counts)


def _commit_line(repo: Repo, out: Output, commit: str | None) -> str:
    subject = repo.show(commit).info.subject if commit is not None else ""
    return f"{out.style(short_id(commit), 'yellow')} {printable(subject)}".rstrip()


def _counts(result: CheckoutResult) -> str:
    parts = []
    if result.written:
        parts.append(f"{count_text(len(result.written), 'file')} written")
    if result.removed:
        parts.append(f"{count_text(len(result.removed), 'file')} removed")
    return ", ".join(parts)


def _write_restored(out: Output, result: CheckoutResult, origin: str) -> None:
    out.line(f"Updated {count_text(len(result.written), 'path')} from {origin}")


def _write_reset(repo: Repo, out: Output, result: CheckoutResult, *, mode: str) -> None:
    if mode == "hard":
        out.line(f"HEAD is now at {_commit_line(repo, out, result.commit)}")
    if mode != "mixed":
        return
    changed = [file for file in repo.status(untracked=False).files if file.worktree != "unmodified"]
    if changed:
        out.line("Unstaged changes after reset:")
        out.lines(f"{file.code[1]}\t{printable(shown_path(repo, file.path))}" for file in changed)
