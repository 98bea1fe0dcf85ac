"""Predictions against what runs of 2, 4 and 8 processes take on this machine."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.scale.cluster import Cluster, draw_speed, simulate_commit
from benchmarks.scale.parts import launch, run_child
from benchmarks.sweep import fresh_folder
from mvc.scaling.allreduce import predict_all
from mvc.scaling.fabric import Fabric, Link

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random

    from benchmarks.children import Runner
    from benchmarks.scale.parts import Parts

SMALL, MIDDLE, LARGE = 1 << 12, 1 << 20, 1 << 23


def compare_gloo(runner: Runner, size: int, rounds: int) -> dict[str, float]:
    """Fit α and β of a ring to a small and a large all_reduce, and predict one in between.

    gloo reduces around a ring; all of it is in memory here, and the processes share the cores, so α
    and β are those of this number of processes.
    """
    words = map(str, (rounds, SMALL, MIDDLE, LARGE))
    found = launch(runner, size, "benchmarks.scale.gloo", *words)
    times = {int(one): value for one, value in found.items()}
    messages, share = 2 * (size - 1), 2 * (size - 1) / size
    per_byte_s = max((times[LARGE] - times[SMALL]) / (share * (LARGE - SMALL)), 1e-15)
    latency_s = max(times[SMALL] / messages - per_byte_s * SMALL / size, 0.0)
    fabric = Fabric(size, Link(latency_s, 1 / per_byte_s))
    (predicted,) = predict_all(fabric, MIDDLE, ("ring",))
    return {
        "latency_s": latency_s,
        "bandwidth_bytes_s": 1 / per_byte_s,
        "predicted_s": predicted.time_s,
        "measured_s": times[MIDDLE],
    }


def compare_commits(
    runner: Runner, folder: Path, parts: Parts, draw: Random, size: int, state_mb: int, rounds: int
) -> dict[str, dict[str, float]]:
    """Return stall, time until durable and time of a load, each as predicted and as measured.

    All processes share the cores and the disk of this machine, which is the store. Of what is
    measured the fastest round counts: other work on the machine only adds.
    """
    place = fresh_folder(folder)
    child = partial(run_child, runner, size, folder=place, state_mb=state_mb, rounds=rounds)
    saved, loaded = child("save"), child("load")
    cluster = Cluster(
        size,
        saved["state_bytes"] * size,
        cores_per_rank=min(parts.cores / size, 1.0),
        store_bytes_s=1 / median(parts.write),
    )
    commits = [simulate_commit(cluster, parts, draw) for _ in range(21)]
    load_s = predict_load_s(replace(cluster, store_bytes_s=1 / median(parts.read)), parts, draw)
    fresh_folder(place)
    return {
        "stall": _pair(median(one.blocked_s for one in commits), saved["stall"]),
        "durable": _pair(median(one.durable_s for one in commits), saved["durable"]),
        "load": _pair(load_s, loaded["load"]),
    }


def predict_load_s(cluster: Cluster, parts: Parts, draw: Random) -> float:
    """Return the seconds until a state is back that one machine reads, decodes and hashes."""
    stored = cluster.state_bytes * sum(parts.stored) / len(parts.stored)
    worked_s = cluster.held_bytes * draw_speed(draw, parts.decode, parts.hash, parts.copy)
    opened_s = median(parts.open) * cluster.crowd
    return opened_s + max(worked_s / cluster.cores_per_rank, stored / cluster.store_bytes_s)


def _pair(predicted_s: float, measured: list[float]) -> dict[str, float]:
    return {"predicted_s": predicted_s, "measured_s": min(measured)}
