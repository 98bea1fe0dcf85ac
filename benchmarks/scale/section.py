"""The section ``scale``: predictions for up to 10,240 ranks, and how good they are for 2, 4 and 8."""

from __future__ import annotations

from dataclasses import asdict
from random import Random
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.scale.cluster import (
    LOST_NODE,
    TIERS,
    Cluster,
    simulate_commit,
    simulate_recovery,
)
from benchmarks.scale.job import RATES, Job, daly_s, find_best, young_s
from benchmarks.scale.parts import measure_parts
from benchmarks.scale.real import compare_commits, compare_gloo

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from benchmarks.children import Runner
    from benchmarks.scale.parts import Parts

SIZES = (256, 512, 1024, 2048, 4096, 8192, 10_240)
STATE_BYTES = 100e9 * 12
"""100 billion parameters: fp32 weights and two moments of AdamW."""
STORES = (25e9, 50e9, 100e9, 200e9, 400e9)
_SEED = 20_241


def measure_scale(
    runner: Runner, folder: Path, *, is_quick: bool, say: Callable[[str], None]
) -> dict[str, Any]:
    """Measure the parts, simulate every size, and compare small ones with real runs.

    Args:
        runner: starts commands.
        folder: where to work.
        is_quick: two sizes of a cluster, and one of a real run.
        say: told what is going on.
    """
    say("scale, parts")
    parts = measure_parts(runner, folder / "scale", is_quick=is_quick)
    results: dict[str, Any] = {
        "state_bytes": STATE_BYTES,
        "parts": parts.as_dict(),
        "cluster": asdict(Cluster(1, STATE_BYTES)),
        "sizes": {},
        "stores": {},
        "gloo": {},
        "real": {},
    }
    for ranks in (SIZES[0], 512) if is_quick else SIZES:
        say(f"scale, {ranks:,} ranks simulated")
        results["sizes"][ranks] = simulate_size(parts, ranks, is_quick=is_quick)
    for bytes_s in STORES[:1] if is_quick else STORES:
        results["stores"][bytes_s] = simulate_store(parts, 512 if is_quick else SIZES[-1], bytes_s)
    for size in (2,) if is_quick else (2, 4, 8):
        say(f"scale, {size} processes, predicted and real")
        results["gloo"][size] = compare_gloo(runner, size, 3 if is_quick else 25)
        state_mb, rounds = (4, 1) if is_quick else (256, 3)
        results["real"][size] = compare_commits(
            runner, folder / "scale", parts, _draw(), size, state_mb, rounds
        )
    return results


def simulate_size(parts: Parts, ranks: int, *, is_quick: bool) -> dict[str, Any]:
    """Return commit, recovery by tier, and useful time at each rate of failures, of one size."""
    cluster = Cluster(ranks, STATE_BYTES)
    draw, rounds = _draw(), 2 if is_quick else 7
    commits = [simulate_commit(cluster, parts, draw) for _ in range(rounds)]
    tiers = {
        tier: [simulate_recovery(cluster, parts, tier, draw) for _ in range(rounds)]
        for tier in TIERS
    }
    totals = {tier: [sum(one.values()) for one in found] for tier, found in tiers.items()}
    blocked = [one.blocked_s for one in commits]
    durable = [one.durable_s for one in commits]
    found: dict[str, Any] = {
        "blocked_s": max(blocked),
        "durable_s": median(durable),
        "stored_bytes": commits[0].stored_bytes,
        "recovery_s": {tier: max(one) for tier, one in totals.items()},
        "stages": {tier: one[-1] for tier, one in tiers.items()},
        "rates": {},
    }
    for name, rate in RATES.items():
        job = Job(rate(ranks), blocked, durable, totals["memory"], totals[LOST_NODE])
        best_s, shares = find_best(job, _draw, 5 if is_quick else 60)
        found["rates"][name] = {
            "mttf_s": job.mttf_s,
            "young_s": young_s(median(blocked), job.mttf_s),
            "daly_s": daly_s(median(blocked), job.mttf_s),
            "best_s": best_s,
            "share": asdict(shares[best_s]),
            "useful": [[one, share.useful] for one, share in shares.items()],
        }
    return found


def simulate_store(parts: Parts, ranks: int, store_bytes_s: float) -> dict[str, float]:
    """Return what depends on the store: the commit, and a recovery that has nothing else."""
    draw = _draw()
    cluster = Cluster(ranks, STATE_BYTES, store_bytes_s=store_bytes_s)
    commits = [simulate_commit(cluster, parts, draw) for _ in range(3)]
    recovery = simulate_recovery(cluster, parts, "remote store", draw)
    return {
        "durable_s": median(one.durable_s for one in commits),
        "recovery_s": sum(recovery.values()),
    }


def _draw() -> Random:
    return Random(_SEED)  # noqa: S311  the same numbers each time are the point
