"""Processes with torch, which this one never imports: the user's own code, and ranks that look at each other."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mvc.cli.parameters import CommandUsageError
from mvc.cli.session import open_repo, split_revision
from mvc.errors import MvcError, NotFoundError, StorageError, UnsupportedError, UsageError
from mvc.interpreter import module_command

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mvc.repo import Repo

_REPLAY = "mvc_lab.replay"
_BEHAVIOUR = "mvc_lab.behaviour"
_DOCTOR = "mvc_lab.doctor"
_SIGNAL_BASE = 128


def _check_hooks(option: str, module: str) -> None:
    for name in ("torch", module.partition(".")[0], module):  # a package before what is in it
        if importlib.util.find_spec(name) is None:
            raise UnsupportedError(
                f"{option} needs {name}, which is not installed",
                hint='install the training hooks: pip install "mvc-models[torch]"',
            )


def run_behaviour(
    models: tuple[Repo | None, str | None, str | None],
    entry: str,
    layers: Sequence[str],
    runs: Mapping[str, object],
    *,
    may_skip: bool,
) -> dict[str, Any]:
    """Run the models in a separate process; return what it found."""
    _check_hooks("--entry", _BEHAVIOUR)
    repo, old, new = models
    wanted = ",".join(layer for layer in layers if layer != "unit")
    command = [sys.executable, "-m", _BEHAVIOUR, f"--entry={entry}"]
    command += [f"--{name}={value}" for name, value in runs.items() if value is not None]
    command += [f"--layers={wanted}"] if wanted else []
    command += ["--few"] if may_skip else []
    command += [] if repo is None else [f"--repo={repo.worktree}"]
    command += ["--", *(one for one in (old, new) if one is not None)]
    done = subprocess.run(command, check=False, env=os.environ, stdout=subprocess.PIPE)  # noqa: S603  the user's own code, which they name, is what is to run
    code = done.returncode
    death: MvcError = UsageError(f"the entry's code ended the process with {code}")
    if code < 0:
        death = StorageError(
            f"the process that runs the models was killed by signal {-code}",
            hint="memory may have run out: try a smaller --batch-size",
        )
    return _read_answer(done.stdout, death)


def _make_error(kind: str, message: str, hint: str | None) -> MvcError:
    """Return the error that the other process met."""
    pending: list[type[MvcError]] = [MvcError]
    while pending:
        one = pending.pop()
        if one.kind == kind and one is not MvcError:
            return one(message, hint=hint)
        pending += one.__subclasses__()
    return MvcError(message, hint=hint)


def run_replay(
    names: list[str] | None, steps: int, entry: str | None, *, quiet: bool, as_json: bool
) -> int:
    """Train again in a separate process on the same streams; return its exit code."""
    repo = open_repo()
    revision, paths = split_revision(repo, names)
    if entry is None or paths:
        raise CommandUsageError("--replay needs --entry and takes no path")
    if steps < 1:
        raise CommandUsageError(f"--replay {steps}: train at least one step")
    file, colon, function = entry.rpartition(":")
    if not (file and colon and function):
        raise NotFoundError(
            f"--entry {entry!r} names no function", hint="write it as FILE.py:FUNCTION"
        )
    if file.endswith(".py") and not Path(file).is_file():
        raise NotFoundError(f"file {file!r} does not exist")
    _check_hooks("--replay", _REPLAY)
    commit = repo.resolve(revision or "HEAD")
    command = [sys.executable, "-m", _REPLAY, str(repo.worktree), commit, str(steps), entry]
    sys.stdout.flush()  # before the other process writes to the same stream
    done = subprocess.run(  # noqa: S603  the user's own code, which they name, is what is to run
        [*command, "--json"] if as_json else command,
        check=False,
        env=os.environ,
        stdout=subprocess.DEVNULL if quiet and not as_json else None,
    )
    return done.returncode if done.returncode >= 0 else _SIGNAL_BASE - done.returncode


def run_doctor(ranks: int | None) -> dict[str, Any] | None:
    """Let ranks look at each other, and return what rank 0 found; None if this is another rank.

    Args:
        ranks: how many to start here; None: this is one of those that torchrun or SLURM has started.
    """
    _check_hooks("--distributed", _DOCTOR)
    if ranks is None:
        done = subprocess.run(  # noqa: S603  our own module
            module_command(_DOCTOR), check=False, env=_quiet(), stdout=subprocess.PIPE
        )
        return _read_rank(done.stdout, done.returncode)
    with tempfile.TemporaryDirectory(prefix="mvc-doctor-") as folder, ExitStack() as stack:
        started = [_start_rank(rank, ranks, folder) for rank in range(ranks)]
        for one in started:
            stack.callback(one.wait)
            stack.callback(one.kill)
        answer, _ = started[0].communicate()
        for one in started[1:]:
            one.wait()
        return _read_rank(answer, started[0].returncode)


def _start_rank(rank: int, ranks: int, folder: str) -> subprocess.Popen[bytes]:
    options = (f"--meet={folder}/meeting", f"--rank={rank}", f"--size={ranks}")
    return subprocess.Popen(  # noqa: S603  our own module
        module_command(_DOCTOR, *options),
        env={**_quiet(), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
    )


def _quiet() -> dict[str, str]:
    """Return the environment, in which torch's C++ does not repeat on standard error what we report."""
    return {"TORCH_CPP_LOG_LEVEL": "FATAL", **os.environ}


def _read_rank(answer: bytes, code: int) -> dict[str, Any] | None:
    if not answer and code == 0:
        return None
    death = f"a rank ended with {code} and said nothing"
    return _read_answer(answer, StorageError(death, hint="standard error has what it met"))


def _read_answer(answer: bytes, death: MvcError) -> dict[str, Any]:
    """Return what another process found; raise what it met, or ``death`` if it says nothing."""
    try:
        found: dict[str, Any] = json.loads(answer)
    except ValueError:
        raise death from None
    if "error" in found:
        raise _make_error(**found["error"])
    return found
