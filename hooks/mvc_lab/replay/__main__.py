"""The command line of a replay: ``python -m mvc_lab.replay REPO [REV] K ENTRY [--json]``.

A run of several ranks is replayed by as many, which this starts.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mvc import Repo, UsageError
from mvc.training import RunStore
from mvc_hooks.entry import CommandParser, load_entry
from mvc_hooks.parts.tree import find_at
from mvc_lab.replay.ranks import ReplayAnswer, as_mvc_error, launch, serve
from mvc_lab.replay.replaying import find_size, replay_steps
from mvc_lab.replay.report import ReplayReport, find_stretch

if TYPE_CHECKING:
    from collections.abc import Sequence


_DIFFERENT = 1
_INTERRUPTED = 130
_POSITIONS = 3
_THREADS = ("variables", "OMP_NUM_THREADS")


def main(arguments: Sequence[str]) -> int:
    """Replay, write a report to standard output, and return the exit code: 1 if it is not exact."""
    who = ""
    try:
        chosen = _parse(arguments)
        who = f"rank {os.environ.get('RANK', '0')}: " if chosen.rank else ""
        if chosen.rank_of is not None:
            return serve(Path(chosen.rank_of), partial(_replay, chosen))
        answer = None if chosen.rank else _launch(chosen)
        answer = answer or ReplayAnswer.of(_replay(chosen))
    except KeyboardInterrupt:
        return _INTERRUPTED
    except Exception as error:  # noqa: BLE001  whatever the user's code raises
        if os.environ.get("MVC_DEBUG"):
            traceback.print_exc()
        shown = as_mvc_error(error)
        hint = f"\nhint: {shown.hint}" if shown.hint else ""
        sys.stderr.write(f"error: {who}{shown.message}{hint}\n")
        return shown.exit_code
    if not chosen.rank or os.environ.get("RANK", "0") == "0":
        text = json.dumps(answer.fields) if chosen.json else "\n".join(answer.lines)
        sys.stdout.write(f"{text}\n")
    return 0 if answer.is_exact else _DIFFERENT


def _replay(chosen: argparse.Namespace) -> ReplayReport:
    build = load_entry(chosen.entry)
    script = Path(chosen.entry.rpartition(":")[0])
    return replay_steps(
        chosen.repo,
        chosen.revision,
        chosen.steps,
        build,
        script=script if script.is_file() else None,
    )


def _launch(chosen: argparse.Namespace) -> ReplayAnswer | None:
    """Replay with as many ranks as made the commits; None if it was one process."""
    with Repo.open(chosen.repo) as repo:
        stretch = find_stretch(repo, chosen.revision, chosen.steps)
        size = find_size(repo, stretch)
        start = stretch.start.commit
        threads = find_at(RunStore(repo).outline_state(start).get("environment"), _THREADS)
    if size == 1:
        return None
    arguments = [chosen.repo, chosen.revision, str(chosen.steps), f"--entry={chosen.entry}"]
    return launch(arguments, size, threads if isinstance(threads, str) else None)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = CommandParser(
        hint="python -m mvc_lab.replay REPO [REV] K FILE.py:FUNCTION",
        prog="python -m mvc_lab.replay",
        description="Train K steps from a commit and compare every tensor with the commits that "
        "followed. The exit code is 0 if all is the same, 1 if something differs.",
    )
    parser.add_argument("repo", metavar="REPO", help="folder of the repository")
    parser.add_argument(
        "rest",
        metavar="[REV] K [FILE.py:FUNCTION]",
        nargs="+",
        help="commit to begin at (HEAD; at the tip of a branch, the commit to end at), number of "
        "steps, and the function that returns the Training",
    )
    parser.add_argument("--entry", metavar="FILE.py:FUNCTION", help="the function, by name")
    parser.add_argument("--json", action="store_true", help="write one JSON object")
    parser.add_argument(
        "--rank",
        action="store_true",
        help="start no processes: this is one rank of several, started by torchrun",
    )
    parser.add_argument("--rank-of", metavar="FOLDER", help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    rest = list(chosen.rest)
    if chosen.entry is None:
        chosen.entry = rest.pop()
    if not 1 <= len(rest) < _POSITIONS or not rest[-1].isdecimal():
        raise UsageError(
            "the arguments are not REPO [REV] K FILE.py:FUNCTION",
            hint="python -m mvc_lab.replay --help",
        )
    chosen.steps = int(rest[-1])
    chosen.revision = rest[0] if len(rest) > 1 else "HEAD"
    return chosen


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
