"""Shard maps and samples: what they hold, what differs, which commits saw them; as text and as JSON."""

from __future__ import annotations

import posixpath
from dataclasses import replace
from typing import TYPE_CHECKING

from mvc.cli.output import pick, printable
from mvc.cli.render.text import count_text, size_text, some_text, table_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from mvc.cli.output import Output
    from mvc.operations.data_add import DataAddResult
    from mvc.operations.data_maps import MapDiff, MapInfo
    from mvc.operations.data_seen import DataSeen, LoaderSeen, SamplesSeen
    from mvc.operations.data_who import SawSample, WhoSaw
    from mvc.shards.checking import MapReport
    from mvc.shards.shard_map import MapChanges, Shard, ShardMap


_SHORT_TREE = 12

_SHOWN = 5
_SHORT = 10
_DIGITS = 16


def shard_fields(shard: Shard) -> dict[str, object]:
    """Return a shard for ``--json``."""
    return {**pick(shard, "path bytes=size_bytes records tag"), "sha256": shard.sha256.hex()}


def map_fields(path: str, shard_map: ShardMap) -> dict[str, object]:
    """Return what a map says of all its shards for ``--json``."""
    facts = pick(shard_map, "root pattern tree records bytes=size_bytes")
    return {"path": path, **facts, "shards": len(shard_map.shards)}


def info_fields(info: MapInfo, *, with_list: bool) -> dict[str, object]:
    """Return a map of a listing for ``--json``, with its shards if they are wanted."""
    if info.shard_map is None:
        return pick(info, "path fault")
    shards = {"list": [shard_fields(shard) for shard in info.shard_map.shards]} if with_list else {}
    return {**map_fields(info.path, info.shard_map), **shards}


def changes_fields(changes: MapChanges) -> dict[str, object]:
    """Return what differs between two maps for ``--json``."""
    pairs = {"changed": changes.changed, "moved": changes.moved}
    return {
        "added": [shard_fields(shard) for shard in changes.added],
        "removed": [shard_fields(shard) for shard in changes.removed],
        **{
            name: [{"old": shard_fields(old), "new": shard_fields(new)} for old, new in found]
            for name, found in pairs.items()
        },
        "more_bytes": changes.more_bytes,
        "more_records": changes.more_records,
    }


def diff_fields(one: MapDiff) -> dict[str, object]:
    """Return a map that differs for ``--json``."""
    if one.fault is not None:
        return pick(one, "path fault")
    return {"path": one.path, **changes_fields(one.changes)}


def changes_text(changes: MapChanges) -> str:
    """Return ``2 shards added, 1 changed (+1,204 records)``."""
    kinds = ("added", "removed", "changed", "moved")
    counts = [(len(getattr(changes, kind)), kind) for kind in kinds]
    counts = [(count, kind) for count, kind in counts if count]
    if not counts:
        return "no shard differs"
    first, *rest = counts
    parts = [f"{count_text(first[0], 'shard')} {first[1]}"]
    parts += [f"{count:,} {kind}" for count, kind in rest]
    records = changes.more_records
    if records is not None:
        growth = f"{records:+,} record{'' if abs(records) == 1 else 's'}"
    else:
        growth = ("+" if changes.more_bytes >= 0 else "") + size_text(changes.more_bytes)
    return f"{', '.join(parts)} ({growth})"


def totals_text(shard_map: ShardMap) -> str:
    """Return how many shards, records and bytes a map has."""
    records = shard_map.records
    parts = [
        count_text(len(shard_map.shards), "shard"),
        "records not known" if records is None else count_text(records, "record"),
        size_text(shard_map.size_bytes),
    ]
    return ", ".join(parts)


def added_fields(done: DataAddResult) -> dict[str, object]:
    """Return what became of a map for ``--json``."""
    return {
        **map_fields(done.path, done.shard_map),
        **pick(done, "read read_bytes"),
        "changes": changes_fields(done.changes),
        "warnings": [{"path": path, "reason": reason} for path, reason in done.warnings],
    }


def write_added(out: Output, done: DataAddResult) -> None:
    """Write what became of a map."""
    path = printable(done.path)
    out.line(f"{out.style(path, 'bold')}: {changes_text(done.changes)}")
    read = "nothing was read"
    if done.read:
        read = f"{count_text(done.read, 'shard')} read ({size_text(done.read_bytes)})"
    out.line(f"  {totals_text(done.shard_map)}; tree {done.shard_map.tree[:_SHORT_TREE]}; {read}")
    if done.stored is not None:
        out.line(f"  stored: {size_text(done.stored.stored_bytes)} new")


def write_maps(out: Output, found: Sequence[MapInfo]) -> None:
    """Write a line per map, if there are any."""
    rows: list[tuple[str, ...]] = []
    for info in found:
        made = info.shard_map
        if made is None:
            rows.append((printable(info.path), "", "", "", printable(info.fault or "")))
            continue
        records = "-" if made.records is None else f"{made.records:,}"
        shards, size = f"{len(made.shards):,}", size_text(made.size_bytes)
        rows.append((printable(info.path), shards, records, size, made.tree[:_SHORT_TREE]))
    if rows:
        head = ("map", "shards", "records", "size", "tree")
        out.lines(table_lines(out, [head, *rows], "<>>><"))


def write_shards(out: Output, shard_map: ShardMap) -> None:
    """Write a line per shard of a map."""
    rows = [("path", "records", "size", "sha256")]
    for shard in shard_map.shards:
        records = "-" if shard.records is None else f"{shard.records:,}"
        hashed = shard.sha256.hex()[:_SHORT_TREE]
        rows.append((printable(shard.path), records, size_text(shard.size_bytes), hashed))
    out.lines(table_lines(out, rows, "<>><"))


def write_map_diffs(out: Output, found: Sequence[MapDiff]) -> None:
    """Write which shards differ, map by map."""
    for number, one in enumerate(found):
        if number:
            out.line()
        if one.fault is not None:
            out.line(out.style(f"{printable(one.path)}: {printable(one.fault)}", "red"))
            continue
        gone = " (the map is removed)" if one.new is None else ""
        out.line(out.style(f"{printable(one.path)}: {changes_text(one.changes)}{gone}", "bold"))
        out.lines(_change_lines(out, one.changes))


def _change_lines(out: Output, changes: MapChanges) -> list[str]:
    lines: list[tuple[str, str, str, str]] = [
        *(("A", "green", one.path, _size(one)) for one in changes.added),
        *(("D", "red", one.path, _size(one)) for one in changes.removed),
        *(
            ("M", "yellow", new.path, f"{_size(old)} -> {_size(new)}")
            for old, new in changes.changed
        ),
        *(("R", "cyan", f"{old.path} -> {new.path}", _size(new)) for old, new in changes.moved),
    ]
    lines.sort(key=lambda line: line[2])
    return [
        f"  {out.style(sign, colour)} {printable(path)}  {size}"
        for sign, colour, path, size in lines
    ]


def _size(shard: Shard) -> str:
    size = size_text(shard.size_bytes)
    return size if shard.records is None else f"{size}, {count_text(shard.records, 'record')}"


def report_fields(path: str, report: MapReport) -> dict[str, object]:
    """Return what a check found for ``--json``."""
    found = "root ok read read_bytes known unproven faults(kind path detail)"
    return {"path": path, **pick(report, found)}


def write_reports(out: Output, found: Sequence[tuple[str, MapReport]]) -> None:
    """Write what a check of maps found, map by map."""
    for path, report in found:
        _write_report(out, path, report)


def _write_report(out: Output, path: str, report: MapReport) -> None:
    """Write a line per shard that is not as the map says, and one about all."""
    for fault in report.faults:
        if "://" in report.root:
            place = f"{report.root}/{fault.path}".rstrip("/")
        else:
            folder = posixpath.join(posixpath.dirname(path), report.root)
            place = posixpath.normpath(posixpath.join(folder, fault.path))
        kind = out.style(fault.kind + ":", "red")
        out.line(f"{kind} {printable(place)} {printable(fault.detail)}")
    how = [
        f"{report.read:,} read ({size_text(report.read_bytes)})" if report.read else "",
        f"{report.known:,} not read: unchanged since they were" if report.known else "",
        f"{report.unproven:,} by their size alone" if report.unproven else "",
    ]
    note = "; ".join(part for part in how if part)
    note = f" ({note})" if note else ""
    if report.ok:
        shards = report.read + report.known + report.unproven
        out.line(
            f"{out.style('ok:', 'green', 'bold')} {printable(path)}: {count_text(shards, 'shard')}{note}"
        )
        return
    counts = ", ".join(f"{count:,} {kind}" for kind, count in sorted(report.counts().items()))
    out.line(f"{out.style(f'{printable(path)}:', 'red', 'bold')} {counts}{note}")


def seen_fields(found: DataSeen, *, with_list: bool) -> dict[str, object]:
    """Return what a commit saw for ``--json``; all samples only if they are wanted."""
    loaders = [_loader_fields(loader, with_list=with_list) for loader in found.loaders]
    return {"commit": found.commit, "since": found.since, "loaders": loaders}


def _loader_fields(one: LoaderSeen, *, with_list: bool) -> dict[str, object]:
    times = None if one.times is None else {str(often): n for often, n in one.times.items()}
    return {
        **pick(one, "name samples=digest.count digest=digest.hex total=total.count"),
        **pick(one, "total_digest=total.hex positions"),
        "times": times,
        "is_proven": one.is_proven,
        "seen": [_samples_fields(part, with_list=with_list) for part in one.samples],
        "skipped": [_samples_fields(part, with_list=with_list) for part in one.skipped],
    }


def _samples_fields(one: SamplesSeen, *, with_list: bool) -> dict[str, object]:
    listed = pick(one, "ranges keys") if with_list else {}
    return {**pick(one, "source epoch count reason"), "shards": dict(one.shards), **listed}


def write_seen(out: Output, found: DataSeen, *, with_list: bool) -> None:
    """Write what a commit saw."""
    since = "the start of the run" if found.since is None else found.since[:_SHORT]
    out.line(f"{found.commit[:_SHORT]} since {since}")
    for loader in found.loaders:
        for text in _loader_lines(loader, with_list=with_list):
            out.line(text)


def _loader_lines(one: LoaderSeen, *, with_list: bool) -> Iterator[str]:
    yield (
        f"{printable(one.name)}: {count_text(one.digest.count, 'sample')}, {one.total.count:,} in all, "
        f"digest {one.digest.hex[:_DIGITS]}"
    )
    if one.positions is not None and one.positions[0] < one.positions[1]:
        yield f"  positions {one.positions[0]:,} to {one.positions[1] - 1:,}"
    for part, last in _join_epochs(one.samples):
        yield f"  {_samples_text(part, last, with_list=with_list)}"
        yield from (
            f"    {printable(path)}: {n:,}" for path, n in _some(part.shards.items(), with_list)
        )
    if one.times is None:
        yield "  which ones is not listed: they are too many, or from before its list begins"
    elif set(one.times) - {1}:
        words = {1: "once", 2: "twice"}
        texts = [f"{n:,} {words.get(times, f'{times} times')}" for times, n in one.times.items()]
        yield f"  {', '.join(texts)}"
    for part, last in _join_epochs(one.skipped):
        samples = _samples_text(part, last, with_list=with_list)
        yield f"  skipped ({printable(part.reason or '')}): {samples}"
    if one.is_proven is False and one.times is None:
        yield "  NOT PROVEN: which samples these are is not listed"
    elif one.is_proven is not None:
        yield (
            "  proven: these samples have the digest of those that were fetched"
            if one.is_proven
            else "  NOT PROVEN: these samples do not have the digest of those that were fetched"
        )


def _some(items: Iterable[tuple[str, int]], everything: bool) -> Iterator[tuple[str, int]]:
    found = list(items)
    yield from found if everything else found[:_SHOWN]
    if len(found) > _SHOWN and not everything:
        rest = found[_SHOWN:]
        yield f"in {len(rest):,} more shards", sum(n for _, n in rest)


def _join_epochs(parts: Iterable[SamplesSeen]) -> Iterator[tuple[SamplesSeen, int | None]]:
    """Yield the first of epochs in a row that have the same samples, and the number of the last."""
    held: list[SamplesSeen] = []
    for part in sorted(parts, key=lambda one: (one.source, one.reason or "", one.epoch or 0)):
        if held and part != replace(held[-1], epoch=(held[-1].epoch or 0) + 1):
            yield held[0], held[-1].epoch
            held = []
        held.append(part)
    if held:
        yield held[0], held[-1].epoch


def _samples_text(one: SamplesSeen, last: int | None, *, with_list: bool) -> str:
    epoch = "" if one.epoch is None else f" epoch {one.epoch}"
    count = count_text(one.count, "sample")
    if last != one.epoch:
        epoch, count = f" epochs {one.epoch} to {last}", f"{count} each"
    runs = [str(first) if first == last else f"{first}-{last}" for first, last in one.ranges]
    names = [*runs, *one.keys]
    shown = some_text(names, len(names) if with_list else _SHOWN)
    return f"{printable(one.source)}{epoch}, {count}: {shown}"


def who_fields(found: WhoSaw) -> dict[str, object]:
    """Return who saw a sample for ``--json``."""
    wanted = found.wanted
    sample = (
        {"key": wanted} if isinstance(wanted, str) else {"first": wanted.start, "stop": wanted.stop}
    )
    saw = [
        {**pick(one, "commit loader seen total"), "skipped": dict(one.skipped)} for one in found.saw
    ]
    return {"source": found.source, **sample, "saw": saw, "affected": found.affected}


def write_who(out: Output, found: WhoSaw, shard: str | None) -> None:
    """Write who saw a sample."""
    wanted = found.wanted
    name = f"{found.source}:{wanted if isinstance(wanted, str) else wanted.start}"
    if shard is not None and not isinstance(wanted, str):
        name = f"{shard} ({found.source}:{wanted.start}-{wanted.stop - 1})"
    for one in found.saw:
        out.line(f"{one.commit[:_SHORT]} {_saw_text(one)}")
    if not found.affected:
        out.line(f"no commit saw {printable(name)}")
        return
    newest, oldest = found.affected[0][:_SHORT], found.affected[-1][:_SHORT]
    out.line(
        f"{count_text(len(found.affected), 'commit')} learned from {printable(name)}: {oldest} to {newest}"
    )


def _saw_text(one: SawSample) -> str:
    if one.seen is None:
        return f"may have seen it: {printable(one.loader)} does not list what it saw"
    texts = (
        [f"saw {count_text(one.seen, 'sample')} of it, {one.total:,} in all"] if one.seen else []
    )
    texts += [
        f"skipped {count_text(n, 'sample')} ({printable(why)})" for why, n in one.skipped.items()
    ]
    return "; ".join(texts)
