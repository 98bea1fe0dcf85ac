"""gc, repack: remove what nothing reaches, and store the rest in less space."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

from typer import Option

from mvc.cli.options import DryRun, Grace, Json, Quiet, ShowProgress, age_seconds
from mvc.cli.output import Output, pick, stdout, write_json
from mvc.cli.progress import byte_progress
from mvc.cli.render.text import count_text, size_text
from mvc.cli.session import open_repo

if TYPE_CHECKING:
    from mvc.operations.gc import GcPlan, GcResult
    from mvc.operations.repack import RepackPlan, RepackResult

_NICENESS = 10


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
