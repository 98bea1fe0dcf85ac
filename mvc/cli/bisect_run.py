"""bisect run: a command tests the commits, and its exit code is the answer, as in Git."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

from mvc.cli.output import printable, stdout
from mvc.cli.parameters import CommandUsageError
from mvc.cli.render.bisect import write_step
from mvc.cli.render.text import short_id
from mvc.errors import ConflictError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable

    from mvc.ids import GitId
    from mvc.operations.bisect import BisectStep
    from mvc.repo import Repo

_STDERR = 2
_CANNOT_SAY = 125
_NOT_RUN = (126, 127)  # how a shell says that a command is not there, or not to be run
_ABORT = 128


def run_command(
    repo: Repo, words: list[str], progress: Callable[[int], None] | None, *, as_json: bool
) -> BisectStep:
    """Test commits by a command until the first bad one is found."""
    while words[:1] == ["--"]:
        del words[0]
    if not words:
        raise CommandUsageError("name the command that tests a commit: run CMD...")
    if shutil.which(words[0]) is None:
        raise NotFoundError(f"command {words[0]!r} cannot be found or run")
    first, out = repo.bisect_step(), stdout()
    is_untried = True

    def test(commit: GitId) -> bool | None:
        nonlocal is_untried
        code = _execute(words, commit, is_aside=as_json)
        if is_untried and code in _NOT_RUN and first is not None:
            _check_elsewhere(repo, words, code, commit, first.good[0], is_aside=as_json)
        is_untried = False
        return None if code == _CANNOT_SAY else code == 0

    def tell(step: BisectStep) -> None:
        if not as_json:
            if first is None or step.commit != first.commit:
                write_step(repo, out, step)
            out.line(f"running {printable(' '.join(words))}")

    return repo.bisect_run(test, told=tell, progress=progress)


def _execute(words: list[str], commit: GitId, *, is_aside: bool) -> int:
    """Run the command; return its exit code if that says something about the commit."""
    sys.stdout.flush()
    environment = {**os.environ, "MVC_REV": commit}
    aside = _STDERR if is_aside else None  # standard output is the answer's
    try:
        done = subprocess.run(words, env=environment, stdout=aside, check=False)  # noqa: S603
    except OSError as error:
        raise NotFoundError(
            f"command {words[0]!r} cannot be run at commit {short_id(commit)}",
            hint="keep it outside the checked-out files",
        ) from error
    code = done.returncode
    if not 0 <= code < _ABORT:
        raise ConflictError(
            f"the test ended with {_name(code)} at commit {short_id(commit)}: neither good nor bad",
            hint="repeat the command to go on from there; exit codes 1 to 127 mean bad, 125 skips",
        )
    return code


def _name(code: int) -> str:
    names = {one.value: one.name for one in signal.Signals}
    return str(code) if code >= 0 else names.get(-code, f"signal {-code}")


def _check_elsewhere(
    repo: Repo, words: list[str], code: int, commit: GitId, good: GitId, *, is_aside: bool
) -> None:
    """Check that a command which could not be run, as it seems, can be at a good commit.

    If it cannot, every commit would look bad. Git asks the same before it believes such a code.
    """
    is_checked_out = repo.head.branch is None and repo.head.commit == commit
    if is_checked_out:
        repo.checkout(good, detach=True)
    try:
        same = _execute(words, good, is_aside=is_aside) == code
    finally:
        if is_checked_out:
            repo.checkout(commit, detach=True)
    if same:
        raise ConflictError(
            f"the test also ends with {code} at the good commit {short_id(good)}",
            hint="this code means that a command cannot be found or run",
        )
