"""The ranks of a replay, started as torchrun starts them: what each reports, and when it ends.

A rank writes to a folder that only this replay has: rank 0 its report, and a rank that failed, why. The first
failure is shown; the others follow from it. The process that started the ranks may be killed at any time. So
each of them holds the reading end of a pipe, and ends when the other end is closed.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
import uuid
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from mvc import MvcError, StorageError, UnsupportedError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from mvc_lab.replay.report import ReplayReport

LIFE, REPORT = "life", "report.json"
_LONGEST = 2000
_INTERRUPTED = 130
_MOST_RANKS = 16
_SECONDARY = (signal.SIGABRT, signal.SIGTERM)
"""What ends a rank whose peer is gone: it aborts when it notices, or is terminated."""


@dataclass(frozen=True, slots=True)
class ReplayAnswer:
    """What a replay says: its report as data and as lines."""

    is_exact: bool
    fields: dict[str, object]
    lines: tuple[str, ...]

    @classmethod
    def of(cls, report: ReplayReport) -> Self:
        """Return what a report says."""
        return cls(report.is_exact, report.fields(), tuple(report.lines()))


@dataclass(frozen=True, slots=True)
class RankFailure:
    """Why a rank failed, and when."""

    rank: int
    time_s: float
    kind: str
    message: str
    hint: str | None

    def as_error(self) -> MvcError:
        """Return it as an error that names the rank."""
        kinds = {error.kind: error for error in _list_below(MvcError)}
        kind = kinds.get(self.kind, MvcError)
        return kind(f"rank {self.rank}: {self.message}", hint=self.hint)


def _list_below(kind: type[MvcError]) -> Iterator[type[MvcError]]:
    for subclass in kind.__subclasses__():
        yield from _list_below(subclass)
        yield subclass


def read_failures(folder: Path) -> list[RankFailure]:
    """Return what failed ranks wrote to a folder."""
    failures = []
    for path in folder.glob("failed-*.json"):
        with suppress(ValueError, TypeError):  # killed while it wrote
            failures.append(RankFailure(**json.loads(path.read_text())))
    return failures


def as_mvc_error(error: BaseException) -> MvcError:
    """Return an error of the user's code as one line."""
    if isinstance(error, MvcError):
        return error
    text = str(error).strip().partition("\n")[0][:_LONGEST]
    what = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return UsageError(f"the training failed: {what}", hint="MVC_DEBUG=1 shows where")


def serve(folder: Path, replay: Callable[[], ReplayReport]) -> int:
    """Replay as one rank, write its report or why it failed to a folder, and end."""
    rank = int(os.environ["RANK"])

    def end_with_parent() -> None:
        with suppress(OSError), (folder / LIFE).open("rb") as pipe:
            pipe.read()
        os._exit(_INTERRUPTED)

    threading.Thread(target=end_with_parent, daemon=True).start()
    os.dup2(2, 1)  # what the user's code prints does not belong to the report
    code = 0
    try:
        answer = ReplayAnswer.of(replay())
        if rank == 0:
            _write(folder / REPORT, asdict(answer))
    except KeyboardInterrupt:
        code = _INTERRUPTED
    except BaseException as error:  # noqa: BLE001  SystemExit, too: nothing here may leave the others waiting
        if os.environ.get("MVC_DEBUG"):
            traceback.print_exc()
        shown = as_mvc_error(error)
        failure = RankFailure(rank, time.time(), shown.kind, shown.message, shown.hint)
        _write(folder / f"failed-{rank}.json", asdict(failure))
        code = shown.exit_code
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads of a broken process group may wait for the other ranks.
    os._exit(code)


def _write(path: Path, value: object) -> None:
    part = path.with_suffix(".part")
    part.write_text(json.dumps(value))
    part.replace(path)


def launch(arguments: Sequence[str], size: int, threads: str | None) -> ReplayAnswer:
    """Start the ranks of a replay on this machine; return what rank 0 reports.

    Args:
        arguments: of the replay.
        size: number of ranks.
        threads: ``OMP_NUM_THREADS`` of the run, on which bits depend.

    Raises:
        MvcError: what the first rank that failed says, with its number.
        KeyboardInterrupt: a signal has ended all of them.
    """
    most = max(_MOST_RANKS, os.cpu_count() or 1)
    if size > most:
        raise UnsupportedError(
            f"{size} ranks are too many for this machine",
            hint="on each machine: torchrun --nnodes ... --nproc-per-node ... "
            "-m mvc_lab.replay --rank REPO REV K FILE.py:FUNCTION",
        )
    if threads is not None:
        os.environ.setdefault("OMP_NUM_THREADS", threads)
    logging.disable()  # torch writes a banner for every rank that ends
    with tempfile.TemporaryDirectory(prefix="mvc-replay-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        os.mkfifo(folder / LIFE, 0o600)
        # Open for both, so that no rank waits for this end, and each sees when it is closed.
        life = os.open(folder / LIFE, os.O_RDWR | os.O_CLOEXEC)
        try:
            codes = _run(["-m", "mvc_lab.replay", f"--rank-of={folder}", *arguments], size, folder)
        finally:
            os.close(life)
        if not codes and (folder / REPORT).exists():
            report = json.loads((folder / REPORT).read_text())
            return ReplayAnswer(report["is_exact"], report["fields"], tuple(report["lines"]))
        raise _choose(read_failures(folder), codes, size)


def _run(arguments: Sequence[str], size: int, folder: Path) -> dict[int, int]:
    """Run a process for each rank; return the exit codes of those that failed."""
    from torch.distributed.elastic.multiprocessing import (  # noqa: PLC0415  takes a second
        DefaultLogsSpecs,
        SignalException,
    )
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError  # noqa: PLC0415
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch  # noqa: PLC0415

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=size,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        logs_specs=DefaultLogsSpecs(log_dir=str(folder)),
    )
    try:
        elastic_launch(config, sys.executable)(*arguments)
    except ChildFailedError as error:
        return {rank: failure.exitcode for rank, failure in error.failures.items()}
    except SignalException as error:
        raise KeyboardInterrupt from error
    return {}


def _choose(failures: Sequence[RankFailure], codes: dict[int, int], size: int) -> MvcError:
    """Return the error that came first."""
    killed = [rank for rank, code in sorted(codes.items()) if code < 0 and -code not in _SECONDARY]
    reported = {failure.rank for failure in failures}
    for rank in killed:
        if rank not in reported:
            return StorageError(
                f"rank {rank} was killed by {_name(-codes[rank])}",
                hint=f"memory may have run out: {size} ranks ran on this machine",
            )
    if failures:
        return min(failures, key=lambda failure: failure.time_s).as_error()
    rank, code = min(codes.items(), default=(0, 0))
    how = f"was killed by {_name(-code)}" if code < 0 else f"ended with exit code {code}"
    return StorageError(f"rank {rank} {how} and said nothing")


def _name(number: int) -> str:
    with suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"
