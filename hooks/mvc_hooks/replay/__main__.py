"""The command line of a replay: ``python -m mvc_hooks.replay REPO [REV] K ENTRY [--json]``."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from mvc import MvcError, UsageError
from mvc_hooks.entry import load_entry
from mvc_hooks.replay.replaying import replay_steps

if TYPE_CHECKING:
    from collections.abc import Sequence

_DIFFERENT = 1
_POSITIONS = 3


class _Parser(argparse.ArgumentParser):
    """A parser that raises errors of mvc."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, hint="python -m mvc_hooks.replay REPO [REV] K FILE.py:FUNCTION")


def main(arguments: Sequence[str]) -> int:
    """Replay, write a report to standard output, and return the exit code: 1 if it is not exact."""
    try:
        chosen = _parse(arguments)
        build = load_entry(chosen.entry)
        script = Path(chosen.entry.rpartition(":")[0])
        report = replay_steps(
            chosen.repo,
            chosen.revision,
            chosen.steps,
            build,
            script=script if script.is_file() else None,
        )
    except MvcError as error:
        hint = f"\nhint: {error.hint}" if error.hint else ""
        sys.stderr.write(f"error: {error}{hint}\n")
        return error.exit_code
    text = json.dumps(report.fields()) if chosen.json else "\n".join(report.lines())
    sys.stdout.write(f"{text}\n")
    return 0 if report.is_exact else _DIFFERENT


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = _Parser(
        prog="python -m mvc_hooks.replay",
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
    chosen = parser.parse_args(arguments)
    rest = list(chosen.rest)
    if chosen.entry is None:
        chosen.entry = rest.pop()
    if not 1 <= len(rest) < _POSITIONS or not rest[-1].isdecimal():
        raise UsageError(
            "the arguments are not REPO [REV] K FILE.py:FUNCTION",
            hint="python -m mvc_hooks.replay --help",
        )
    chosen.steps = int(rest[-1])
    chosen.revision = rest[0] if len(rest) > 1 else "HEAD"
    return chosen


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
