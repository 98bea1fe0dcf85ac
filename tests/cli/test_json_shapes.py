"""The shapes that docs/json.md promises, key by key, as the page writes them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from mvc import Repo
from support.feeds import tell
from support.models import write_config, write_model

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "json.md").read_text(encoding="utf-8")


def promised(heading: str, nth: int = 0) -> set[str]:
    """Return the keys that a section's nth shape names; ``key?`` need not be there."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    shapes = re.findall(r"```\n(.*?)```", section, re.DOTALL) or re.findall(
        r"`(.*?)`", section, re.DOTALL
    )
    return set(re.findall(r'"(\w+)"(?!\?)', re.sub(r'"\w+"\?', "", shapes[nth])))


def keys(value) -> set[str]:
    """Return all keys in a value; those of free mappings are not looked at."""
    if isinstance(value, list):
        return set().union(*map(keys, value)) if value else set()
    if not isinstance(value, dict):
        return set()
    free = ("metrics", "meta", "versions")
    return set(value).union(*(keys(item) for key, item in value.items() if key not in free))


LINK = {
    "ranks": 2,
    "machines": [{
        "host": "a", "ranks": [0, 1], "where": "ranks 0-1", "gpus": 8, "interface": "eth0",
        "mtu": 9000, "speed_mbps": 100000, "rdma_ports": 4,
    }],
    "link": {
        "backend": "nccl", "device": "cuda", "small_bytes": 4, "latency_s": 2e-5,
        "latency_p99_s": 5e-5, "large_bytes": 2**24, "large_s": 1e-3, "bus_bytes_per_s": 1e10,
    },
    "advice": [],
}  # fmt: skip


@pytest.fixture
def changed(shell):
    write_config(shell.folder / "config.json", lr=1)
    write_model(shell.folder / "model.safetensors", head=np.zeros((5, 32), np.float32))
    (shell.folder / "broken.safetensors").write_bytes(b"\xff" * 64)
    return shell


def test_add_and_commit(changed):
    fields = changed.json("add", ".")
    assert promised("add") | {"path", "message"} == keys(fields)
    fields = changed.json("commit", "-m", "x")
    twin = {"step", "paths"}
    assert promised("commit") - twin == keys(fields)
    json.dumps(fields, allow_nan=False)


def test_status_and_diff(changed):
    assert promised("status") == keys(changed.json("status"))
    optional = {"old_path", "old_name", "old_dtype", "old_shape"}
    found = keys(changed.json("diff"))
    assert promised("diff") <= found <= promised("diff") | optional


def test_log_and_show(shell):
    shell.ok("prune", "-q", "--keep-last", "1")
    shell.ok("rollback", "-q", "v1", "-m", "NaN")
    of_ranks = {"agreed", "chunks", "differed", "disputes", "tensor", "chunk", "stored", "checked"}
    assert promised("log, show") == keys(shell.json("log", "--all")) | of_ranks
    found = keys(shell.json("show", "diverged/main/2000~1")) | keys(
        shell.json("show", "diverged/main/2000")
    )
    optional = {"old_path", "old_name", "old_dtype", "old_shape"}
    expected = promised("log, show") | promised("diff") | {"body", "tag_message"}
    assert expected - of_ranks <= found <= expected | optional


def test_prune_and_a_commit_that_is_back(shell):
    for step in (3000, 4000):
        write_model(shell.folder / "model.safetensors", seed=step)
        shell.ok("commit", "-am", "x", "--step", f"{step}")
    assert promised("prune") == keys(shell.json("prune", "--keep-last", "1", "--dry-run"))
    assert promised("prune") == keys(shell.json("prune", "--keep-last", "1"))
    answer = shell("checkout", "main@3000", "--json")
    released = json.loads(answer.err)["error"]["released"]
    assert set(released) == {"commit", "policy", "time", "nearest"}
    assert '"released": {"commit", "policy", "time", "nearest"}' in PAGE
    write_model(shell.folder / "model.safetensors", seed=3000)
    assert promised("commit") == keys(shell.json("commit", "-am", "again"))


def test_watch(shell):
    tell(Repo.open(shell.folder))
    assert promised("watch") == keys(shell.json("watch"))


def test_verify(shell):
    write_model(shell.folder / "model.safetensors", head=np.zeros((5, 32), np.float32))
    optional = {"old_dtype", "old_shape"}
    assert promised("verify") | optional == keys(shell.json("verify", code=1))


@pytest.mark.torch
def test_verify_of_two_models(shell, monkeypatch):
    from mvc_lab.behaviour.__main__ import compare, parse
    from support import behaving

    monkeypatch.chdir(shell.folder)
    state = {name: value.numpy() for name, value in behaving.perceptron().state_dict().items()}
    np.savez("m.npz", **state)
    np.savez("in.npz", input=np.ones((12, 6), np.float32), targets=np.ones(12, int))
    common = [f"--entry={behaving.__file__}:perceptron", "--inputs=in.npz"]
    optional = {"old_name", "old_dtype", "old_shape"}
    found = keys(shell.json("verify", "v1", "main", code=1))
    for line in (["m.npz", "m.npz"], ["m.npz", "--threads=1,2"]):
        found |= keys(json.loads(json.dumps(compare(parse([*line, *common])))))
    assert promised("verify", 1) == found - optional


def test_profile(shell):
    traces = Path(__file__).parents[1] / "golden/traces"
    found = keys(shell.json("profile", *map(str, sorted(traces.glob("*.gz")))))
    straggler = {"straggler", "path", "rank", "waits_s", "others_wait_s", "because", "excess_s"}
    assert promised("profile") == found | straggler


def test_doctor_of_ranks():
    from mvc.cli.commands.doctor import distributed_lines
    from mvc.cli.output import stdout

    section = PAGE.split("`doctor --distributed`: `")[1].split("`")[0]
    names = set(re.findall(r'"(\w+)"', section))
    assert names == keys(LINK) | {"hint", "source", "url", "where", "level", "text", "rule"}
    assert len(list(distributed_lines(stdout(), LINK))) == 5


def test_the_rest(shell):
    init, exported = shell.json("init"), shell.json("export", "HEAD", "-o", "x.safetensors")
    assert (promised("init"), promised("export")) == (keys(init), keys(exported))
    assert promised("du") == keys(shell.json("du", "HEAD")) | keys(
        shell.json("du", "--by", "tensor")
    )
    assert promised("ls") == keys(shell.json("ls"))
    assert promised("ls") | {"content"} == promised("ls") | keys(
        shell.json("show", "HEAD:config.json")
    )
    assert promised("cat") == keys(shell.json("cat", "model.safetensors", "embed"))
    assert promised("checkout, switch, restore, reset") == keys(shell.json("checkout", "side"))
    assert promised("undo") == keys(shell.json("undo", "--dry-run"))
    assert promised("branch, tag") == keys(shell.json("branch"))
    optional = {"kind", "detail"}
    assert promised("fsck") == keys(shell.json("fsck")) | optional
    assert promised("doctor") == keys(shell.json("doctor"))
    reflog = {"ref", "old", "new", "who", "date", "message"}
    assert keys(shell.json("reflog")) == reflog
    assert all(f'"{key}"' in PAGE for key in reflog)
    shell.ok("switch", "-q", "main")
    for option in (["--dry-run"], []):
        assert promised("rollback") == keys(shell.json("rollback", "v1", *option))
