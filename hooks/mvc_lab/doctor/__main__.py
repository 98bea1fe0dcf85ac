"""One rank of ``mvc doctor --distributed``: ``python -m mvc_lab.doctor [--meet FILE --rank K --size N]``.

Which rank it is, torchrun, SLURM or the options say. Rank 0 writes one JSON object to standard output: what was found,
or ``{"error": ...}``; the others write nothing.

Bandwidth is that of the bus, as nccl-tests has it: an all_reduce of S bytes among n ranks has each link carry
2 (n - 1) / n S bytes, however it is done well, so figures of different n can be compared with the link's speed
(NVIDIA, nccl-tests, doc/PERFORMANCE.md).
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import re
import statistics
import sys
import time
from contextlib import redirect_stdout
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

from mvc import MvcError, StorageError, UsageError
from mvc_hooks.ranks.group import Ranks, spell_ranks
from mvc_hooks.ranks.syncing import count_bus_bytes, time_sums
from mvc_lab.doctor.rules import add_job, collect_facts, judge, load_rules

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PATIENCE = dt.timedelta(seconds=90)
_SET = "torchrun and srun set RANK and WORLD_SIZE; alone, neither is set"
_PORTS_FROM, _PORTS = 15000, 5000
_SMALL_BYTES, _SMALL_TIMES = 4, 60
_LARGE_BYTES, _LARGE_TIMES = 16 * 2**20, 6
_WARM_UP = 5
_CLOCK_ROUNDS = 8
_FIRST_NODE = re.compile(r"([^\[,]+)(?:\[(\w+))?")


def main(arguments: Sequence[str]) -> int:
    """Find out, and tell; the exit code is that of an error, 0 otherwise."""
    parser = argparse.ArgumentParser(prog="python -m mvc_lab.doctor")
    parser.add_argument("--meet")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--size", type=int, default=1)
    chosen = parser.parse_args(arguments)
    own = sys.stdout
    with redirect_stdout(sys.stderr):
        try:
            report = examine(chosen.meet, chosen.rank, chosen.size)
        except (MvcError, RuntimeError, ValueError) as error:
            failure = error
            if not isinstance(failure, MvcError):  # of torch, when ranks cannot meet
                failure = StorageError(
                    f"the ranks cannot meet: {str(error).splitlines()[0][:200]}",
                    hint="all must start within a minute and a half, and reach MASTER_ADDR:MASTER_PORT",
                )
            fields = {"kind": failure.kind, "message": failure.message, "hint": failure.hint}
            print(json.dumps({"error": fields}), file=own)
            return failure.exit_code
    if report is not None:
        print(json.dumps(report), file=own)
    return 0


def examine(meet: str | None, rank: int, size: int) -> dict[str, Any] | None:
    """Meet the other ranks, if there are any, and return what was found; None on all ranks but 0."""
    find_slurm(os.environ)
    if meet is None:
        rank, size = _read_count("RANK", 0), _read_count("WORLD_SIZE", 1)
        if rank >= size:
            raise UsageError(f"RANK={rank} is not below WORLD_SIZE={size}", hint=_SET)
    place, link = _choose_device(), None
    facts = collect_facts()
    if size > 1:
        distributed.init_process_group(
            None if place.type == "cuda" else "gloo",
            init_method="env://" if meet is None else f"file://{meet}",
            rank=rank,
            world_size=size,
            timeout=_PATIENCE,
        )
    ranks = Ranks()
    try:
        if size > 1:
            facts["clock.apart_s"] = measure_clock(ranks)
            facts["world.size"], facts["world.rank"] = size, rank
            link = {"backend": distributed.get_backend(), **measure_link(size, place)}
        every = ranks.exchange(facts)
    finally:
        if size > 1:
            distributed.destroy_process_group()
    if rank:
        return None
    add_job(every)
    return {
        "ranks": size,
        "machines": _list_machines(every),
        "link": link,
        "advice": [asdict(advice) for advice in judge(load_rules(), every)],
    }


def find_slurm(environ: dict[str, str] | os._Environ[str]) -> None:
    """Set what torchrun would set for a rank, in a step of SLURM with several tasks.

    Variables that are already set keep their values.
    """
    size = environ.get("SLURM_STEP_NUM_TASKS", "1")
    if "RANK" in environ or not size.isdecimal() or int(size) < 2:  # noqa: PLR2004  one is alone
        return
    first = _FIRST_NODE.match(environ.get("SLURM_STEP_NODELIST", "localhost"))
    host = "".join(part or "" for part in first.groups()) if first else "localhost"
    digits = re.sub(r"\D", "", environ.get("SLURM_JOB_ID", "0")) or "0"
    environ.setdefault("MASTER_ADDR", host)
    environ.setdefault("MASTER_PORT", str(_PORTS_FROM + int(digits) % _PORTS))
    environ["RANK"], environ["WORLD_SIZE"] = environ.get("SLURM_PROCID", "0"), size
    environ.setdefault("LOCAL_RANK", environ.get("SLURM_LOCALID", "0"))


def _read_count(name: str, default: int) -> int:
    text = os.environ.get(name, str(default))
    if not text.isdecimal():
        raise UsageError(f"{name}={text!r} is not a number", hint=_SET)
    return int(text)


def _choose_device() -> torch.device:
    """Return the GPU of this rank, if each rank of the machine has one."""
    local = _read_count("LOCAL_RANK", 0)
    here = _read_count("LOCAL_WORLD_SIZE", local + 1)
    if torch.cuda.device_count() >= here > local:
        torch.cuda.set_device(local)
        torch.cuda.init()  # type: ignore[no-untyped-call]  # so that the record asks it
        return torch.device("cuda", local)
    return torch.device("cpu")


def measure_link(size: int, device: torch.device) -> dict[str, object]:
    """Return latency and bandwidth of the process group; every rank must call it."""
    small = time_sums(_SMALL_BYTES, _SMALL_TIMES, device, warm_up=_WARM_UP)
    large_s = statistics.median(time_sums(_LARGE_BYTES, _LARGE_TIMES, device, warm_up=_WARM_UP))
    return {
        "device": device.type,
        "small_bytes": _SMALL_BYTES,
        "latency_s": statistics.median(small),
        "latency_p99_s": statistics.quantiles(small, n=100)[98],
        "large_bytes": _LARGE_BYTES,
        "large_s": large_s,
        "bus_bytes_per_s": count_bus_bytes(_LARGE_BYTES, size) / large_s,
    }


def measure_clock(ranks: Ranks) -> float:
    """Return how far this rank's clock is from rank 0's, in seconds; every rank must call it.

    All read their clocks as they leave a meeting, at best at nearly the same time: so the least of some
    rounds counts.
    """
    apart: list[float] = []
    for _ in range(_CLOCK_ROUNDS):
        ranks.exchange(None)
        times = ranks.exchange(time.time())
        apart.append(abs(times[ranks.rank] - times[0]))
    return min(apart)


def _list_machines(ranks: Sequence[Mapping[str, object]]) -> list[dict[str, object]]:
    """Return what there is on each machine, by the facts of its first rank."""
    machines: dict[object, dict[str, Any]] = {}
    for rank, facts in enumerate(ranks):
        machine = machines.setdefault(
            facts["host.name"],
            {
                "host": facts["host.name"],
                "ranks": [],
                "gpus": facts["devices.count"],
                "interface": facts.get("network.name"),
                "mtu": facts.get("network.mtu"),
                "speed_mbps": facts.get("network.speed_mbps"),
                "rdma_ports": facts["rdma.active"],
            },
        )
        machine["ranks"].append(rank)
    return [{**machine, "where": spell_ranks(machine["ranks"])} for machine in machines.values()]


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.exit(code)
