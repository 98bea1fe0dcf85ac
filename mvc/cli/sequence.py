"""What merge, cherry-pick, revert and stash have in common: options, and ways to go on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from mvc.cli.errors import NEGATIVE
from mvc.cli.options import NO_GATE, check_alone
from mvc.cli.output import Shown, printable, stdout
from mvc.cli.parameters import CommandUsageError, Exit, flag, integer, option_set, string, strings
from mvc.cli.progress import byte_progress
from mvc.cli.render.merges import merge_fields, parse_choices, write_merge, write_returned
from mvc.cli.render.moves import result_fields
from mvc.cli.render.text import short_id
from mvc.cli.session import open_repo

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mvc.operations.merge import FastForward, MergeResult
    from mvc.repo import Repo

    Verb = Literal["merge", "cherry-pick", "revert"]


@dataclass(frozen=True, slots=True)
class Course:
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


_STRATEGY = string(
    "--strategy NAME", "Resolve conflicts by: ours, theirs, base, or a merge method."
)
_RULES = strings(
    "--rule GLOB=STRATEGY",
    "The strategy for tensors or files that match GLOB; the first match wins.",
)
STRATEGIES = option_set(parse_choices, strategy=_STRATEGY, rules=_RULES)
METHODS = option_set(
    parse_choices,
    strategy=_STRATEGY,
    rules=_RULES,
    parameters=strings("--param NAME=VALUE", "A parameter of the merge method."),
    seed=integer("--seed N", "Seed of methods that draw random numbers.", default=0),
)
COURSE = option_set(
    Course,
    mainline=integer("-m, --mainline N", "Compare a merge with its N-th parent, from 1."),
    no_commit=flag("-n, --no-commit", "Stage the changes only."),
    no_gate=NO_GATE,
    go_on=flag("--continue", "Continue, with --rule or --strategy if anything is undecided."),
    skip=flag("--skip", "Leave this commit out and continue with the rest."),
    abort=flag("--abort", "Give up and go back to where it began."),
)


def fast_forward(*, only: bool, never: bool) -> FastForward:
    """Return what ``--ff-only`` and ``--no-ff`` say of fast-forwards."""
    check_alone([("--ff-only", only), ("--no-ff", never)])
    return "only" if only else "never" if never else "allowed"


def show_merge(repo: Repo, verb: Verb, result: MergeResult, shown: Shown, **more: object) -> None:
    """Show what a merge did, and in JSON ``more``; conflicts are a negative answer."""
    shown = shown.aloud(when=bool(result.conflicts))
    shown.answer({**merge_fields(result), **more}, write_merge, repo, verb, result)
    if result.conflicts:
        raise Exit(NEGATIVE)


def give_up(repo: Repo, verb: Verb, shown: Shown) -> None:
    """Go back to where a merge, cherry-pick or revert began, and show that."""
    returned = repo.abort(verb)
    shown.answer(result_fields(returned), write_returned, repo, verb, returned)


def run_sequence(
    verb: Literal["cherry-pick", "revert"],
    commits: Sequence[str],
    choices: Mapping[str, Any],
    course: Course,
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
