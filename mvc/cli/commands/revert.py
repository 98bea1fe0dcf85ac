"""Undo the changes of some commits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mvc.cli.options import QUIET_PROGRESS_JSON, check_alone
from mvc.cli.output import Shown
from mvc.cli.parameters import arguments, flag
from mvc.cli.sequence import COURSE, STRATEGIES, Course, run_sequence

if TYPE_CHECKING:
    from collections.abc import Mapping


def revert(
    commits: list[str] = arguments("[REV]..."),
    arithmetic: bool = flag(
        "--arithmetic", "If a tensor changed since, subtract the commit's update; not bit-exact."
    ),
    choices: Mapping[str, Any] = STRATEGIES,
    course: Course = COURSE,
    shown: Shown = QUIET_PROGRESS_JSON,
) -> None:
    """Undo the changes of some commits with new commits.

    A tensor or file that a commit changed becomes what it was in the parent, bit for bit. If it
    changed again since, it is a conflict, as in a merge: --rule or --strategy decides ("theirs" is
    the parent's version), or --arithmetic computes new = now - (commit - parent), rounded to the
    dtype. REV may be a range, A..B.

    After a conflict, use --continue, --skip or --abort.
    """
    check_alone([("--arithmetic", arithmetic), ("--strategy", choices["strategy"])])
    run_sequence("revert", commits, choices, course, shown, arithmetic=arithmetic)
