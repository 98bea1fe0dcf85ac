"""Which samples commits saw, as text and as JSON."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mvc.cli.output import pick, printable
from mvc.cli.render.text import count_text, some_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from mvc.cli.output import Output
    from mvc.operations.data_seen import DataSeen, LoaderSeen, SamplesSeen
    from mvc.operations.data_who import SawSample, WhoSaw

_SHOWN = 5
_SHORT = 10
_DIGITS = 16


def seen_fields(found: DataSeen, *, with_list: bool) -> dict[str, object]:
    """Return what a commit saw for ``--json``; all samples only if they are wanted."""
    loaders = [_loader_fields(loader, with_list=with_list) for loader in found.loaders]
    return {"commit": found.commit, "since": found.since, "loaders": loaders}


def _loader_fields(one: LoaderSeen, *, with_list: bool) -> dict[str, object]:
    times = None if one.times is None else {str(often): n for often, n in one.times.items()}
    return {
        "name": one.name,
        "samples": one.digest.count,
        "digest": one.digest.hex,
        "total": one.total.count,
        "total_digest": one.total.hex,
        "positions": one.positions,
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
