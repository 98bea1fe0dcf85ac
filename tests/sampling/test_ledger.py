"""Entries of a ledger: what is written comes back, and whatever else comes is refused."""

import contextlib
import random

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from mvc import FormatError
from mvc.sampling import (
    DrawnEntry,
    IdList,
    PlanEntry,
    SampleDigest,
    SamplePlan,
    Skips,
    Source,
    draw_batch,
    parse_ledger,
)
from mvc.sampling.ids import MAX_LISTED, decode_ids, encode_ids
from mvc.sampling.stretch import TAIL, find_stretch
from support.bounds import bounded
from support.cases import for_each


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=50))
def test_ids_come_back(ids):
    ids = np.array(ids, np.int64)
    assert decode_ids(encode_ids(ids), 99).tolist() == ids.tolist()


def test_ids_are_small():
    assert len(encode_ids(np.arange(100_000))) < 64
    order = np.random.default_rng(0).permutation(1_000_000)[:65_536]
    assert len(encode_ids(order)) < 2.75 * 65_536
    assert decode_ids(encode_ids(("a", "é\ud800")), 2) == ("a", "é\ud800")


def test_a_list_keeps_the_last_ids():
    found = IdList()
    for first in range(0, 3 * MAX_LISTED, MAX_LISTED // 2):
        found = found.join(IdList.of("a", np.arange(first, first + MAX_LISTED // 2)))
    assert found.digest == SampleDigest.of("a", range(3 * MAX_LISTED))
    assert found.after(3 * MAX_LISTED - 2).tolist() == [3 * MAX_LISTED - 2, 3 * MAX_LISTED - 1]
    assert found.after(2 * MAX_LISTED - 1) is None


def test_many_reasons_become_one():
    entry = DrawnEntry("index")
    for number in range(100):
        one = IdList.of("a", np.array([number]))
        entry = entry.join(DrawnEntry("index", skipped={f"reason {number}": one}))
    assert len(entry.skipped) == 64
    assert sum(one.digest.count for one in entry.skipped.values()) == 100
    parse_ledger({"a": entry.to_json()})


def run(seed):
    """Return entries of a random run with a plan, and the samples between each two of them."""
    draw = random.Random(seed)
    is_mixed = draw.random() < 0.3
    weights = [draw.random() + 0.1 if is_mixed else None for _ in range(draw.randint(1, 3))]
    sources = tuple(Source(f"s{n}", draw.randint(3, 40), one) for n, one in enumerate(weights))
    tail = draw.choice(["short", "drop", "wrap"])
    plan = SamplePlan(sources, seed=seed, batch=draw.randint(1, 7), tail=tail, shuffle=seed % 5 > 0)
    skips, cursor, entry = Skips(), 0, PlanEntry(plan)
    entries, between = [entry], [[]]
    for _ in range(draw.randint(5, 40)):
        if draw.random() < 0.1:
            start = cursor + draw.randint(0, 5)
            skips = skips.add_window(start, start + draw.randint(1, 9), reason=f"w{start % 3}")
        elif draw.random() < 0.1:
            first = draw.randrange(sources[0].size)
            skips = skips.add_samples("s0", first, reason="bad") if draw.random() < 0.8 else Skips()
        batch = draw_batch(plan, skips, cursor)
        digest = SampleDigest()
        if batch is None:
            cursor = (cursor // plan.epoch_length + 1) * plan.epoch_length
        else:
            cursor = batch.stop
            located = zip(batch.located.source.tolist(), batch.located.index.tolist(), strict=True)
            for number, index in located:
                between[-1].append((sources[number].name, index))
                digest += SampleDigest.of(sources[number].name, [index])
        entry = entry.move(cursor, digest, skips)
        if draw.random() < 0.3:
            entry = parse_ledger({"x": entry.to_json()})["x"]
            entries.append(entry)
            between.append([])
    return entries, between


@for_each("seed", range(bounded(8, 100)))
def test_the_samples_of_a_plan_are_those_that_were_fetched(seed):
    entries, between = run(seed)
    for then, now, samples in zip(entries, entries[1:], between, strict=False):
        stretch = find_stretch("x", then, now)
        found = [
            (samples.source, int(i))
            for samples in stretch.samples()
            if samples.reason is None
            for i in samples.ids
        ]
        assert sorted(found) == sorted(samples)
        assert stretch.prove()
    whole = find_stretch("x", None, entries[-1])
    assert whole.prove()
    everything = [one for part in between[: len(entries) - 1] for one in part]
    for source, index in set(everything):
        assert whole.count(source, range(index, index + 1))[0] == everything.count((source, index))


def test_a_sample_among_a_billion_is_found_by_the_inverse():
    plan = SamplePlan((Source("web", 10**9),), seed=1, batch=1000)
    skips = Skips().add_samples("web", 7, 9, reason="takedown")
    entry = PlanEntry(plan).move(25 * 10**8, SampleDigest(), skips)
    stretch = find_stretch("x", None, entry)
    seen, skipped = stretch.count("web", range(8, 9))
    assert not seen
    assert skipped["takedown"] in (2, 3)
    assert stretch.count("web", range(12, 13))[0] in (2, 3)


def test_the_rest_of_an_epoch_is_not_seen():
    plan = SamplePlan((Source("a", 10),), seed=1, batch=4, tail="drop")
    stretch = find_stretch("x", None, PlanEntry(plan).move(10, SampleDigest(8), Skips()))
    reasons = [samples.reason for samples in stretch.samples()]
    assert reasons == [None, TAIL]


def test_another_plan_is_another_stretch():
    one, other = (PlanEntry(SamplePlan((Source("a", 10),), seed=seed), 0, 5) for seed in (1, 2))
    assert find_stretch("x", one, other).before is None
    assert find_stretch("x", one, one).before is one


# Hostile input.

ENTRY = (
    PlanEntry(SamplePlan((Source("a", 10),)))
    .move(
        5,
        SampleDigest.of("a", range(5)),
        Skips().add_window(7, 9, reason="r").add_samples("a", 3, reason="s"),
    )
    .to_json()
)
DRAWN = DrawnEntry(
    "index", IdList.of("a", np.arange(9)), {"r": IdList.of("a", np.arange(2))}
).to_json()
VALUES = [
    None,
    True,
    -1,
    2**63,
    2**70,
    0.5,
    "",
    "x" * 5000,
    [],
    {},
    b"",
    b"\x09abc",
    b"\x01" + b"x" * 20,
    [[]],
    float("nan"),
    np.array([1, 2]),
    (1 << 62) - 1,
]


@pytest.mark.parametrize("entry", [ENTRY, DRAWN], ids=["plan", "drawn"])
def test_changed_entries_are_refused_or_entries(entry):
    for name in entry:
        for value in VALUES:
            try:
                found = parse_ledger({"a": {**entry, name: value}})["a"]
            except FormatError:
                continue
            parse_ledger({"a": found.to_json()})
            if found.digest.count < 1000:
                find_stretch("a", None, found).prove()


@given(st.binary(max_size=60))
def test_any_bytes_are_refused_or_ids(data):
    with contextlib.suppress(FormatError):
        assert len(decode_ids(data, 100)) <= 100


def test_little_that_claims_to_be_much_is_refused():
    bomb = b"\x08" + zstandard.compress(bytes(1 << 26))
    for data in (bomb, b"\x00" + zstandard.compress(b"[" * (1 << 25))):
        with pytest.raises(FormatError):
            decode_ids(data, 10**9)
    with pytest.raises(FormatError):
        decode_ids(b"\x00" + zstandard.compress(b"[" * 100_000), 10**9)


@pytest.mark.parametrize(
    "value", [None, [], "x", {"a": None}, {"": DRAWN}, {1: DRAWN}, {"a": {"kind": "odd"}}]
)
def test_what_is_no_ledger_is_refused(value):
    with pytest.raises(FormatError):
        parse_ledger(value)
