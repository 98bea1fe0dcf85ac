"""gc, repack, prune: remove what nothing reaches or no rule keeps, store the rest in less space."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, Annotated

from typer import Option

from mvc.cli.options import DryRun, Grace, Json, Quiet, ShowProgress, age_seconds
from mvc.cli.output import Output, pick, printable, stdout, write_json
from mvc.cli.progress import byte_progress
from mvc.cli.render.text import columns, count_text, cut_end, iso_date, short_id, size_text
from mvc.cli.session import open_repo

if TYPE_CHECKING:
    from mvc.operations.gc import GcPlan, GcResult
    from mvc.operations.prune import CommitPlan, PrunePlan
    from mvc.operations.repack import RepackPlan, RepackResult

_NICENESS = 10
_SHOWN_PATHS = 3
_SUBJECT_WIDTH = 40
_WEIGHTS_RULE = (
    "the model always stays: files named model, ema, weight, adapter or lora, and those not named "
    "optimizer, scheduler, rng, scaler, trainer, dataloader, sampler or state"
)


def gc(
    grace: Grace = None,
    expire: Annotated[
        str | None,
        Option(
            "--expire-reflog",
            metavar="AGE",
            help="Expire reflog entries older than AGE; now expires all that refs have left.",
        ),
    ] = None,
    dry_run: DryRun = False,
    quiet: Quiet = False,
    progress: ShowProgress = True,
    as_json: Json = False,
) -> None:
    """Remove what nothing reaches: chunks, Git objects, leftovers of processes that died.

    Whatever HEAD, refs, the index and reflogs name is reachable. Reflog entries expire after 90
    days, or after 30 if their ref no longer reaches them; other garbage is kept for two weeks, so
    that it can be brought back. Released content goes at once. It is safe to run gc beside commits
    and readers, and to kill it.
    """
    repo = open_repo(writes=True)
    plan = repo.plan_gc(grace_s=age_seconds(grace), expire_reflogs_s=age_seconds(expire))
    result = None
    if not dry_run:
        with byte_progress("sweeping", wanted=progress and not quiet) as bar:
            result = repo.gc(plan, progress=bar)
    if as_json:
        write_json(_gc_fields(plan, result))
    elif not quiet:
        _write_gc(stdout(), plan, result)


def _gc_fields(plan: GcPlan, result: GcResult | None) -> dict[str, object]:
    return {
        "dry_run": result is None,
        "grace_s": plan.grace_s,
        **pick(
            plan.sweep,
            "packs pack_bytes remove_packs=removed_packs rewrite_packs=rewritten_packs "
            "drop_chunks=dropped_chunks held_chunks",
        ),
        "objects": plan.objects if result is None else result.removed_objects,
        "reflog_entries": plan.reflog_entries,
        "kept_packs": 0 if result is None else result.kept_packs,
        "bytes": plan.freed_bytes if result is None else result.freed_bytes,
    }


def _write_gc(out: Output, plan: GcPlan, result: GcResult | None) -> None:
    sweep = plan.sweep
    if plan.is_empty:
        out.line(f"nothing to remove: {_packs_text(sweep.packs, sweep.pack_bytes)}")
        return
    verb = "would be removed" if result is None else "removed"
    if not sweep.is_empty:
        out.line(
            f"{count_text(sweep.dropped_chunks, 'chunk')} {verb}: "
            f"{count_text(sweep.removed_packs, 'pack')} deleted, "
            f"{count_text(sweep.rewritten_packs, 'pack')} rewritten"
        )
    if sweep.held_chunks:
        held = count_text(sweep.held_chunks, "chunk")
        out.line(out.style(f"{held} kept only as bases of chunks stored as differences", "dim"))
    objects = plan.objects if result is None else result.removed_objects
    if objects:
        out.line(f"{count_text(objects, 'Git object')} {verb}")
    if plan.reflog_entries:
        entries = count_text(plan.reflog_entries, "reflog entry", "reflog entries")
        out.line(f"{entries} {verb}")
    _write_freed(out, plan, result)


def repack(
    everything: Annotated[
        bool, Option("-a", "--all", help="Also try chunks that an earlier run has tried.")
    ] = False,
    auto: Annotated[
        bool, Option("--auto", help="Only if many packs are small or many commits are new.")
    ] = False,
    grace: Grace = None,
    dry_run: DryRun = False,
    quiet: Quiet = False,
    progress: ShowProgress = True,
    as_json: Json = False,
) -> None:
    """Make the repository smaller: store differences between versions, in few large packs.

    Every chunk keeps its bytes and its id; only the way it is stored changes. Chains of differences
    are kept short, so loading stays fast. It is safe to run repack beside commits and readers, and
    to kill it. With mvc.autorepack = true in the config, commits start it in the background when it
    is due.
    """
    repo = open_repo(writes=True)
    if auto:
        os.nice(_NICENESS)  # commits of a training run start it: the training goes first
        if not repo.is_repack_due():
            if as_json:
                write_json(None)
            return
    plan = repo.plan_repack(everything=everything, grace_s=age_seconds(grace))
    result = None
    if not dry_run:
        with byte_progress("repacking", wanted=progress and not quiet) as bar:
            result = repo.repack(plan, progress=bar)
    if as_json:
        write_json(_repack_fields(plan, result))
    elif not quiet:
        _write_repack(stdout(), plan, result)


def _repack_fields(plan: RepackPlan, result: RepackResult | None) -> dict[str, object]:
    sweep = plan.sweep
    return {
        "dry_run": result is None,
        "packs": sweep.packs,
        "pack_bytes": sweep.pack_bytes if result is None else result.pack_bytes,
        **pick(sweep, "remove_packs=removed_packs rewrite_packs=rewritten_packs"),
        **pick(plan, "small_packs try_chunks=chunks"),
        "deltas": None if result is None else result.deltas,
        "kept_packs": 0 if result is None else result.kept_packs,
        "bytes": plan.freed_bytes if result is None else result.freed_bytes,
    }


def _write_repack(out: Output, plan: RepackPlan, result: RepackResult | None) -> None:
    sweep = plan.sweep
    if plan.is_empty:
        out.line(f"nothing to do: {_packs_text(sweep.packs, sweep.pack_bytes)}")
        return
    packs = count_text(sweep.rewritten_packs, "pack")
    verb = "would be rewritten" if result is None else "rewritten"
    small = f", {plan.small_packs:,} of them small" if plan.small_packs else ""
    out.line(f"{packs} {verb}{small}")
    if plan.chunks:
        tried = count_text(plan.chunks, "chunk")
        found = "to try" if result is None else f"tried, {result.deltas:,} stored"
        out.line(f"{tried} {found} as differences")
    if sweep.dropped_chunks:
        verb = "would be removed" if result is None else "removed"
        out.line(f"{count_text(sweep.dropped_chunks, 'unreachable chunk')} {verb}")
    _write_freed(out, plan, result)
    if result is not None:
        count = sweep.packs - result.removed_packs + result.new_packs
        out.line(f"{_packs_text(count, result.pack_bytes)} now")


def _packs_text(packs: int, size_bytes: int) -> str:
    """Return how many packs there are, and their size."""
    return f"{count_text(packs, 'pack')}, {size_text(size_bytes)}"


def _write_freed(
    out: Output, plan: GcPlan | RepackPlan, result: GcResult | RepackResult | None
) -> None:
    """Write how many bytes were freed, or would be, and how many packs had to stay."""
    freed_bytes = plan.freed_bytes if result is None else result.freed_bytes
    verb = "would free about" if result is None else "freed"
    if freed_bytes < 0:
        verb, freed_bytes = "would take" if result is None else "took", -freed_bytes
    out.line(f"{verb} {out.style(size_text(freed_bytes), 'bold')}")
    if result is not None and result.kept_packs:
        packs = count_text(result.kept_packs, "pack")
        out.line(f"{packs} kept: needed by something newer than the plan; run it again")


def prune(
    keep_last: Annotated[
        int | None,
        Option("--keep-last", metavar="N", help="Keep the newest N commits of each branch."),
    ] = None,
    keep_every: Annotated[
        int | None,
        Option("--keep-every", metavar="M", help="Keep commits whose step is a multiple of M."),
    ] = None,
    keep_best: Annotated[
        int | None,
        Option("--keep-best", metavar="K", help="Keep the K commits that are best by --metric."),
    ] = None,
    metric: Annotated[
        str | None,
        Option("--metric", metavar="NAME", help="What --keep-best compares; lower is better."),
    ] = None,
    maximise: Annotated[bool, Option("--max", help="Higher is better for --metric.")] = False,
    keep_within: Annotated[
        str | None,
        Option(
            "--keep-within", metavar="AGE", help="Keep commits younger than AGE: 12h, 7d, 2w, 1y."
        ),
    ] = None,
    keep_tagged: Annotated[
        bool, Option("--keep-tagged", help="Keep tagged commits (always on).")
    ] = False,
    keep_branch_tips: Annotated[
        bool,
        Option("--keep-branch-tips", help="Keep branch tips, even of named diverged/ branches."),
    ] = False,
    weights_only: Annotated[
        bool, Option("--weights-only", help="Release optimizer and other state but keep the model.")
    ] = False,
    also_diverged: Annotated[
        list[str] | None,
        Option(
            "--also-diverged", metavar="GLOB", help="Also release from these diverged/ branches."
        ),
    ] = None,
    dry_run: DryRun = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Release the content of commits that no rule keeps; the history itself stays.

    At least one rule is needed; a commit that any of them keeps is kept. HEAD, branch tips, tagged
    commits and diverged/ branches that are not named always keep their content. A released commit
    stays in the log with its metrics; its content is gone for good unless a run recreates it.
    """
    from mvc.upkeep.durations import parse_duration

    within_s = None if keep_within is None else parse_duration(keep_within)
    repo = open_repo(writes=True)
    plan = repo.plan_prune(
        keep_last=keep_last,
        keep_every=keep_every,
        keep_best=keep_best,
        metric=metric,
        maximise=maximise,
        keep_tagged=keep_tagged,
        keep_branch_tips=keep_branch_tips,
        keep_within_s=within_s,
        weights_only=weights_only,
        also_diverged=also_diverged or (),
    )
    if not as_json and not quiet:
        _write_prune_plan(stdout(), plan)  # before the release, which takes a while
    freed_bytes = None if dry_run else repo.prune(plan).freed_bytes
    if as_json:
        write_json(_prune_fields(plan, freed_bytes))
    elif not quiet:
        _write_prune_sum(stdout(), plan, freed_bytes)


def _prune_fields(plan: PrunePlan, freed_bytes: int | None) -> dict[str, object]:
    return {
        "policy": plan.policy.text(),
        "dry_run": freed_bytes is None,
        "commits": [
            {
                **pick(one, "commit subject step"),
                "date": iso_date(one.time_s, 0),
                "action": _action(one),
                **pick(one, "reasons release=paths keep=kept_paths bytes=size_bytes"),
            }
            for one in plan.commits
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
    colours = {"keep": ("green",), "release": ("red",)}
    rows = [_row(one) for one in plan.commits]
    for one, cells in zip(plan.commits, columns(rows, "<<><><"), strict=True):
        verb, name, *rest = cells
        style = colours.get(_action(one), ("dim",))
        line = f"{out.style(verb, *style)}  {out.style(name, 'yellow')}  {'  '.join(rest)}"
        out.line(line.rstrip())
    if plan.policy.weights_only:
        out.line(out.style(_WEIGHTS_RULE, "dim"))


def _row(one: CommitPlan) -> list[str]:
    step = "" if one.step is None else f"step {one.step:,}"
    size = size_text(one.size_bytes) if one.paths else ""
    subject = cut_end(printable(one.subject), _SUBJECT_WIDTH)
    return [_action(one), short_id(one.commit), step, subject, size, printable(_why(one))]


def _why(one: CommitPlan) -> str:
    if one.was_released:
        return "content already released"
    if one.reasons:
        return ", ".join(one.reasons)
    if one.paths:
        more = len(one.paths) - _SHOWN_PATHS
        return ", ".join(one.paths[:_SHOWN_PATHS]) + (f" and {more:,} more" if more > 0 else "")
    return "shared with a version that stays" if one.kept_paths else "plain files only"


def _write_prune_sum(out: Output, plan: PrunePlan, freed_bytes: int | None) -> None:
    if not plan.releases:
        size_bytes = plan.freed_bytes if freed_bytes is None else freed_bytes
        verb = "would free" if freed_bytes is None else "freed"
        rest = f", {verb} {size_text(size_bytes)} of content released before"
        out.line("nothing to release" + (rest if size_bytes > 0 else ""))
        return
    files = sum(len(release.paths) for release in plan.releases)
    commits = Counter(_action(one) for one in plan.commits)["release"]
    what = f"{count_text(files, 'file')} of {count_text(commits, 'commit')}"
    if freed_bytes is None:
        out.line(f"would release {what} and free {size_text(plan.freed_bytes)}")
    else:
        out.line(f"released {what}, {size_text(freed_bytes)} freed")
