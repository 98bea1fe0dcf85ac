"""Go to a branch or revision, bring files back from it, or move the branch."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from mvc.cli.options import FORCE, QUIET_PROGRESS_JSON, check_alone, choose_one
from mvc.cli.output import Output, Shown, printable
from mvc.cli.parameters import CommandUsageError, argument, arguments, flag, string
from mvc.cli.progress import byte_progress
from mvc.cli.render.moves import commit_line, restored_text, result_fields, write_move
from mvc.cli.session import (
    find_previous,
    is_revision,
    open_repo,
    shown_path,
    split_revision,
    to_paths,
)
from mvc.errors import NotFoundError

if TYPE_CHECKING:
    from mvc.repo import Repo
    from mvc.workspace.checkout_plan import CheckoutResult


def checkout(
    names: list[str] = arguments("[REV | -] [[--] PATH...]"),
    new_branch: str | None = string("-b NAME", "Create this branch at REV (HEAD) and go there."),
    force: bool = FORCE,
    detach: bool = flag("--detach", "Go to the commit of a branch, not to the branch."),
    shown: Shown = QUIET_PROGRESS_JSON,
) -> None:
    """Go to a branch or revision, or bring files back from it.

    With PATHs, HEAD stays where it is and the files are overwritten with those of REV, or of the
    index if there is no REV. "-" is the branch or commit before the last switch. A branch that only
    one remote has is made here, and follows it.

    Every byte is verified before it is written. If changed files would be overwritten, nothing is
    touched unless -f is given.
    """
    repo = open_repo()
    before = repo.head
    end = names.index("--") if "--" in names else len(names)
    names[:end] = [find_previous(repo) if name == "-" else name for name in names[:end]]
    is_guessed = False
    if len(names) == 1 and not (os.path.lexists(names[0]) or is_revision(repo, names[0])):
        names_there = {ref.name.partition("/")[2] for ref in repo.branches.list(remote=True)}
        is_guessed = names[0] in names_there
    split = split_revision(repo, [] if is_guessed else names, prefer_revision=True)
    revision, paths = (names[0], []) if is_guessed else split
    if paths and (new_branch is not None or detach):
        raise CommandUsageError("-b and --detach cannot be used with paths")
    with byte_progress("checking out", wanted=shown.progress):
        if new_branch is not None:
            result = repo.switch(new_branch, create=True, start=revision, force=force)
        elif not paths:
            target = revision or "HEAD"
            result = repo.checkout(target, force=force, detach=detach)
        elif revision is None:
            result = repo.restore(paths)
        else:
            result = repo.checkout(revision, paths=paths)
    fields = result_fields(result)
    if paths:
        shown.answer(fields, Output.line, restored_text(repo, result, revision, "the index"))
    else:
        shown.answer(fields, write_move, repo, before, result, is_new=new_branch is not None)


def switch(
    target: str | None = argument("[BRANCH | - | START]"),
    create: str | None = string("-c, --create NAME", "Create this branch at START (HEAD)."),
    force: bool = FORCE,
    detach: bool = flag("-d, --detach", "Go to any revision instead of a branch."),
    shown: Shown = QUIET_PROGRESS_JSON,
) -> None:
    """Go to a branch.

    "-" is the branch before the last switch. A branch that only one remote has is made here, and
    follows it.
    """
    check_alone([("-c", create is not None), ("--detach", detach)])
    if target is None and create is None and not detach:
        raise CommandUsageError("name a branch")
    repo = open_repo()
    before = repo.head
    name = find_previous(repo) if target == "-" else target
    with byte_progress("switching", wanted=shown.progress):
        if create is not None:
            result = repo.switch(create, create=True, start=name, force=force)
        elif detach:
            result = repo.checkout(name or "HEAD", force=force, detach=True)
        else:
            assert name is not None
            result = repo.switch(name, force=force)
    fields = result_fields(result)
    shown.answer(fields, write_move, repo, before, result, is_new=create is not None)


def restore(
    paths: list[str] = arguments("PATH...", required=True),
    source: str | None = string("-s, --source REV", "Take them from this revision."),
    staged: bool = flag("-S, --staged", "Restore the index: unstage the files."),
    worktree: bool = flag("-W, --worktree", "Restore the worktree (default without --staged)."),
    shown: Shown = QUIET_PROGRESS_JSON,
) -> None:
    """Bring files back from the index or a revision, and discard what they hold now.

    Without --source, the worktree is restored from the index, and the index from HEAD.
    """
    repo = open_repo()
    with byte_progress("restoring", wanted=shown.progress):
        try:
            result = repo.restore(
                to_paths(paths), source=source, staged=staged, worktree=worktree or not staged
            )
        except NotFoundError as error:
            if source is None and is_revision(repo, paths[0]):
                error.hint = f'"mvc restore -s {paths[0]} PATH" takes files from that revision'
            raise
    default = "HEAD" if staged else "the index"
    lines = [restored_text(repo, result, source, default)] if result.written else []
    shown.answer(result_fields(result), Output.lines, lines)


def reset(
    names: list[str] = arguments("[REV] [[--] PATH...]"),
    soft: bool = flag("--soft", "Move the branch only."),
    mixed: bool = flag("--mixed", "Reset the index too (default)."),
    hard: bool = flag("--hard", "Reset index and files too: local changes are LOST."),
    shown: Shown = QUIET_PROGRESS_JSON,
) -> None:
    """Move the current branch to a revision, or unstage files.

    With PATHs the branch stays, and their index entries become those of REV (HEAD).

    "mvc undo" takes a reset back.
    """
    mode = choose_one({"soft": soft, "mixed": mixed, "hard": hard}, "mixed")
    repo = open_repo()
    if repo.head.commit is None and names[:1] == ["HEAD"]:
        names = names[1:]  # no revision before the first commit, but "reset HEAD PATH" unstages
    revision, paths = split_revision(repo, names)
    if paths and (soft or hard):
        raise CommandUsageError(f"--{mode} cannot be used with paths")
    with byte_progress("resetting", wanted=shown.progress):
        result = repo.reset(revision or "HEAD", mode=mode, paths=paths)
    shown.answer(result_fields(result), _write_reset, repo, result, mode)


def _write_reset(out: Output, repo: Repo, result: CheckoutResult, mode: str) -> None:
    """Write where HEAD is after a hard reset, and what is unstaged after a mixed one."""
    if mode == "hard":
        out.line(f"HEAD is now at {commit_line(repo, out, result.commit)}")
    if mode != "mixed":
        return
    changed = [file for file in repo.status(untracked=False).files if file.worktree != "unmodified"]
    if changed:
        out.line("Unstaged changes after reset:")
        out.lines(f"{file.code[1]}\t{printable(shown_path(repo, file.path))}" for file in changed)
