"""Move the current branch, or unstage files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from mvc.cli.group import check_alone, paths_after, usage
from mvc.cli.options import Json, Quiet, ShowProgress
from mvc.cli.output import Output, printable, stdout, write_json
from mvc.cli.progress import byte_progress
from mvc.cli.render.moves import commit_line, result_fields
from mvc.cli.session import open_repo, shown_path, split_revisions

if TYPE_CHECKING:
    from mvc.repo import Repo
    from mvc.workspace.checkout_plan import CheckoutResult


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
    behind = paths_after(context)
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


def write_reset(repo: Repo, out: Output, result: CheckoutResult, *, mode: str) -> None:
    """Write where the branch is after a hard reset, what is unstaged after a mixed one."""
    if mode == "hard":
        out.line(f"HEAD is now at {commit_line(repo, out, result.commit)}")
    if mode != "mixed":
        return
    changed = [file for file in repo.status(untracked=False).files if file.worktree != "unmodified"]
    if changed:
        out.line("Unstaged changes after reset:")
        out.lines(f"{file.code[1]}\t{printable(shown_path(repo, file.path))}" for file in changed)
