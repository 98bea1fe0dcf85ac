"""Release the content of commits that no rule keeps."""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

from mvc.cli.errors import NEGATIVE
from mvc.cli.options import DRY_RUN, QUIET_JSON
from mvc.cli.output import Output, Shown, pick, printable, stderr, stdout
from mvc.cli.parameters import (
    CommandUsageError,
    Exit,
    argument,
    flag,
    integer,
    named,
    string,
    strings,
)
from mvc.cli.render.text import (
    count_text,
    cut_end,
    iso_date,
    short_id,
    size_text,
    some_text,
    table_lines,
)
from mvc.cli.session import open_repo
from mvc.upkeep.durations import parse_duration

if TYPE_CHECKING:
    from mvc.operations.prune import CommitPlan, PrunePlan


_SHOWN_PATHS = 3
_SUBJECT_WIDTH = 40
_WEIGHTS_RULE = (
    "the model always stays: files named model, ema, weight, adapter or lora, and those not named "
    "optimizer, scheduler, rng, scaler, trainer, dataloader, sampler or state"
)


_RULES = named(
    integer("--keep-last N", "Keep the newest N commits of each branch."),
    integer("--keep-every M", "Keep commits whose step is a multiple of M."),
    integer("--keep-best K", "Keep the K commits that are best by --metric."),
    string("--metric NAME", "What --keep-best compares; lower is better."),
    flag("--max", "Higher is better for --metric."),
    string(
        "--keep-within AGE", "Keep commits younger than AGE: 12h, 7d, 2w, 1y.", read=parse_duration
    ),
    flag("--keep-tagged", "Keep tagged commits (always on)."),
    flag("--keep-branch-tips", "Keep branch tips, even of named diverged/ branches."),
    flag("--weights-only", "Release optimizer and other state but keep the model."),
    strings("--also-diverged GLOB", "Also release from these diverged/ branches."),
)
_NAMES = {"max": "maximise", "keep-within": "keep_within_s"}
"""What rules are called where that is not how their option is called."""


def prune(
    remote: str | None = argument("[REMOTE]"),
    rules: dict[str, Any] = _RULES,
    pushed: bool = flag(
        "--pushed", "Release only what REMOTE has, and only here: reads fetch it back."
    ),
    yes: bool = flag("-y, --yes", "Do not ask on a terminal."),
    dry_run: bool = DRY_RUN,
    shown: Shown = QUIET_JSON,
) -> None:
    """Release the content of commits that no rule keeps; the history itself stays.

    At least one rule is needed; a commit that any of them keeps is kept. HEAD, branch tips, tagged
    commits and diverged/ branches that are not named always keep their content. A released commit
    stays in the log with its metrics; its content is gone for good unless a run recreates it. On a
    terminal, prune asks first.

    With --pushed nothing is gone for good: REMOTE (by default the one that is pushed to) is looked
    at, and what it has whole goes here; no other rule is needed.
    """
    if remote is not None and not pushed:
        raise CommandUsageError("REMOTE goes with --pushed")
    repo = open_repo()
    chosen = {_NAMES.get(name, name.replace("-", "_")): rule for name, rule in rules.items()}
    plan = repo.upkeep.plan_prune(**chosen, pushed=(remote or True) if pushed else False)
    if shown.as_text:
        _write_prune_plan(stdout(), plan)  # before the release, which takes a while
    if plan.releases and not (dry_run or yes or pushed):
        _ask(plan)
    freed_bytes = None if dry_run else repo.upkeep.prune(plan).freed_bytes
    shown.answer(_prune_fields(plan, freed_bytes), _write_prune_sum, plan, freed_bytes)


def _ask(plan: PrunePlan) -> None:
    """Ask whether to go on; without a terminal the command line itself is the answer."""
    err = stderr()
    if not (sys.stdin.isatty() and err.stream.isatty()):
        return
    sys.stdout.flush()
    err.stream.write(f"release {_what(plan)} and free {size_text(plan.freed_bytes)}? [y/N] ")
    err.stream.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        err.line("nothing was released")
        raise Exit(NEGATIVE)


def _what(plan: PrunePlan) -> str:
    files = sum(len(release.paths) for release in plan.releases)
    commits = Counter(_action(commit) for commit in plan.commits)["release"]
    return f"{count_text(files, 'file')} of {count_text(commits, 'commit')}"


def _prune_fields(plan: PrunePlan, freed_bytes: int | None) -> dict[str, object]:
    return {
        "policy": plan.policy.text(),
        "pushed_to": plan.pushed_to,
        "dry_run": freed_bytes is None,
        "commits": [
            {
                **pick(commit, "commit subject step"),
                "date": iso_date(commit.time_s, 0),
                "action": _action(commit),
                **pick(commit, "reasons release=paths keep=kept_paths bytes=size_bytes"),
            }
            for commit in plan.commits
        ],
        "files": sum(len(release.paths) for release in plan.releases),
        "bytes": plan.freed_bytes if freed_bytes is None else freed_bytes,
    }


def _action(one: CommitPlan) -> str:
    if one.was_released:
        return "gone"
    if one.reasons:
        return "keep"
    return "release" if one.paths else "shared" if one.kept_paths else "nothing"


def _write_prune_plan(out: Output, plan: PrunePlan) -> None:
    colours = {"keep": "green", "release": "red"}
    rows = [
        (
            (_action(commit), colours.get(_action(commit), "dim")),
            (short_id(commit.commit), "yellow"),
            "" if commit.step is None else f"step {commit.step:,}",
            cut_end(printable(commit.subject), _SUBJECT_WIDTH),
            size_text(commit.size_bytes) if commit.paths else "",
            printable(_why(commit)),
        )
        for commit in plan.commits
    ]
    out.lines(table_lines(out, rows, "<<><><"))
    if plan.policy.weights_only:
        out.line(out.style(_WEIGHTS_RULE, "dim"))


def _why(one: CommitPlan) -> str:
    if one.was_released:
        return "content already released"
    if one.reasons:
        return ", ".join(one.reasons)
    if one.paths:
        return some_text(one.paths, _SHOWN_PATHS)
    return "shared with a version that stays" if one.kept_paths else "plain files only"


def _write_prune_sum(out: Output, plan: PrunePlan, freed_bytes: int | None) -> None:
    if not plan.releases and plan.pushed_to is not None:
        out.line(f"nothing to release that {printable(plan.pushed_to)} has")
        return
    if not plan.releases:
        size_bytes = plan.freed_bytes if freed_bytes is None else freed_bytes
        verb = "would free" if freed_bytes is None else "freed"
        rest = f", {verb} {size_text(size_bytes)} of content released before"
        out.line("nothing to release" + (rest if size_bytes > 0 else ""))
        return
    what = _what(plan)
    if freed_bytes is None:
        out.line(f"would release {what} and free {size_text(plan.freed_bytes)}")
    else:
        where = f"; {printable(plan.pushed_to)} has it" if plan.pushed_to else ""
        out.line(f"released {what}, {size_text(freed_bytes)} freed{where}")
