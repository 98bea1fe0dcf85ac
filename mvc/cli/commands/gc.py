"""Remove what nothing reaches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from mvc.cli.options import DryRun, Grace, Json, Quiet, ShowProgress, age_seconds
from mvc.cli.output import Output, pick, stdout, write_json
from mvc.cli.parameters import Option
from mvc.cli.progress import byte_progress
from mvc.cli.render.text import count_text, size_text
from mvc.cli.session import open_repo

if TYPE_CHECKING:
    from mvc.operations.gc import GcPlan, GcResult
    from mvc.operations.repack import RepackPlan, RepackResult


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
    that it can be brought back. Released content goes at once. It is safe to run gc alongside commits
    and readers, and to kill it.
    """
    repo = open_repo()
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
        "leftovers": plan.leftovers if result is None else result.removed_leftovers,
        "statistics": plan.statistics if result is None else result.removed_statistics,
        "reflog_entries": plan.reflog_entries,
        "kept_packs": 0 if result is None else result.kept_packs,
        "bytes": plan.freed_bytes if result is None else result.freed_bytes,
    }


def _write_gc(out: Output, plan: GcPlan, result: GcResult | None) -> None:
    sweep = plan.sweep
    if plan.is_empty:
        out.line(f"nothing to remove: {packs_text(sweep.packs, sweep.pack_bytes)}")
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
    leftovers = plan.leftovers if result is None else result.removed_leftovers
    if leftovers:
        out.line(f"{count_text(leftovers, 'leftover')} of killed processes {verb}")
    statistics = plan.statistics if result is None else result.removed_statistics
    if statistics:
        out.line(f"{count_text(statistics, 'kept statistic')} {verb}")
    if plan.reflog_entries:
        entries = count_text(plan.reflog_entries, "reflog entry", "reflog entries")
        out.line(f"{entries} {verb}")
    write_freed(out, plan, result)


def packs_text(packs: int, size_bytes: int) -> str:
    """Return how many packs there are, and their size."""
    return f"{count_text(packs, 'pack')}, {size_text(size_bytes)}"


def write_freed(
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
