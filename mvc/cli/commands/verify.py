"""Check that the model is the same as in a commit, and that training from it repeats itself."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Context, Exit, Option

from mvc.cli.errors import NEGATIVE
from mvc.cli.group import paths_after, single_revision, usage
from mvc.cli.options import Json, Quiet, ShowProgress
from mvc.cli.output import stdout, write_json
from mvc.cli.progress import byte_progress
from mvc.cli.render.verify import verify_fields, write_verify
from mvc.cli.session import open_repo, split_revisions
from mvc.errors import NotFoundError, UnsupportedError

if TYPE_CHECKING:
    from mvc.repo import Repo


_REPLAY = "mvc_hooks.replay"
_SIGNAL_BASE = 128


def verify(
    context: Context,
    names: Annotated[
        list[str] | None, Argument(metavar="[REV] [[--] PATH...]", show_default=False)
    ] = None,
    replay: Annotated[
        int | None,
        Option("--replay", metavar="K", help="Train K steps from REV and compare the result."),
    ] = None,
    entry: Annotated[
        str | None,
        Option(
            "--entry",
            metavar="FILE.py:FUNCTION",
            help="With --replay: the function that sets up the training.",
        ),
    ] = None,
    quiet: Quiet = False,
    progress: ShowProgress = True,
    as_json: Json = False,
) -> None:
    """Compare the model in the worktree with a commit (HEAD), tensor by tensor, to the bit.

    Every file is read, whatever its modification time. A file that was saved again with another
    header, in another format or in other shards, but with the same tensors, counts as the same. For
    a tensor that differs, verify prints how many elements differ and by how much. Files of a state
    committed from memory are in the worktree only if they were checked out.

    --replay compares the training instead: REV is loaded and trained for K steps, and every tensor
    is compared with the commits that followed; at the tip of a branch, these are the last K steps.
    FUNCTION runs in a separate process.

    The exit code is 1 if anything differs, or if there was nothing to compare.
    """
    repo = open_repo()
    revisions, paths = split_revisions(repo, names or (), paths_after(context))
    revision = single_revision(context, revisions) or "HEAD"
    if replay is not None or entry is not None:
        if replay is None or entry is None or paths:
            raise usage("--replay needs --entry and takes no path", context)
        if replay < 1:
            raise usage(f"--replay {replay}: train at least one step", context)
        code = _replay(repo, revision, replay, entry, quiet=quiet, as_json=as_json)
        raise Exit(code)
    with byte_progress("verifying", wanted=progress and not quiet) as bar:
        check = repo.verify_worktree(revision, paths=paths, progress=bar)
    if as_json:
        write_json(verify_fields(check))
    else:
        write_verify(stdout(), check, revision, quiet=quiet)
    if not check.is_same:
        raise Exit(NEGATIVE)


def _replay(
    repo: Repo, revision: str, steps: int, entry: str, *, quiet: bool, as_json: bool
) -> int:
    """Run the replay in a separate process on the same streams; return its exit code."""
    file, colon, function = entry.rpartition(":")
    if not (file and colon and function):
        raise NotFoundError(
            f"--entry {entry!r} names no function", hint="write it as FILE.py:FUNCTION"
        )
    if not Path(file).is_file():
        raise NotFoundError(f"file {file!r} does not exist")
    for name in ("torch", "mvc_hooks", _REPLAY):  # a package before what is in it
        if importlib.util.find_spec(name) is None:
            raise UnsupportedError(
                f"--replay needs {name}, which is not installed",
                hint='install the training hooks: pip install "mvc-models[torch]"',
            )
    commit = repo.resolve(revision)
    command = [sys.executable, "-m", _REPLAY, str(repo.worktree), commit, str(steps), entry]
    sys.stdout.flush()
    done = subprocess.run(  # noqa: S603  the user's own code, which they name, is what is to run
        [*command, "--json"] if as_json else command,
        check=False,
        stdout=subprocess.DEVNULL if quiet and not as_json else None,
    )
    return done.returncode if done.returncode >= 0 else _SIGNAL_BASE - done.returncode
