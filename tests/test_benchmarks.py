"""The benchmark runs on a tiny model, all sections, so that it cannot rot; times are ignored."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from benchmarks import donor, passes, report, report_hooks, report_loader, workload
from benchmarks.__main__ import SECTIONS, main
from benchmarks.children import CommandError, Cost, Runner, middle

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> workload.Bootstrap:
    pytest.importorskip("torch")
    weights, note = donor.load_donor(tmp_path_factory.mktemp("donor"), donor.QUICK)
    assert note.startswith("trained here")
    return workload.Bootstrap(weights)


def read_words(path: Path) -> dict[str, np.ndarray]:
    """Return name → bf16 words of a file, through the reference reader of the format."""
    with safe_open(path, "pt") as file:
        return {name: file.get_tensor(name).view(_int16()).numpy() for name in file.keys()}  # noqa: SIM118


def _int16():
    import torch

    return torch.int16


def test_versions_change_what_their_names_say(bootstrap, tmp_path):
    words = {}
    for version in workload.VERSIONS:
        path = tmp_path / f"{version.name}.safetensors"
        workload.write_model(path, workload.QUICK, bootstrap, version)
        words[version.name] = read_words(path)
    base = words["base"]

    def changed(version: str) -> dict[str, float]:
        return {
            name: float(np.mean(base[name] != words[version][name][: len(base[name])]))
            for name in base
        }

    lora = {name for name, share in changed("lora").items() if share}
    assert lora == {name for name in base if "q_proj" in name or "v_proj" in name}
    tiny, large, rows = changed("tiny"), changed("large"), changed("rows")
    matrices = [name for name in base if base[name].ndim == 2]
    assert all(0 < tiny[name] < 0.2 for name in matrices)
    assert all(large[name] > 0.9 for name in matrices)
    assert not any(rows.values())
    grown = {name for name in base if len(words["rows"][name]) > len(base[name])}
    assert grown == {"model.embed_tokens.weight", "lm_head.weight"}


def test_launcher_measures_and_reports_failures(tmp_path):
    runner = Runner(tmp_path)
    cost = runner.measure(tmp_path, ["sh", "-c", "head -c 1000000 /dev/zero > big"], ["cat", "big"])
    assert (tmp_path / "big").stat().st_size == 1_000_000
    assert 0 < cost.seconds <= cost.durable_seconds
    assert 0 < cost.peak_bytes < 100 << 20  # not that of this process, which holds torch
    assert cost.read_bytes >= 2_000_000
    with pytest.raises(CommandError, match="went wrong"):
        runner.measure(tmp_path, ["sh", "-c", "echo went wrong; exit 3"])


def test_median_of_costs_keeps_the_largest_memory():
    costs = [Cost(float(n), n + 1.0, 1.0, peak, 5, 0.5) for n, peak in ((1, 7), (9, 3), (2, 5))]
    assert middle(costs) == Cost(2.0, 3.0, 1.0, 7, 5, 0.5)


@pytest.mark.nightly
def test_quick_run_fills_every_section(tmp_path, capsys):
    pytest.importorskip("torch")
    found, page = tmp_path / "results.json", tmp_path / "page.md"
    arguments = ["--quick", "--dir", str(tmp_path / "work"), "--peers", "none"]
    arguments += [
        *(f"--only={one}" for one in SECTIONS),
        "--json",
        str(found),
        "--markdown",
        str(page),
    ]
    assert main(arguments) == 0
    results = json.loads(found.read_text())
    assert set(SECTIONS) <= set(results)
    assert results["status"]["data_files_opened"] == []
    assert 0.5 < results["ratio"]["bf16"] < 0.8
    assert len(results["reads"]) == 3
    assert set(results["sweep"]["record"]) == {"mvc", "cp + sync"}
    stall = results["hooks"]["stall"]
    assert {"mvc", "torch.save", "dcp.async_save, process"} <= set(stall["ways"])
    assert all(len(way["stall"]) == 1 for way in stall["ways"].values())
    assert 0.5 < stall["ways"]["mvc"]["bytes"][0] / stall["state_bytes"] < 1
    assert len(results["loader"]["resume"][0]["times"]) == 4
    assert {row["name"] for row in results["loader"]["streams"]} >= {"jsonl, tokenized", "npy"}
    text = capsys.readouterr().out
    for target in report.list_targets(results):
        assert target.name in text
        assert target.name in page.read_text()
    left = {path.name for path in (tmp_path / "work").iterdir()}
    assert not any(name.startswith("model-") or name == "sweep" for name in left)


def ways_of_saving(**stalls: float) -> dict[str, dict[str, list]]:
    """Return what the section measured of ways whose saves took so long; one quiet round each."""
    return {
        name.replace("_", " "): {"stall": [[seconds, 0.0]], "durable": [1.0], "bytes": [1e6]}
        for name, seconds in stalls.items()
    }


def test_best_peer_is_neither_mvc_nor_a_plain_copy():
    ways = ways_of_saving(mvc=0.2, fast=0.5, slow=2.0)
    ways[report_hooks.MEMMOVE] = ways_of_saving(one=0.1)["one"]
    assert report_hooks.find_best_peer(ways) == "fast"
    found = {"hooks": {"stall": {"ways": ways}}}
    copy, peer = list(report_hooks.list_targets(found))[:2]
    assert (copy.measured, copy.verdict) == (2.0, "MISSED")
    assert (peer.measured, peer.verdict) == (0.4, "met")


def test_loader_target_is_met_at_097_of_the_plain_rate_and_missed_below():
    def judge(ours_s: float) -> str:
        times = {passes.OURS: [[ours_s, 0.0]], passes.PLAIN: [[0.97, 0.0]]}
        row = {"name": "tokens", "workers": 0, "times": times}
        found = {"loader": {"passes": [row], "streams": []}}
        return next(report_loader.list_targets(found)).verdict

    assert [judge(seconds) for seconds in (0.9, 0.99, 1.01)] == ["met", "met", "MISSED"]
    assert next(report_loader.list_targets({})).verdict == "not measured"


def test_a_process_and_its_children_are_watched():
    from benchmarks.hooks.memory import Watch, list_children

    hold = "import sys; b = bytearray(b'x' * 30_000_000); print(1, flush=True); sys.stdin.read()"
    with Watch() as before:
        own = bytearray(b"x" * 10_000_000)
    with (
        Watch() as during,
        subprocess.Popen(
            [sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as child,
    ):
        child.stdout.readline()
        assert child.pid in list_children(os.getpid())
        during.sample()
        child.stdin.close()
    assert len(own) < during.own_bytes
    assert during.all_bytes - before.all_bytes > 25_000_000
