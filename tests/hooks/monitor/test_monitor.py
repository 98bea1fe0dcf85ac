"""A monitored run of one process: its page, its file, its alarms, and what is left of it."""

import json
import re
import socket
import threading
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import mvc_lab
from mvc import Repo, UsageError
from mvc_hooks import Checkpointer
from mvc_hooks.divergence.history import Reading
from mvc_hooks.ranks.syncing import GradientSum
from mvc_lab import Monitor, Thresholds
from mvc_lab.monitor import metrics, thresholds
from mvc_lab.monitor.numbers import RunNumbers

pytestmark = pytest.mark.torch

FOLDER = Path(mvc_lab.__file__).parent / "monitor"


def begin(folder, monitor, **options):
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    parts = {"model": model, "optimizer": optimizer, "monitor": monitor, "every": 2, **options}
    return Checkpointer(folder, **parts)


def read(url):
    with urllib.request.urlopen(url, timeout=10) as page:
        return page.read().decode()


def values(page, name):
    return [
        float(line.split()[-1]) for line in page.splitlines() if re.match(rf"{name}[{{ ]", line)
    ]


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_run_and_its_page(tmp_path):
    threads = threading.active_count()
    monitor = Monitor(port=0, jsonl=tmp_path / "run.jsonl")
    with begin(
        tmp_path / "run", monitor, scaler=torch.amp.GradScaler("cpu", init_scale=8.0)
    ) as ckpt:
        (url,) = monitor.endpoints
        for step in range(4):
            ckpt.step(loss=1.0 + step, grad_norm=0.5)
        ckpt.wait()
        page = read(url)
    assert values(page, "mvc_training_step") == values(page, "mvc_steps_total") == [4]
    assert values(page, "mvc_loss") == [4]
    assert values(page, "mvc_gradient_norm") == [0.5]
    assert values(page, "mvc_learning_rate") == [0.1]
    assert values(page, "mvc_scaler_scale") == [8]
    assert (
        values(page, "mvc_commits_total") == values(page, "mvc_commit_stall_seconds_count") == [3]
    )
    assert values(page, "mvc_bytes_plain_total")[0] > values(page, "mvc_bytes_written_total")[0] > 0
    assert values(page, "mvc_step_seconds_count") == [3]
    assert not [line for line in page.splitlines() if line.startswith(("python_", "process_"))]
    assert 'mvc_run_info{branch="main"' in page
    measured = monitor.measure()
    assert (measured["loss"], measured["grad_norm"], measured["ranks"]) == (4.0, 0.5, 1.0)
    assert measured["stall_s"] > 0
    assert "sync_p99_s" not in measured, "one process sums nothing"
    with pytest.raises(OSError, match=r"refused|reset"):
        read(url)
    assert threading.active_count() == threads
    lines = read_lines(tmp_path / "run.jsonl")
    assert [line["step"] for line in lines if line["kind"] == "commit"] == [0, 2, 4]
    last = [line for line in lines if line["kind"] == "step"][-1]
    assert (last["step"], last["loss"], last["scale"]) == (4, 4.0, 8.0)


def test_a_resume_and_a_rollback_are_recoveries(tmp_path, caplog):
    with begin(tmp_path, None) as ckpt:
        ckpt.step(loss=1.0)
        ckpt.step(loss=1.0)
    monitor = Monitor(port=0, thresholds=Thresholds(recovery_s=1e-9))
    with begin(tmp_path, monitor) as ckpt:
        first = monitor.measure()["recovery_s"]
        assert first > 0
        ckpt.step(loss=1.0)
        ckpt.roll_back("last")
        page = read(monitor.endpoints[0])
    assert 'mvc_recovery_seconds{kind="resume",rank="0"}' in page
    assert 'mvc_recovery_seconds{kind="rollback",rank="0"}' in page
    assert 'mvc_resume_info{rank="0",tier="' in page
    assert values(page, "mvc_rollbacks_total") == [1]
    assert 'mvc_alarms_total{alarm="recovery_s",rank="0"} 1.0' in page, "said once"
    assert 'mvc_alarm_active{alarm="recovery_s",rank="0"} 1.0' in page
    said = [line for line in caplog.messages if "going back to a commit took" in line]
    assert len(said) == 1
    assert said[0].endswith("ring= for rollbacks, replicate=1 or a local disk for resumes")
    alarms = [
        one for one in Repo.open(tmp_path).runs.read("main").alarms if one.cause == "recovery_s"
    ]
    assert len(alarms) == 1


def test_a_healthy_run_says_nothing(tmp_path, caplog):
    with begin(tmp_path, Monitor(port=0, jsonl=tmp_path / "run.jsonl"), every=75) as ckpt:
        for _ in range(150):
            ckpt.step(loss=1.0)
    assert not [line for line in caplog.messages if "alarm" in line]


class Differences:
    checks, mismatches, max_delta = 12, 1, 3e-4


def test_what_another_part_knows_of_the_ranks(tmp_path, caplog):
    monitor = Monitor(port=0)
    with begin(tmp_path, monitor) as ckpt:
        monitor.consistency = Differences()
        ckpt.step(loss=1.0)
        page = read(monitor.endpoints[0])
    assert values(page, "mvc_consistency_checks_total") == [12]
    assert values(page, "mvc_consistency_deviation") == [3e-4]
    known = monitor.measure()
    assert [known[name] for name in ("checks", "mismatches", "deviation_max")] == [12, 1, 3e-4]
    assert any("ranks differ by 0.0003" in line for line in caplog.messages)
    ckpt.repo.runs.plan_scale(1, 2)
    judged = ckpt.repo.runs.record_scale(known)
    assert [one.gate for one in judged.failed] == ["recovery"], "alone, and it never had to"


def test_a_taken_port_is_said_before_anything_is_made(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError) as caught:
            begin(tmp_path / "run", Monitor(port=port))
    assert (
        caught.value.message
        == f"metrics cannot be served at 127.0.0.1:{port}: address already in use"
    )
    assert "port=0" in caught.value.hint
    assert not (tmp_path / "run").exists()
    with begin(tmp_path / "run", Monitor(port=port)):
        pass  # it is free now, and was not held


@pytest.mark.parametrize("address", ["203.0.113.7", "not an address"])
def test_an_address_of_no_interface(tmp_path, address):
    with pytest.raises(UsageError, match=f"metrics cannot be served at {address}:0: "):
        begin(tmp_path / "run", Monitor(0, address))
    assert not (tmp_path / "run").exists()


def test_without_prometheus_client(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "prometheus_client", None)
    with pytest.raises(UsageError) as caught:
        begin(tmp_path / "run", Monitor())
    assert caught.value.message == "an endpoint for metrics needs prometheus-client"
    assert caught.value.hint.startswith("pip install 'mvc-models[monitor]'; ")
    monitor = Monitor(port=None)
    with begin(tmp_path / "run", monitor) as ckpt:
        ckpt.step(loss=2.0)
    assert monitor.endpoints == []
    assert monitor.measure()["loss"] == 2.0


def test_one_monitor_measures_one_run_at_a_time(tmp_path):
    monitor = Monitor(port=0)
    with begin(tmp_path / "a", monitor):
        with pytest.raises(UsageError, match="this monitor measures another run"):
            begin(tmp_path / "b", monitor)
        assert read(monitor.endpoints[0]), "the first one goes on"
    with begin(tmp_path / "b", monitor) as ckpt:
        ckpt.step(loss=3.0)
        assert values(read(monitor.endpoints[0]), "mvc_steps_total") == [1]


@pytest.mark.parametrize("name", ["missing/run.jsonl", "."])
def test_a_file_that_cannot_be(tmp_path, name):
    with pytest.raises(UsageError, match="jsonl cannot be written to"):
        begin(tmp_path / "run", Monitor(port=0, jsonl=tmp_path / name))
    assert not (tmp_path / "run").exists()


def test_a_full_disk_costs_lines_only(tmp_path):
    monitor = Monitor(port=None, jsonl="/dev/full")
    with begin(tmp_path, monitor) as ckpt:
        for _ in range(4):
            ckpt.step(loss=1.0)
    assert monitor.measure()["loss"] == 1.0


# Gradient updates, without ranks.


class Hook:
    def __init__(self, updates):
        self.updates = updates

    def take(self):
        return [self.updates.pop(0)] if self.updates else []

    def stop(self):
        pass


def watch(monkeypatch, seconds, *, mib=8, link=None, count=400):
    """Return the alarms of a run that takes ``seconds`` for each update, one a second."""
    clock = iter(range(10**6))
    monkeypatch.setattr("mvc_lab.monitor.monitor.time.monotonic", lambda: float(next(clock)))
    monkeypatch.setattr("mvc_lab.monitor.monitor._LOOK_S", 0.0)
    monitor = Monitor(port=None, link_bytes_per_s=link)
    monitor.numbers.link, monitor.numbers.is_link_known = link, link is not None
    size_bytes = mib * 2**20
    update = GradientSum(seconds, ((0, seconds),), size_bytes, float(size_bytes))
    monitor._hooks, said = [Hook([update] * count)], []
    monitor._host = SimpleNamespace(log=SimpleNamespace(alarm=said.append))
    for step in range(count):
        monitor.end_step(step, Reading(step), 0)
    return monitor, [(one.step, one.cause) for one in said]


@pytest.mark.parametrize(
    ("seconds", "mib", "link", "alarms"),
    [
        (0.06, 8, None, ["sync_p99_s"]),
        (0.04, 8, None, []),
        (0.04, 8, 1e9, ["bandwidth_used"]),
        (0.04, 8, 2e8, []),
        (0.04, 0.5, 1e9, []),  # small buckets say nothing of a link
    ],
)
def test_slow_sums_and_a_link_that_is_not_used(monkeypatch, seconds, mib, link, alarms):
    monitor, said = watch(monkeypatch, seconds, mib=mib, link=link)
    assert [cause for _, cause in said] == alarms
    assert not said or said[0][0] >= 100 + 20, "not before there are enough, and not at once"
    measured = monitor.measure()
    assert measured["sync_p50_s"] == seconds
    used = None if link is None or mib < 1 else pytest.approx(mib * 2**20 / seconds / link)
    assert measured.get("bandwidth_used") == used


def list_known():
    known = {"mvc_alarm_active"}
    for metric in metrics.METRICS:
        ends = ("_bucket", "_sum", "_count") if metric.kind == "histogram" else ("",)
        known |= {metric.name + end for end in ends}
    return known


@pytest.mark.parametrize("name", ["rules.yml", "dashboard.json"])
def test_shipped_files_ask_for_metrics_that_exist(name):
    text = (FOLDER / name).read_text()
    asked = set(re.findall(r"\bmvc_[a-z_]+(?=[{\[)\s])", text))
    assert asked
    assert asked <= list_known() | {metric.name for metric in metrics.METRICS}


def test_shipped_rules_have_the_thresholds():
    text, limits = (FOLDER / "rules.yml").read_text(), Thresholds()
    for pattern, limit in (
        (r"_update_sync_seconds_bucket.*> ([\d.e-]+)$", limits.sync_p99_s),
        (r"utilization_ratio\) < ([\d.]+)", limits.bandwidth_used),
        (r"deviation\) > ([\d.e-]+)", limits.deviation),
        (r"recovery_seconds\) > ([\d.]+)", limits.recovery_s),
        (r'le="([\d.]+)"', limits.stall_s),
        (r"queue_depth\) > ([\d.]+)", limits.queue),
    ):
        assert [float(one) for one in re.findall(pattern, text, re.MULTILINE)] == [limit], pattern


def test_the_documentation_names_every_metric_and_threshold():
    text = (Path(__file__).parents[3] / "docs/monitoring.md").read_text()
    names = [metric.name for metric in metrics.METRICS]
    for name in (*names, "mvc_alarm_active", *thresholds.RULES):
        assert f"`{name}`" in text, name


def test_a_histogram_of_many_buckets_is_bounded():
    numbers = RunNumbers()
    buckets = tuple((number, 0.1) for number in range(1000))
    numbers.take_update(GradientSum(0.1, buckets, 4, None), "")
    assert len(numbers.bucket_bars) == 65
    assert numbers.bucket_bars["rest"].bars()[-1][1] == 936
