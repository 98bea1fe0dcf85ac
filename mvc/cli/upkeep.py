"""gc and repack: what goes, and how what stays is stored in less."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from mvc.cli.group import PlainCommand, new_app
from mvc.cli.options import Json, Quiet, ShowProgress
from mvc.cli.output import Output, stdout, write_json
from mvc.cli.progress import byte_progress
from mvc.cli.render import count_text, size_text
from mvc.cli.session import open_repo

if TYPE_CHECKING:
    from mvc.operations.gc import GcPlan, GcResult
    from mvc.operations.repack import RepackPlan, RepackResult

app = new_app()

_NICENESS = 10

DryRun = Annotated[
    bool, typer.Option("-n", "--dry-run", help="Print what would be done, and stop.")
]
Grace = Annotated[
    str | None,
    typer.Option(
        "--grace", metavar="AGE", help="Keep younger garbage: now, 12h, 7d, 2w (default)."
    ),
]


def _seconds(age: str | None) -> int | None:
    from mvc.upkeep.durations import parse_duration

    return None if age is None else 0 if age in ("0", "now") else parse_duration(age)


@app.command(cls=PlainCommand)
def gc(
    grace: Grace = None,
    expire: Annotated[
        str | None,
        typer.Option(
            "--expire-reflog",
            metavar="AGE",
            help="Forget older entries of reflogs; now forgets what no ref leads to.",
        ),
    ] = None,
    dry_run: DryRun = False,
    quiet: Quiet = False,
    progress: ShowProgress = True,
    as_json: Json = False,
) -> None:
    """Remove what nothing reaches: chunks, Git objects, leftovers of processes that died.

    Reachable is what HEAD, refs, the index and reflogs name. Reflogs remember for 90 days, and 30
    days what their ref has left; other garbage stays for two weeks, so that it can be brought back.
    Content that was released goes at once. May run beside commits and readers, and be killed.
    """
    repo = open_repo(writes=True)
    plan = repo.plan_gc(grace_s=_seconds(grace), expire_reflogs_s=_seconds(expire))
    result = None
    if not dry_run:
        with byte_progress("sweeping", wanted=progress and not quiet) as bar:
            result = repo.gc(plan, progress=bar)
    if as_json:
        write_json(gc_fields(plan, result))
    elif not quiet:
        _write_gc(stdout(), plan, result)


def gc_fields(plan: GcPlan, result: GcResult | None) -> dict[str, object]:
    """Return what ``gc --json`` prints; without a result it is a plan."""
    sweep = plan.sweep
    return {
        "dry_run": result is None,
        "grace_s": plan.grace_s,
        "packs": sweep.packs,
        "pack_bytes": sweep.pack_bytes,
        "remove_packs": sweep.removed_packs,
        "rewrite_packs": sweep.rewritten_packs,
        "drop_chunks": sweep.dropped_chunks,
        "held_chunks": sweep.held_chunks,
        "objects": plan.objects if result is None else result.removed_objects,
        "reflog_entries": plan.reflog_entries,
        "kept_packs": 0 if result is None else result.kept_packs,
        "bytes": plan.freed_bytes if result is None else result.freed_bytes,
    }


def _write_gc(out: Output, plan: GcPlan, result: GcResult | None) -> None:
    if plan.is_empty:
        out.line(f"nothing to remove: {_packs_text(plan.sweep.packs, plan.sweep.pack_bytes)}")
        return
    verb = "would go" if result is None else "gone"
    sweep = plan.sweep
    if not sweep.is_empty:
        out.line(
            f"{count_text(sweep.dropped_chunks, 'chunk')} {verb}: "
            f"{count_text(sweep.removed_packs, 'pack')} removed, "
            f"{count_text(sweep.rewritten_packs, 'pack')} written anew"
        )
    if sweep.held_chunks:
        held = count_text(sweep.held_chunks, "chunk")
        out.line(
            out.style(f"{held} nobody names stay: others are stored as differences to them", "dim")
        )
    objects = plan.objects if result is None else result.removed_objects
    if objects:
        out.line(f"{count_text(objects, 'Git object')} {verb}")
    if plan.reflog_entries:
        entries = count_text(plan.reflog_entries, "entry of reflogs", "entries of reflogs")
        out.line(f"{entries} {verb}")
    _write_freed(out, plan.freed_bytes if result is None else result.freed_bytes, result is None)
    if result is not None:
        _write_kept(out, result.kept_packs)


def _packs_text(packs: int, size_bytes: int) -> str:
    return f"{count_text(packs, 'pack')}, {size_text(size_bytes)}"


def _write_freed(out: Output, freed_bytes: int, is_plan: bool) -> None:
    what = "would free about" if is_plan else "freed"
    if freed_bytes < 0:
        what, freed_bytes = "would take" if is_plan else "took", -freed_bytes
    out.line(f"{what} {out.style(size_text(freed_bytes), 'bold')}")


def _write_kept(out: Output, kept_packs: int) -> None:
    if kept_packs:
        packs = count_text(kept_packs, "pack")
        out.line(f"{packs} stayed: something needs them since the plan was made; run it again")


@app.command(cls=PlainCommand)
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
    plan = repo.plan_repack(everything=everything, grace_s=_seconds(grace))
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
        out.line(f"nothing to do: {_packs_text(sweep.packs, sweep.pack_bytes)}")
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
    _write_freed(out, plan.freed_bytes if result is None else result.freed_bytes, result is None)
    if result is not None:
        _write_kept(out, result.kept_packs)
        out.line(f"{_packs_text(_count_packs(plan, result), result.pack_bytes)} now")


def _count_packs(plan: RepackPlan, result: RepackResult) -> int:
    return plan.sweep.packs - result.removed_packs + result.new_packs
