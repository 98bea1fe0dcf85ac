"""Apply or undo the changes of some commits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from mvc.cli.options import NO_GATE, QUIET_PROGRESS_JSON, check_alone
from mvc.cli.output import Shown, printable, stdout
from mvc.cli.parameters import CommandUsageError, arguments, flag, integer, option_set
from mvc.cli.progress import byte_progress
from mvc.cli.render.text import short_id
from mvc.cli.sequence import METHODS, STRATEGIES, give_up, show_merge
from mvc.cli.session import open_repo

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class _Course:
    """How a cherry-pick or revert goes: where it begins, or how it goes on."""

    mainline: int | None
    no_commit: bool
    no_gate: bool
    go_on: bool
    skip: bool
    abort: bool

    @property
    def ways(self) -> dict[str, bool]:
        """The options that go on with one that is under way."""
        return {"--continue": self.go_on, "--skip": self.skip, "--abort": self.abort}


_COURSE = option_set(
    _Course,
    mainline=integer("-m, --mainline N", "Compare a merge with its N-th parent, from 1."),
    no_commit=flag("-n, --no-commit", "Stage the changes only."),
    no_gate=NO_GATE,
    go_on=flag("--continue", "Continue, with --rule or --strategy if anything is undecided."),
    skip=flag("--skip", "Leave this commit out and continue with the rest."),
    abort=flag("--abort", "Give up and go back to where it began."),
)


def cherry_pick(
    commits: list[str] = arguments("[REV]..."),
    record_origin: bool = flag("-x", "Name the original commit in the message."),
    choices: Mapping[str, Any] = METHODS,
    course: _Course = _COURSE,
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
    _run("cherry-pick", commits, choices, course, shown, record_origin=record_origin)


def revert(
    commits: list[str] = arguments("[REV]..."),
    arithmetic: bool = flag(
        "--arithmetic", "If a tensor changed since, subtract the commit's update; not bit-exact."
    ),
    choices: Mapping[str, Any] = STRATEGIES,
    course: _Course = _COURSE,
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
    _run("revert", commits, choices, course, shown, arithmetic=arithmetic)


def _run(
    verb: Literal["cherry-pick", "revert"],
    commits: Sequence[str],
    choices: Mapping[str, Any],
    course: _Course,
    shown: Shown,
    **options: Any,
) -> None:
    """Run a cherry-pick or revert, or go on with one; ``options`` are the verb's own."""
    check_alone([*course.ways.items(), ("REV", commits)])
    for name in ("--skip", "--abort"):
        check_alone([(name, course.ways[name]), ("--no-gate", course.no_gate)])
    if not commits and not any(course.ways.values()):
        raise CommandUsageError("which commit?")
    repo = open_repo()
    if course.abort:
        give_up(repo, verb, shown)
        return
    before = repo.head.commit
    choices = {**choices, "no_gate": course.no_gate}
    start = repo.cherry_pick if verb == "cherry-pick" else repo.revert
    with byte_progress(verb, wanted=shown.progress):
        if course.skip:
            result = repo.skip(verb)
        elif course.go_on:
            result = repo.conclude(verb, **choices)
        else:
            options |= {"mainline": course.mainline, "commit": not course.no_commit}
            result = start(*commits, **choices, **options)
    if shown.as_text and result.commit != before:
        # A line for each new commit; ``write_merge`` writes one for the last itself.
        out, where = stdout(), printable(repo.head.branch or "detached HEAD")
        commits_made = list(repo.log(f"{before}..{result.commit}"))
        for entry in reversed(commits_made[result.kind == "merged" :]):
            short = out.style(short_id(entry.id), "yellow")
            out.line(f"[{where} {short}] {printable(entry.subject)}")
    show_merge(repo, verb, result, shown)
