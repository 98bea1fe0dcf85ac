"""Go to a branch."""

from __future__ import annotations

from mvc.cli.options import FORCE, QUIET_PROGRESS_JSON, check_alone
from mvc.cli.output import Shown
from mvc.cli.parameters import CommandUsageError, argument, flag, string
from mvc.cli.progress import byte_progress
from mvc.cli.render.moves import result_fields, write_move
from mvc.cli.session import find_previous, open_repo


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
