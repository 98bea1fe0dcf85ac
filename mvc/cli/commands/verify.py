"""verify: is the model in the worktree the commit's, and does training from it repeat itself."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mvc.cli.errors import NEGATIVE
from mvc.cli.group import paths_after, usage
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
    context: typer.Context,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[REV] [[--] PATH...]", show_default=False)
    ] = None,
    replay: Annotated[
        int | None,
        typer.Option(
            "--replay", metavar="K", help="Train K steps from REV and compare with that commit."
        ),
    ] = None,
    entry: Annotated[
        str | None,
        typer.Option(
            "--entry", metavar="FILE.py:FUNCTION", help="With --replay: what builds the training."
        ),
    ] = None,
    quiet: Quiet = False,
    progress: ShowProgress = True,
    as_json: Json = False,
) -> None:
    """Compare the model in the worktree with a commit (HEAD), tensor by tensor, to the bit.

    Every file is read, whatever its time says. A file that was saved anew with another header, in
    another format or in other shards, but with the same tensors, counts as the same. Of a tensor
    that differs it is told in how many elements and by how much. Files of a state that was
    committed from memory are not in the worktree unless they were checked out.

    With --replay it is the training that is compared: REV is loaded, trained for K steps, and
    every tensor compared with the commits that followed; at the tip of a branch, it is the last K
    steps. For that the code of FUNCTION is run, in a process of its own.

    The exit code is 1 if something differs, or if there was nothing to compare.
    """
    repo = open_repo()
    revisions, paths = split_revisions(repo, names or (), paths_after(context))
    if len(revisions) > 1:
        raise usage(f"{len(revisions)} revisions are too many: verify takes one", context)
    revision = revisions[0] if revisions else "HEAD"
    if replay is not None or entry is not None:
        if replay is None or entry is None or paths:
            raise usage("--replay and --entry go together, and without a path", context)
        if replay < 1:
            raise usage(f"--replay {replay}: at least one step has to be trained", context)
        code = _replay(repo, revision, replay, entry, quiet=quiet, as_json=as_json)
        raise typer.Exit(code)
    with byte_progress("verifying", wanted=progress and not quiet) as bar:
        check = repo.verify_worktree(revision, paths=paths, progress=bar)
    if as_json:
        write_json(verify_fields(check))
    else:
        write_verify(stdout(), check, revision, quiet=quiet)
    if not check.is_same:
        raise typer.Exit(NEGATIVE)


def _replay(
    repo: Repo, revision: str, steps: int, entry: str, *, quiet: bool, as_json: bool
) -> int:
    """Run the replay in a process of its own, on the same streams; return its exit code.

    Raises:
        UnsupportedError: the training hooks or torch are not installed.
        NotFoundError: no such revision or file.
    """
    file, colon, function = entry.rpartition(":")
    if not (file and colon and function):
        raise NotFoundError(f"--entry {entry!r} names no function", hint="write FILE.py:FUNCTION")
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
