"""Remove what nothing reaches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from mvc.cli.options import DryRun, Grace, Json, Quiet, ShowProgress, age_seconds
from mvc.cli.output import Output, stdout, write_json
from mvc.cli.progress import byte_progress
from mvc.cli.render.sweep import packs_text, write_freed, write_kept
from mvc.cli.render.text import count_text
from mvc.cli.session import open_repo

if TYPE_CHECKING:
    from mvc.operations.gc import GcPlan, GcResult


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
    plan = repo.plan_gc(grace_s=age_seconds(grace), expire_reflogs_s=age_seconds(expire))
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
        out.line(f"nothing to remove: {packs_text(plan.sweep.packs, plan.sweep.pack_bytes)}")
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
    write_freed(out, plan.freed_bytes if result is None else result.freed_bytes, result is None)
    if result is not None:
        write_kept(out, result.kept_packs)
