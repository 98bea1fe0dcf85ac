"""Rules of advice: what they may say, and for which ranks they hold. Their language is in ``rules.toml``.

Nothing in a rule is run: a condition is the name of a fact, one of ten tests, and a value.

The facts:

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
import re
import resource
import socket
import tomllib
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import torch

from mvc_hooks.environment import flatten_record, list_interfaces, read_environment, read_rdma
from mvc_hooks.ranks.group import spell_ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from mvc_hooks.environment import Interface

    Facts = Mapping[str, object]

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


Test = Literal[
    "set", "unset", "is", "is-not", "above", "below", "empty", "includes", "only", "differs"
]
_Text = Annotated[str, msgspec.Meta(min_length=1)]
_PLACE = re.compile(r"\{([a-zA-Z_.]+)\}")
_MOST_VALUES = 4


class FactCondition(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a fact has to be."""

    fact: _Text
    test: Test
    value: str | int | float | list[str] | None = None


class RankRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rule as it is written down."""

    id: _Text
    level: Literal["error", "advice"]
    when: Annotated[list[FactCondition], msgspec.Meta(min_length=1)]
    text: _Text
    hint: _Text
    source: _Text
    url: Annotated[str, msgspec.Meta(pattern="^https://")]


class _Rules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rule: list[RankRule]


@dataclass(frozen=True, slots=True)
class RankAdvice:
    """A rule that holds, with what it says of these ranks; ``where`` names them."""

    rule: str
    level: str
    text: str
    hint: str
    source: str
    url: str
    ranks: tuple[int, ...]
    where: str


def load_rules() -> list[RankRule]:
    """Return all rules of the package."""
    text = (files("mvc_lab.doctor") / "rules.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), _Rules).rule


def judge(rules: Sequence[RankRule], ranks: Sequence[Facts]) -> list[RankAdvice]:
    """Return what the rules say of all ranks, errors first."""
    every = [advice for rule in rules for advice in _apply(rule, ranks)]
    return sorted(every, key=lambda advice: advice.level != "error")


def _apply(rule: RankRule, ranks: Sequence[Facts]) -> Iterator[RankAdvice]:
    """Apply a rule, once for each fact that its first condition stands for."""
    first, *others = rule.when
    names = [first.fact]
    if first.fact.endswith(".*"):
        prefix = first.fact[:-1]
        names = sorted({fact for facts in ranks for fact in facts if fact.startswith(prefix)})
    for name in names:
        conditions = [msgspec.structs.replace(first, fact=name), *others]
        held = [
            rank
            for rank in range(len(ranks))
            if all(_holds(condition, rank, ranks) for condition in conditions)
        ]
        if held:
            shown = ranks if first.test == "differs" else [ranks[held[0]]]
            text, hint = (_fill(text, name, shown, ranks) for text in (rule.text, rule.hint))
            yield RankAdvice(
                rule.id,
                rule.level,
                text,
                hint,
                rule.source,
                rule.url,
                tuple(held),
                spell_ranks(held),
            )


def _holds(condition: FactCondition, rank: int, ranks: Sequence[Facts]) -> bool:
    if condition.test == "differs":
        return len({repr(facts.get(condition.fact)) for facts in ranks}) > 1
    return _TESTS[condition.test](ranks[rank].get(condition.fact), condition.value)


def _has(value: object) -> bool:
    return value is not None and value not in ("", [], {})


def _is(value: object, wanted: object) -> bool:
    choices = wanted if isinstance(wanted, list) else [wanted]
    return _has(value) and str(value).casefold() in {str(choice).casefold() for choice in choices}


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _compare(value: object, wanted: object, sign: int) -> bool:
    left, right = _number(value), _number(wanted)
    return left is not None and right is not None and sign * left > sign * right


def _shares(value: object, wanted: object) -> tuple[set[object], set[object]]:
    has = set(value) if isinstance(value, list) else set()
    named = set(wanted) if isinstance(wanted, list) else set()
    return has & named, has - named


_TESTS: Mapping[str, Callable[[object, object], bool]] = {
    "set": lambda value, _: _has(value),
    "unset": lambda value, _: not _has(value),
    "is": _is,
    "is-not": lambda value, wanted: _has(value) and not _is(value, wanted),
    "above": lambda value, wanted: _compare(value, wanted, 1),
    "below": lambda value, wanted: _compare(value, wanted, -1),
    "empty": lambda value, _: value == [],
    "includes": lambda value, wanted: bool(_shares(value, wanted)[0]),
    "only": lambda value, wanted: _has(value) and not _shares(value, wanted)[1],
}


def _fill(text: str, name: str, shown: Sequence[Facts], ranks: Sequence[Facts]) -> str:
    """Put facts into a text; values that differ are followed by the ranks that have them."""

    def put(match: re.Match[str]) -> str:
        if match[1] == "fact":
            return name.rpartition(".")[2]
        if match[1] != "value":
            return _show(shown[0].get(match[1]))
        return _group(name, ranks) if len(shown) > 1 else _show(shown[0].get(name))

    return _PLACE.sub(put, text)


def _group(name: str, ranks: Sequence[Facts]) -> str:
    groups: dict[str, list[int]] = {}
    for rank, facts in enumerate(ranks):
        groups.setdefault(_show(facts.get(name)), []).append(rank)
    parts = [f"{value} ({spell_ranks(held)})" for value, held in groups.items()]
    more = [f"{len(parts) - _MOST_VALUES} others"] if len(parts) > _MOST_VALUES else []
    return ", ".join([*parts[:_MOST_VALUES], *more])


def _show(value: object) -> str:
    if value is None:
        return "not set"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
