"""The facts of one rank, flat: name → value. Beside those below, all of the environment record is in them.

job.*          ranks, machines, ranks_here, and what a ring makes of a bucket of 25 MiB, DDP's default
host.*         name; addresses: which kinds its name stands for (loopback, network)
devices.*      count
interfaces.*   all; what NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME choose, and of which kinds
network.*      name, mtu and speed_mbps of the interface that is used
rdma.*         devices; active: ports that are up
gpudirect.*    ways: how RDMA reaches GPUs
nccl.*         NCCL's variables that must be the same on all ranks; algorithms, protocols
limits.*, shm.*, clock.*
"""

from __future__ import annotations

import os
import resource
import socket
from typing import TYPE_CHECKING, Any

import torch

from mvc_hooks.environment import flatten_record, read_environment
from mvc_hooks.fabric import list_interfaces, read_rdma

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mvc_hooks.fabric import Interface

_BUCKET_BYTES = 25 * 2**20
_OWN = (
    "NCCL_DEBUG_FILE",
    "NCCL_TOPO_DUMP_FILE",
    "NCCL_GRAPH_DUMP_FILE",
    "NCCL_HOSTID",
    "NCCL_CONF_FILE",
)
"""Variables of NCCL that may be different on each rank."""
_ROUTE_COLUMNS = 8


def collect_facts() -> dict[str, object]:
    """Return the facts of this process; those that need all ranks are added by ``add_job``."""
    record = read_environment()
    variables: dict[str, str] = record["variables"]
    interfaces = list_interfaces()
    rdma = read_rdma()
    ports = [port for device in rdma.values() for port in device.items() if port[0] != "firmware"]
    memlock, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    facts: dict[str, object] = dict(flatten_record(record))
    return facts | {
        "host.name": socket.gethostname(),
        "host.addresses": _find_addresses(),
        "devices.count": torch.cuda.device_count(),
        "rdma.devices": len(rdma),
        "rdma.active": sum("ACTIVE" in str(state) for _, state in ports),
        "gpudirect.ways": _find_ways(record["fabric"]["modules"], variables),
        "limits.memlock": "unlimited" if memlock == resource.RLIM_INFINITY else _size(memlock),
        **_read_shared_memory(),
        **describe_interfaces(interfaces, variables),
        **describe_nccl(variables),
    }


def add_job(ranks: Sequence[dict[str, object]]) -> None:
    """Add to the facts of each rank what only all of them together say."""
    hosts = [facts["host.name"] for facts in ranks]
    for facts, host in zip(ranks, hosts, strict=True):
        here, size = hosts.count(host), facts.get("shm.bytes")
        facts["job.ranks"], facts["job.machines"] = len(ranks), len(set(hosts))
        facts["job.ranks_here"] = here
        facts["job.piece_bytes"] = _BUCKET_BYTES // len(ranks)
        facts["job.ring_steps"] = 2 * (len(ranks) - 1)
        if isinstance(size, int):
            facts["shm.bytes_per_rank"] = size // here


def describe_interfaces(
    interfaces: Sequence[Interface], variables: Mapping[str, str]
) -> dict[str, object]:
    """Return which interfaces the variables choose, and which one is used."""
    nccl, gloo = variables.get("NCCL_SOCKET_IFNAME"), variables.get("GLOO_SOCKET_IFNAME")
    facts: dict[str, object] = {"interfaces.all": [interface.name for interface in interfaces]}
    chosen: list[Interface] = []
    if gloo:
        wanted = [name.strip() for name in gloo.split(",") if name.strip()]
        chosen = [interface for interface in interfaces if interface.name in wanted]
        facts["interfaces.gloo_missing"] = sorted(
            set(wanted) - {interface.name for interface in chosen}
        )
        facts["interfaces.gloo_kinds"] = sorted({interface.kind for interface in chosen})
    if nccl:
        chosen = [interface for interface in interfaces if matches(interface.name, nccl)]
        facts["interfaces.nccl"] = [interface.name for interface in chosen]
        # Those that a list of exclusions leaves are not chosen: NCCL prefers others to these.
        named = [] if nccl.startswith("^") else chosen
        facts["interfaces.nccl_kinds"] = sorted({interface.kind for interface in named})
    used = next(iter(chosen), None) or _find_routed(interfaces)
    if used is not None:
        facts["network.name"], facts["network.mtu"] = used.name, used.mtu
        facts["network.speed_mbps"] = used.speed_mbps
    return facts


def matches(name: str, wanted: str) -> bool:
    """Whether NCCL_SOCKET_IFNAME chooses an interface: prefixes, ``=`` for whole names, ``^`` for all others."""
    is_excluding, wanted = wanted.startswith("^"), wanted.removeprefix("^")
    is_exact, wanted = wanted.startswith("="), wanted.removeprefix("=")
    names = [part.strip() for part in wanted.split(",") if part.strip()]
    is_named = name in names if is_exact else name.startswith(tuple(names))
    return is_named != is_excluding


def describe_nccl(variables: Mapping[str, str]) -> dict[str, object]:
    """Return the variables of NCCL that count for all ranks; forced algorithms and protocols as lists."""
    facts: dict[str, object] = {
        f"nccl.{name}": value
        for name, value in variables.items()
        if name.startswith("NCCL_") and name not in _OWN
    }
    for kind, name in (("algorithms", "NCCL_ALGO"), ("protocols", "NCCL_PROTO")):
        value = variables.get(name, "").strip().lower()
        if value and not value.startswith("^"):
            facts[f"nccl.{kind}"] = [part.strip() for part in value.split(",") if part.strip()]
    return facts


def _find_routed(interfaces: Sequence[Interface]) -> Interface | None:
    """Return the interface of the default route."""
    try:
        with open("/proc/net/route", encoding="ascii", errors="replace") as file:
            rows = [line.split() for line in file]
    except OSError:
        return None
    names = [
        row[0] for row in rows if len(row) >= _ROUTE_COLUMNS and row[1] == row[7] == "00000000"
    ]
    return next((interface for interface in interfaces if interface.name in names[:1]), None)


def _find_addresses() -> list[str]:
    """Return the kinds of addresses that this machine's name stands for."""
    try:
        infos = socket.getaddrinfo(socket.gethostname(), None)
    except OSError:
        return []
    addresses = [str(address[0]) for *_, address in infos]
    are_loopback = {text.startswith("127.") or text == "::1" for text in addresses}
    return sorted("loopback" if is_loopback else "network" for is_loopback in are_loopback)


def _find_ways(modules: Mapping[str, Any], variables: Mapping[str, str]) -> list[str]:
    """Return how RDMA devices reach the memory of GPUs: by nvidia_peermem, or by DMA-BUF of open drivers."""
    ways = [name for name in ("nvidia_peermem", "nv_peer_mem") if name in modules]
    try:
        with open("/proc/driver/nvidia/version", encoding="utf-8", errors="replace") as file:
            is_open = "Open Kernel Module" in file.read(4096)
    except OSError:
        is_open = False
    if is_open and variables.get("NCCL_DMABUF_ENABLE", "1") != "0":
        ways.append("DMA-BUF")
    return ways


def _read_shared_memory() -> dict[str, object]:
    try:
        mount = os.statvfs("/dev/shm")  # noqa: S108  what programs share memory in
    except OSError:
        return {}
    size = mount.f_blocks * mount.f_frsize
    return {"shm.bytes": size, "shm.size": _size(size)}


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:,.0f} MiB"
