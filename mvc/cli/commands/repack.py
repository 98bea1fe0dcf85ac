"""Store differences between versions, in few large packs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from mvc.cli.commands.gc import packs_text, write_freed
from mvc.cli.options import DRY_RUN, GRACE, QUIET_PROGRESS_JSON
from mvc.cli.output import Output, Shown, pick, write_json
from mvc.cli.parameters import flag
from mvc.cli.progress import byte_progress
from mvc.cli.render.text import count_text
from mvc.cli.session import open_repo

if TYPE_CHECKING:
    from mvc.operations.repack import RepackPlan, RepackResult


_NICENESS = 10


def repack(
    everything: bool = flag("-a, --all", "Also retry chunks that an earlier run tried."),
    auto: bool = flag("--auto", "Only if many packs are small or many commits are new."),
    grace_s: int | None = GRACE,
    dry_run: bool = DRY_RUN,
    shown: Shown = QUIET_PROGRESS_JSON,
) -> None:
    """Make the repository smaller: store differences between versions, in few large packs.

    Every chunk keeps its bytes and its id; only the way it is stored changes. Chains of differences
    are kept short, so loading stays fast. It is safe to run repack alongside commits and readers, and
    to kill it. With mvc.autorepack = true in the config, commits start it in the background when it
    is due.
    """
    repo = open_repo()
    if auto:
        os.nice(_NICENESS)  # commits of a training run start it: the training goes first
        if not repo.upkeep.is_repack_due():
            if shown.as_json:
                write_json(None)
            return
    plan = repo.upkeep.plan_repack(everything=everything, grace_s=grace_s)
    result = None
    if not dry_run:
        with byte_progress("repacking", wanted=shown.progress):
            result = repo.upkeep.repack(plan)
    shown.answer(_repack_fields(plan, result), _write_repack, plan, result)


def _repack_fields(plan: RepackPlan, result: RepackResult | None) -> dict[str, object]:
    sweep = plan.sweep
    return {
        "dry_run": result is None,
        "packs": sweep.packs,
        "pack_bytes": sweep.pack_bytes if result is None else result.pack_bytes,
        **pick(sweep, "remove_packs=removed_packs rewrite_packs=rewritten_packs"),
        **pick(plan, "small_packs git_files try_chunks=chunks"),
        "deltas": None if result is None else result.deltas,
        "kept_packs": 0 if result is None else result.kept_packs,
        "bytes": plan.freed_bytes if result is None else result.freed_bytes,
    }


def _write_repack(out: Output, plan: RepackPlan, result: RepackResult | None) -> None:
    sweep = plan.sweep
    if plan.is_empty:
        out.line(f"nothing to do: {packs_text(sweep.packs, sweep.pack_bytes)}")
        return
    would = "would be " if result is None else ""
    packs = count_text(sweep.rewritten_packs, "pack")
    small = f", {plan.small_packs:,} of them small" if plan.small_packs else ""
    if sweep.rewritten_packs or not plan.git_files:
        out.line(f"{packs} {would}rewritten{small}")
    if plan.git_files:
        out.line(
            f"{count_text(plan.git_files, 'file')} of Git objects {would}gathered into one pack"
        )
    if plan.chunks:
        tried = count_text(plan.chunks, "chunk")
        found = "to try" if result is None else f"tried, {result.deltas:,} stored"
        out.line(f"{tried} {found} as differences")
    if sweep.dropped_chunks:
        out.line(f"{count_text(sweep.dropped_chunks, 'unreachable chunk')} {would}removed")
    write_freed(out, plan, result)
    if result is not None:
        count = sweep.packs - result.removed_packs + result.new_packs
        out.line(f"{packs_text(count, result.pack_bytes)} now")
