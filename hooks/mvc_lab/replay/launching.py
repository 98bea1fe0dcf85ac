"""The ranks of a replay, started as torchrun starts them, and the one answer they give.

What a rank has to say is in a file of a folder that only this replay has: the report of rank 0, and
why a rank failed. The first failure is told; the others are what it did to them.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
import uuid
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mvc import MvcError, StorageError, UnsupportedError
from mvc_lab.replay.rank import LIFE, REPORT, Answer, RankFailure, read_failures

if TYPE_CHECKING:
    from collections.abc import Sequence

_MOST_RANKS = 16
_THREADS = "OMP_NUM_THREADS"
_SECONDARY = (signal.SIGABRT, signal.SIGTERM)
"""What ends a rank whose peer is gone, when it notices and when it is told."""


def launch(arguments: Sequence[str], size: int, threads: str | None) -> Answer:
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
        os.environ.setdefault(_THREADS, threads)
    logging.disable()  # torch writes a banner for every rank that ends
    with tempfile.TemporaryDirectory(prefix="mvc-replay-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        os.mkfifo(folder / LIFE, 0o600)
        # Open for both, so that no rank waits for this end, and each sees when it is closed.
        with closing(_Life(folder / LIFE)):
            codes = _run(["-m", "mvc_lab.replay", f"--rank-of={folder}", *arguments], size, folder)
        if not codes and (folder / REPORT).exists():
            return Answer.read(folder)
        raise _choose(read_failures(folder), codes, size)


class _Life:
    """The end of a pipe that is open as long as this process lives."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def close(self) -> None:
        os.close(self._descriptor)


def _run(arguments: Sequence[str], size: int, folder: Path) -> dict[int, int]:
    """Run a process for each rank; return the exit codes of those that failed."""
    from torch.distributed.elastic.multiprocessing import SignalException  # noqa: PLC0415  takes a second
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
        **_log_to(folder),
    )
    try:
        elastic_launch(config, sys.executable)(*arguments)
    except ChildFailedError as error:
        return {rank: failure.exitcode for rank, failure in error.failures.items()}
    except SignalException as error:
        raise KeyboardInterrupt from error
    return {}


def _log_to(folder: Path) -> dict[str, Any]:
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs  # noqa: PLC0415  as above

    return {"logs_specs": DefaultLogsSpecs(log_dir=str(folder))}


def _choose(failures: Sequence[RankFailure], codes: dict[int, int], size: int) -> MvcError:
    """Return the error that came first."""
    killed = [rank for rank, code in sorted(codes.items()) if code < 0 and -code not in _SECONDARY]
    told = {failure.rank for failure in failures}
    for rank in killed:
        if rank not in told:
            return StorageError(
                f"rank {rank} was killed by {_name(-codes[rank])}",
                hint=f"memory may have run out: {size} ranks ran on this machine",
            )
    if failures:
        return min(failures, key=lambda one: one.time_s).as_error()
    rank, code = min(codes.items(), default=(0, 0))
    how = f"was killed by {_name(-code)}" if code < 0 else f"ended with exit code {code}"
    return StorageError(f"rank {rank} {how} and said nothing")


def _name(number: int) -> str:
    with suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"
