"""Every rule of doctor --distributed: it can fire, each of its conditions counts, and it is silent on a healthy job."""

from __future__ import annotations

import re

import msgspec
import pytest

from mvc_hooks.environment import Interface
from mvc_hooks.ranks.group import spell_ranks
from mvc_lab.doctor.rules import (
    RankRule,
    add_job,
    collect_facts,
    describe_interfaces,
    describe_nccl,
    judge,
    load_rules,
    matches,
)
from support.cases import for_each

pytestmark = pytest.mark.torch

RULES = load_rules()
PLACES = re.compile(r"\{([\w.]+)\}")
GIB = 2**30


def healthy(rank, ranks=4):
    """Return the facts of a rank of a healthy job on two machines with GPUs and InfiniBand."""
    return {
        "versions.torch": "2.13.0", "versions.nccl": "2.28.9", "versions.mvc": "1.0",
        "versions.driver": "550.54", "variables.OMP_NUM_THREADS": "8",
        "variables.NCCL_DEBUG": "WARN", "nccl.NCCL_DEBUG": "WARN", "job.ranks": ranks,
        "job.machines": 2, "job.ranks_here": 2, "job.piece_bytes": 6553600, "job.ring_steps": 6,
        "host.name": f"node{rank // 2}", "host.addresses": ["network"], "devices.count": 8,
        "interfaces.all": ["ens1", "ib0", "lo"], "network.name": "ens1", "network.mtu": 9000,
        "network.speed_mbps": 100000, "rdma.devices": 4, "rdma.active": 4,
        "gpudirect.ways": ["nvidia_peermem"], "limits.memlock": "unlimited",
        "shm.bytes": 64 * GIB, "shm.size": "65,536 MiB", "shm.bytes_per_rank": 32 * GIB,
        "clock.apart_s": 0.001,
    }  # fmt: skip


LAST = "of the last rank only"
CASES = {
    "mixed-versions": {LAST: {"versions.nccl": "2.27.3"}},
    "mixed-nccl-settings": {LAST: {"nccl.NCCL_DEBUG": "INFO"}},
    "mixed-device-counts": {LAST: {"devices.count": 4}},
    "mixed-mtu": {LAST: {"network.mtu": 1500}},
    "mixed-speed": {LAST: {"network.speed_mbps": 10000}},
    "clocks-apart": {LAST: {"clock.apart_s": 20.5}},
    "nccl-interface-missing": {"interfaces.nccl": []},
    "gloo-interface-missing": {"interfaces.gloo_missing": ["eth9"]},
    "nccl-interface-local": {"interfaces.nccl_kinds": ["device", "loopback"]},
    "gloo-interface-local": {"interfaces.gloo_kinds": ["bridge"]},
    "hostname-loopback": {"host.addresses": ["loopback"]},
    "rdma-disabled": {"variables.NCCL_IB_DISABLE": "1"},
    "rdma-down": {"rdma.active": 0},
    "gpudirect-missing": {"gpudirect.ways": []},
    "gpudirect-off": {"variables.NCCL_NET_GDR_LEVEL": "loc"},
    "memlock": {"limits.memlock": "8 MiB"},
    "shared-memory": {"shm.bytes_per_rank": 32 * 2**20},
    "p2p-disabled": {"variables.NCCL_P2P_DISABLE": "1"},
    "shm-disabled": {"variables.NCCL_SHM_DISABLE": "1"},
    "ring-of-many": {"nccl.algorithms": ["ring"], "job.piece_bytes": 100_000},
    "tree-of-few": {"nccl.algorithms": ["tree"], "job.machines": 1},
    "ll128-forced": {"nccl.protocols": ["ll128", "simple"]},
    "nccl-trace": {"variables.NCCL_DEBUG": "TRACE"},
    "distributed-debug": {"variables.TORCH_DISTRIBUTED_DEBUG": "DETAIL"},
    "launch-blocking": {"variables.CUDA_LAUNCH_BLOCKING": "1"},
    "threads": {"variables.OMP_NUM_THREADS": None},
}
OFF = {
    "devices.count": 0, "rdma.active": 0, "rdma.devices": 0, "job.machines": 1,
    "job.ranks_here": 1, "job.ranks": 1, "variables.GLOO_SOCKET_IFNAME": "ib0",
}  # fmt: skip
"""Values of conditions that a healthy job already meets, with which a rule has to be silent."""


def job(changes=(), ranks=4):
    facts = [healthy(rank, ranks) for rank in range(ranks)]
    for name, value in dict(changes).items():
        if name == LAST:
            facts[-1].update(value)
        else:
            for one in facts:
                one[name] = value
    return facts


def fired(facts):
    return {one.rule for one in judge(RULES, facts)}


def test_a_healthy_job_hears_nothing():
    assert judge(RULES, job()) == []
    assert judge(RULES, [healthy(0, 1)]) == []


def test_every_rule_has_a_case_and_a_name_of_its_own():
    names = [rule.id for rule in RULES]
    assert len(set(names)) == len(names)
    assert set(names) == set(CASES)


@for_each("rule", RULES)
def test_a_rule_fires_and_says_why(rule):
    names = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_ALGO", "NCCL_PROTO")
    named = {f"variables.{name}": "x" for name in names} if "IFNAME" in rule.text else {}
    facts = job(
        {**named, "variables.NCCL_ALGO": "x", "variables.NCCL_PROTO": "x", **CASES[rule.id]}
    )
    (advice,) = [one for one in judge(RULES, facts) if one.rule == rule.id]
    assert not {"{", "}"} & set(advice.text + advice.hint)
    assert "=not set" not in advice.text
    assert not advice.text.endswith(".")
    assert len(advice.source) > 8


def test_the_facts_that_rules_name_are_those_that_ranks_tell(monkeypatch):
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_ALGO", "NCCL_PROTO"):
        monkeypatch.setenv(name, "lo")
    facts = collect_facts()
    add_job([facts])
    known = {*facts, "clock.apart_s", "network.mtu", "network.speed_mbps", "shm.bytes_per_rank"}
    used = {condition.fact for rule in RULES for condition in rule.when}
    used |= {name for rule in RULES for name in PLACES.findall(rule.text + rule.hint)}
    used -= {"fact", "value"}
    assert {name for name in used if not name.startswith("variables.")} - known == {
        "versions.*", "nccl.*",
    }  # fmt: skip


@for_each("rule", RULES)
def test_each_condition_of_a_rule_counts(rule):
    case = CASES[rule.id]
    for condition in rule.when:
        if condition.test == "differs" or LAST in case:
            assert rule.id not in fired(job({k: v for k, v in case.items() if k != LAST}))
        elif condition.fact in case:
            less = {name: value for name, value in case.items() if name != condition.fact}
            assert rule.id not in fired(job(less)), condition
        else:
            assert rule.id not in fired(job({**case, condition.fact: OFF[condition.fact]})), (
                condition
            )


@pytest.mark.parametrize(
    "change",
    [
        {"id": ""}, {"level": "fatal"}, {"when": []}, {"when": [["a"]]}, {"when": [["a", "eval"]]},
        {"when": [["a", "is", {}]]}, {"text": ""}, {"source": ""}, {"url": "ftp://x"}, {"more": 1},
    ],
)  # fmt: skip
def test_a_rule_that_is_not_one_is_refused(change):
    rule = msgspec.to_builtins(RULES[0])
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({**rule, **change}, RankRule)


def test_what_differs_is_told_with_the_ranks_that_have_it():
    facts = job(ranks=6)
    for rank, value in ((2, "2.27.3"), (4, "2.27.3"), (5, None)):
        facts[rank]["versions.nccl"] = value
    (advice,) = judge(RULES, facts)
    assert advice.level == "error"
    assert advice.text == (
        "the ranks have different versions of nccl: "
        "2.28.9 (ranks 0, 1 and 3), 2.27.3 (ranks 2 and 4), not set (rank 5)"
    )
    for rank in range(6):
        facts[rank]["versions.nccl"] = str(rank)
    (advice,) = judge(RULES, facts)
    assert advice.text.endswith("3 (rank 3), 2 others")


def test_a_rule_holds_for_the_ranks_that_it_holds_for():
    facts = job(ranks=4)
    facts[1]["variables.NCCL_DEBUG"] = facts[2]["variables.NCCL_DEBUG"] = "Trace"
    (advice,) = judge(RULES, facts)
    assert (advice.rule, advice.ranks, advice.where) == ("nccl-trace", (1, 2), "ranks 1 and 2")


def test_errors_come_first():
    found = judge(RULES, job({**CASES["threads"], **CASES["memlock"]}))
    assert [one.level for one in found] == ["error", "advice"]


@pytest.mark.parametrize(
    ("ranks", "text"),
    [([3], "rank 3"), ([0, 1, 2, 5], "ranks 0 to 2 and 5"), ([0, 2], "ranks 0 and 2")],
)
def test_ranks_are_named_briefly(ranks, text):
    assert spell_ranks(ranks) == text


@pytest.mark.parametrize(
    ("wanted", "chosen"),
    [
        ("eth", {"eth0", "eth10"}), ("=eth0", {"eth0"}), ("eth1,ib", {"eth10", "ib0"}),
        ("=eth0,ib0", {"eth0", "ib0"}), ("^eth", {"ib0", "lo"}), ("^=eth0", {"eth10", "ib0", "lo"}),
        ("eth9", set()), ("", set()),
    ],
)  # fmt: skip
def test_interfaces_are_chosen_as_nccl_does(wanted, chosen):
    assert {one for one in ("eth0", "eth10", "ib0", "lo") if matches(one, wanted)} == chosen


INTERFACES = [
    Interface("docker0", "bridge", None, 1500, None),
    Interface("eth0", "device", 25000, 9000, "mlx5_core"),
    Interface("lo", "loopback", None, 65536, None),
]


def test_facts_about_interfaces():
    facts = describe_interfaces(INTERFACES, {"NCCL_SOCKET_IFNAME": "lo,eth"})
    assert facts["interfaces.nccl"] == ["eth0", "lo"]
    assert facts["interfaces.nccl_kinds"] == ["device", "loopback"]
    assert (facts["network.name"], facts["network.mtu"]) == ("eth0", 9000)
    assert describe_interfaces(INTERFACES, {"NCCL_SOCKET_IFNAME": "ib"})["interfaces.nccl"] == []
    excluding = describe_interfaces(INTERFACES, {"NCCL_SOCKET_IFNAME": "^docker"})
    assert excluding["interfaces.nccl_kinds"] == []
    gloo = describe_interfaces(INTERFACES, {"GLOO_SOCKET_IFNAME": "docker0,eth7"})
    assert gloo["interfaces.gloo_missing"] == ["eth7"]
    assert gloo["interfaces.gloo_kinds"] == ["bridge"]
    assert "interfaces.nccl" not in gloo


def test_facts_about_nccl():
    facts = describe_nccl({
        "NCCL_ALGO": "Ring", "NCCL_PROTO": "^LL128", "NCCL_DEBUG_FILE": "/tmp/%h", "OMP_X": "1",
    })  # fmt: skip
    assert facts == {
        "nccl.NCCL_ALGO": "Ring",
        "nccl.NCCL_PROTO": "^LL128",
        "nccl.algorithms": ["ring"],
    }


def test_facts_about_the_job():
    facts = [{"host.name": name, "shm.bytes": 100} for name in ("a", "a", "b")]
    add_job(facts)
    assert [one["job.ranks_here"] for one in facts] == [2, 2, 1]
    assert [one["shm.bytes_per_rank"] for one in facts] == [50, 50, 100]
    assert {one["job.machines"] for one in facts} == {2}
    assert facts[0]["job.ring_steps"] == 4
