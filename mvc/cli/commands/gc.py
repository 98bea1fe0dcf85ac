"""Remove what nothing reaches, and store the rest in less."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from mvc.cli.options import DRY_RUN, GRACE, QUIET_PROGRESS_JSON, read_age
from mvc.cli.output import Output, Shown, pick, write_json
from mvc.cli.parameters import CommandUsageError, argument, flag, string
from mvc.cli.progress import byte_progress
from mvc.cli.render.text import count_text, size_text
from mvc.cli.session import open_repo

if TYPE_CHECKING:
    from mvc import Repo
    from mvc.operations.gc import GcPlan, GcResult
    from mvc.operations.gc_remote import RemoteGcPlan, RemoteGcResult
    from mvc.operations.repack import RepackPlan, RepackResult


_SWEPT = (
    "packs pack_bytes remove_packs=removed_packs rewrite_packs=rewritten_packs "
    "drop_chunks=dropped_chunks held_chunks"
)

_NICENESS = 10


def gc(
    name: str | None = argument("[REMOTE]"),
    remote: bool = flag("--remote", "Remove from a remote what its refs do not reach."),
    grace_s: int | None = GRACE,
    expire_s: int | None = string(
        "--expire-reflog AGE",
        "Expire reflog entries older than AGE; now expires all that refs have left.",
        read=read_age,
    ),
    dry_run: bool = DRY_RUN,
    shown: Shown = QUIET_PROGRESS_JSON,
) -> None:
    """Remove what nothing reaches: chunks, Git objects, leftovers of processes that died.

    Whatever HEAD, refs, the index and reflogs name is reachable. Reflog entries expire after 90
    days, or after 30 if their ref no longer reaches them; other garbage is kept for two weeks, so
    that it can be brought back. Released content goes at once. It is safe to run gc alongside commits
    and readers, and to kill it.

    With --remote it is a remote that is looked at, the default one or REMOTE: what its refs and
    channels do not reach is not named there any more, and is deleted once the grace has passed, by a
    later gc. Pushes that died leave what is deleted after the same time. Others may push and fetch
    meanwhile.
    """
    repo = open_repo()
    if remote:
        if expire_s is not None:
            raise CommandUsageError(
                "a remote has no reflogs to expire", hint="leave --expire-reflog out"
            )
        _gc_remote(repo, name, grace_s, shown, dry_run=dry_run)
        return
    if name is not None:
        raise CommandUsageError(f"{name!r} names no repository; --remote looks at a remote")
    plan = repo.upkeep.plan_gc(grace_s=grace_s, expire_reflogs_s=expire_s)
    result = None
    if not dry_run:
        with byte_progress("sweeping", wanted=shown.progress):
            result = repo.upkeep.gc(plan)
    shown.answer(_gc_fields(plan, result), _write_gc, plan, result)


def _gc_fields(plan: GcPlan, result: GcResult | None) -> dict[str, object]:
    return {
        "dry_run": result is None,
        "grace_s": plan.grace_s,
        **pick(plan.sweep, _SWEPT),
        **_removed(plan, result),
        "reflog_entries": plan.reflog_entries,
        "kept_packs": 0 if result is None else result.kept_packs,
        "bytes": plan.freed_bytes if result is None else result.freed_bytes,
    }


def _removed(plan: GcPlan, result: GcResult | None) -> dict[str, int]:
    """Return how much of each kind was removed, or would be."""
    if result is None:
        return pick(plan, "objects leftovers statistics")
    removed = "objects=removed_objects leftovers=removed_leftovers statistics=removed_statistics"
    return pick(result, removed)


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
    objects, leftovers, statistics = _removed(plan, result).values()
    if objects:
        out.line(f"{count_text(objects, 'Git object')} {verb}")
    if leftovers:
        out.line(f"{count_text(leftovers, 'leftover')} of killed processes {verb}")
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


def _gc_remote(
    repo: Repo, name: str | None, grace_s: int | None, shown: Shown, *, dry_run: bool
) -> None:
    result = None
    if dry_run:
        plan = repo.remotes.plan_gc(name, grace_s=grace_s)
    else:
        with byte_progress("sweeping", wanted=shown.progress):
            result = repo.remotes.gc(name, grace_s=grace_s)
        plan = result.plan
    shown.answer(_remote_fields(plan, result), _write_remote, plan, result)


def _remote_fields(plan: RemoteGcPlan, result: RemoteGcResult | None) -> dict[str, object]:
    return {
        "dry_run": result is None,
        **pick(plan, "url grace_s"),
        **pick(plan.sweep, _SWEPT),
        "join_history": plan.history_packs,
        "new_packs_bytes": 0 if result is None else result.new_packs_bytes,
        "objects": plan.delete_objects if result is None else result.deleted_objects,
        "bytes": plan.delete_bytes if result is None else result.freed_bytes,
        **pick(plan if result is None else result, "waiting_objects waiting_bytes"),
    }


def _write_remote(out: Output, plan: RemoteGcPlan, result: RemoteGcResult | None) -> None:
    sweep, later = plan.sweep, plan if result is None else result
    if plan.is_empty and (result is None or not result.deleted_objects):
        out.line(f"nothing to remove: {packs_text(sweep.packs, sweep.pack_bytes)}")
    if not sweep.is_empty:
        verb = "would be taken" if result is None else "taken"
        out.line(
            f"{count_text(sweep.dropped_chunks, 'chunk')} {verb} out of {plan.url}: "
            f"{count_text(sweep.removed_packs, 'pack')} dropped, "
            f"{count_text(sweep.rewritten_packs, 'pack')} rewritten"
        )
    if plan.history_packs:
        verb = "would be rewritten" if result is None else "rewritten"
        out.line(f"{count_text(plan.history_packs, 'Git pack')} {verb}")
    if result is not None and result.deleted_objects:
        gone, size = count_text(result.deleted_objects, "object"), size_text(result.freed_bytes)
        out.line(f"{gone} deleted, {out.style(size, 'bold')} freed")
    elif result is None and plan.delete_objects:
        gone, size = count_text(plan.delete_objects, "object"), size_text(plan.delete_bytes)
        out.line(f"{gone} would be deleted, which frees {out.style(size, 'bold')}")
    if later.waiting_objects:
        waiting, size = count_text(later.waiting_objects, "object"), size_text(later.waiting_bytes)
        text = f"{waiting} ({size}) not named any more: a later gc deletes them once the grace has passed"
        out.line(out.style(text, "dim"))


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
    removed = "remove_packs=sweep.removed_packs rewrite_packs=sweep.rewritten_packs"
    return {
        "dry_run": result is None,
        "packs": plan.sweep.packs,
        "pack_bytes": plan.sweep.pack_bytes if result is None else result.pack_bytes,
        **pick(plan, f"{removed} small_packs git_files try_chunks=chunks"),
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
