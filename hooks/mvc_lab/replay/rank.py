"""One rank of a replay that was started for it: what it tells, and when it ends.

The process that started it may be killed at any time. So each rank holds the reading end of a pipe,
and ends when nobody has the other.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Self

from mvc import MvcError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from mvc_lab.replay.report import ReplayReport

LIFE, REPORT = "life", "report.json"
_LONGEST = 2000
_INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Answer:
    """What a replay says: its report as data and as lines."""

    is_exact: bool
    fields: dict[str, object]
    lines: tuple[str, ...]

    @classmethod
    def of(cls, report: ReplayReport) -> Self:
        """Return what a report says."""
        return cls(report.is_exact, report.fields(), tuple(report.lines()))

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Return what rank 0 wrote to a folder."""
        said = json.loads((folder / REPORT).read_text())
        return cls(said["is_exact"], said["fields"], tuple(said["lines"]))


@dataclass(frozen=True, slots=True)
class RankFailure:
    """Why a rank failed, and when."""

    rank: int
    time_s: float
    kind: str
    message: str
    hint: str | None

    @classmethod
    def of(cls, rank: int, error: MvcError) -> Self:
        """Return what an error says that was raised now."""
        return cls(rank, time.time(), error.kind, error.message, error.hint)

    def as_error(self) -> MvcError:
        """Return it as an error that names the rank."""
        kinds = {one.kind: one for one in _list_below(MvcError)}
        kind = kinds.get(self.kind, MvcError)
        return kind(f"rank {self.rank}: {self.message}", hint=self.hint)


def _list_below(kind: type[MvcError]) -> Iterator[type[MvcError]]:
    for one in kind.__subclasses__():
        yield from _list_below(one)
        yield one


def read_failures(folder: Path) -> list[RankFailure]:
    """Return what failed ranks wrote to a folder."""
    found = []
    for path in folder.glob("failed-*.json"):
        with suppress(ValueError, TypeError):  # killed while it wrote
            found.append(RankFailure(**json.loads(path.read_text())))
    return found


def as_mvc_error(error: BaseException) -> MvcError:
    """Return an error of the user's code as one line."""
    if isinstance(error, MvcError):
        return error
    text = str(error).strip().partition("\n")[0][:_LONGEST]
    what = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return UsageError(f"the training failed: {what}", hint="MVC_DEBUG=1 shows where")


def serve(folder: Path, replay: Callable[[], ReplayReport]) -> int:
    """Replay as one rank; write what comes of it to a folder, and end."""
    rank = int(os.environ["RANK"])
    threading.Thread(target=_end_with, args=(folder / LIFE,), daemon=True).start()
    os.dup2(2, 1)  # what the user's code prints does not belong to the report
    code = 0
    try:
        answer = Answer.of(replay())
        if rank == 0:
            _write(folder / REPORT, asdict(answer))
    except KeyboardInterrupt:
        code = _INTERRUPTED
    except BaseException as error:  # noqa: BLE001  SystemExit, too: nothing here may leave the others waiting
        if os.environ.get("MVC_DEBUG"):
            traceback.print_exc()
        told = as_mvc_error(error)
        _write(folder / f"failed-{rank}.json", asdict(RankFailure.of(rank, told)))
        code = told.exit_code
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads of a broken process group may wait for the other ranks.
    os._exit(code)


def _write(path: Path, value: object) -> None:
    part = path.with_suffix(".part")
    part.write_text(json.dumps(value))
    part.replace(path)


def _end_with(path: Path) -> None:
    with suppress(OSError), path.open("rb") as pipe:
        pipe.read()
    os._exit(_INTERRUPTED)
