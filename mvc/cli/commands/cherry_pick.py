"""Apply the changes of some commits to the current branch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mvc.cli.options import QUIET_PROGRESS_JSON
from mvc.cli.output import Shown
from mvc.cli.parameters import arguments, flag
from mvc.cli.sequence import COURSE, METHODS, Course, run_sequence

if TYPE_CHECKING:
    from collections.abc import Mapping


def cherry_pick(
    commits: list[str] = arguments("[REV]..."),
    record_origin: bool = flag("-x", "Name the original commit in the message."),
    choices: Mapping[str, Any] = METHODS,
    course: Course = COURSE,
    shown: Shown = QUIET_PROGRESS_JSON,
) -> None:
    """Apply the changes of some commits to the current branch.

    A tensor or file that a commit changed is taken from the commit, if the branch still has the
    version of the commit's parent. If the branch changed it too, it is a conflict, as in a merge,
    and --rule or --strategy decides ("--strategy task_arithmetic" adds the commit's update). REV
    may be a range, A..B.

    The author is kept, and a commit that would change nothing is left out. After a conflict, use
    --continue, --skip or --abort.
    """
    run_sequence("cherry-pick", commits, choices, course, shown, record_origin=record_origin)
