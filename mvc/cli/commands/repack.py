"""Store the repository in less."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from mvc.cli.options import DryRun, Grace, Json, Quiet, ShowProgress, age_seconds
from mvc.cli.output import Output, stdout, write_json
from mvc.cli.progress import byte_progress
from mvc.cli.render.sweep import packs_text, write_freed, write_kept
from mvc.cli.render.text import count_text
from mvc.cli.session import open_repo

if TYPE_CHECKING:
    from mvc.operations.repack import RepackPlan, RepackResult


_NICENESS = 10


def repack(
    everything: Annotated[
        bool, typer.Option("-a", "--all", help="Also look again at what was looked at before.")
    ] = False,
    auto: Annotated[
        bool,
        typer.Option("--auto", help="Only where many packs are small or many commits are new."),
    ] = False,
    grace: Grace = None,
    dry_run: DryRun = False,
    quiet: Quiet = False,
    progress: ShowProgress = True,
    as_json: Json = False,
) -> None:
    """Store the repository in less: differences between versions, few large packs.

    Every chunk stays the same bytes under the same id; only how it is stored changes. Chains of
    differences are kept short, so that nothing gets slow to load. May run beside commits and
    readers, and be killed at any time. With mvc.autorepack = true in the config, commits start
    it by themselves in the background where it is due.
    """
    repo = open_repo(writes=True)
    if auto:
        os.nice(_NICENESS)
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
        write_json(repack_fields(plan, result))
    elif not quiet:
        _write_repack(stdout(), plan, result)


def repack_fields(plan: RepackPlan, result: RepackResult | None) -> dict[str, object]:
    """Return what ``repack --json`` prints; without a result it is a plan."""
    sweep = plan.sweep
    return {
        "dry_run": result is None,
        "packs": sweep.packs,
        "pack_bytes": sweep.pack_bytes if result is None else result.pack_bytes,
        "remove_packs": sweep.removed_packs,
        "rewrite_packs": sweep.rewritten_packs,
        "small_packs": plan.small_packs,
        "try_chunks": plan.chunks,
        "deltas": None if result is None else result.deltas,
        "kept_packs": 0 if result is None else result.kept_packs,
        "bytes": plan.freed_bytes if result is None else result.freed_bytes,
    }


def _write_repack(out: Output, plan: RepackPlan, result: RepackResult | None) -> None:
    sweep = plan.sweep
    if plan.is_empty:
        out.line(f"nothing to do: {packs_text(sweep.packs, sweep.pack_bytes)}")
        return
    packs = count_text(sweep.rewritten_packs, "pack")
    verb = "would be written anew" if result is None else "written anew"
    small = f", {plan.small_packs:,} of them small" if plan.small_packs else ""
    out.line(f"{packs} {verb}{small}")
    if plan.chunks:
        tried = count_text(plan.chunks, "chunk")
        found = "to try" if result is None else f"tried, {result.deltas:,} stored"
        out.line(f"{tried} {found} as differences")
    if sweep.dropped_chunks:
        gone = "would go" if result is None else "gone"
        out.line(f"{count_text(sweep.dropped_chunks, 'chunk')} nothing reaches {gone}")
    write_freed(out, plan.freed_bytes if result is None else result.freed_bytes, result is None)
    if result is not None:
        write_kept(out, result.kept_packs)
        out.line(f"{packs_text(_count_packs(plan, result), result.pack_bytes)} now")


def _count_packs(plan: RepackPlan, result: RepackResult) -> int:
    return plan.sweep.packs - result.removed_packs + result.new_packs
