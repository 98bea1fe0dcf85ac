"""The real Prometheus server scrapes a real run of four processes with the shipped rules and dashboard."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest

import mvc_lab

FOLDER = Path(mvc_lab.__file__).parent / "monitor"
PROGRAM = Path(__file__).with_name("monitored_training.py")
RANKS = 4
DEADLINE_S = 180

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("prometheus") is None or shutil.which("promtool") is None,
        reason="prometheus is not installed (Debian: prometheus)",
    ),
]

CONFIG = """
global: {{scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 500ms}}
rule_files: [rules.yml]
scrape_configs:
  - job_name: training
    static_configs: [{{targets: {targets}}}]
"""


def poll(ask, what):
    """Return the first answer that is true."""
    ends_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < ends_s:
        answer = ask()
        if answer:
            return answer
        time.sleep(0.2)
    raise AssertionError(f"{what} did not come about in {DEADLINE_S} s")


def hasten(rules):
    """Return the shipped rules for a run of a minute on a busy machine, where all may take long."""
    rules = re.sub(r"\[\d+m\]", "[12s]", rules)
    rules = re.sub(r"for: \d+m", "for: 1s", rules)
    assert (rules.count("> 0.05"), rules.count('le="1.0"')) == (1, 1)
    return rules.replace("> 0.05", "> 1.0").replace('le="1.0"', 'le="30.0"')


@contextlib.contextmanager
def started(command, **options):
    with subprocess.Popen(command, **options) as process:
        try:
            yield process
        finally:
            process.kill()


def ask_server(url, path, **query):
    text = f"{url}/api/v1/{path}?{urllib.parse.urlencode(query)}"
    try:
        with urllib.request.urlopen(text, timeout=30) as answer:
            return json.load(answer)["data"]
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{path} {query}: {error.read().decode()}") from error


def serve(stack, folder, endpoints):
    """Start the server; return where it listens."""
    targets = json.dumps([urllib.parse.urlsplit(one).netloc for one in endpoints])
    (folder / "prometheus.yml").write_text(CONFIG.format(targets=targets))
    (folder / "rules.yml").write_text(hasten((FOLDER / "rules.yml").read_text()))
    said = folder / "prometheus.log"
    stack.enter_context(
        started(
            ["prometheus", "--config.file", str(folder / "prometheus.yml"),
             "--storage.tsdb.path", str(folder / "data"), "--web.listen-address", "127.0.0.1:0"],
            stderr=stack.enter_context(said.open("wb")),
        )
    )  # fmt: skip
    pattern = re.compile(r'msg="Listening on" address=(127\.0\.0\.1:[1-9]\d*)')
    found = poll(lambda: pattern.search(said.read_text()), "the server")
    url = f"http://{found[1]}"
    poll(lambda: "Server is ready" in said.read_text(), "the server")
    return url


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prometheus")
    with contextlib.ExitStack() as stack:
        ranks = [
            stack.enter_context(
                started(
                    [sys.executable, str(PROGRAM), str(rank), str(RANKS), str(folder)],
                    stderr=stack.enter_context((folder / f"rank{rank}.log").open("wb")),
                )
            )
            for rank in range(RANKS)
        ]

        def has_begun():
            assert all(one.poll() is None for one in ranks), (folder / "rank0.log").read_text()
            return (folder / "endpoints.json").exists()

        poll(has_begun, "the run")
        endpoints = json.loads((folder / "endpoints.json").read_text())
        url = serve(stack, folder, endpoints)

        def query(text):
            result = ask_server(url, "query", query=text)["result"]
            return [float(one["value"][1]) for one in result]

        def firing():
            alerts = ask_server(url, "alerts")["alerts"]
            return {one["labels"]["alertname"] for one in alerts if one["state"] == "firing"}

        def rules():
            (group,) = ask_server(url, "rules")["groups"]
            return {one["name"]: one for one in group["rules"]}

        yield SimpleNamespace(
            folder=folder, url=url, query=query, firing=firing, rules=rules, endpoints=endpoints
        )
        (folder / "end").touch()
        for rank in ranks:
            assert rank.wait(DEADLINE_S) == 0, (folder / "rank0.log").read_text()


def test_promtool_accepts_the_rules():
    words = ["promtool", "check", "rules", str(FOLDER / "rules.yml")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_promtool_accepts_the_page(lab):
    with urllib.request.urlopen(lab.endpoints[0], timeout=30) as answer:
        page = answer.read()
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=page, capture_output=True, check=False
    )
    assert (done.returncode, done.stderr, done.stdout) == (0, b"", b"")


def test_a_healthy_run_fires_nothing(lab):
    quantile = (
        "histogram_quantile(0.99, sum by (le) (rate(mvc_gradient_update_sync_seconds_bucket[12s])))"
    )
    (p99,) = poll(lambda: lab.query(quantile), "P99")
    assert 0 < p99 < 1
    poll(lambda: lab.query("min(mvc_steps_total) > 30"), "thirty steps")
    assert lab.query("count(up == 1)") == [RANKS]
    (used,) = lab.query("min(mvc_link_utilization_ratio)")
    assert used > 0.85
    then = {name: rule["lastEvaluation"] for name, rule in lab.rules().items()}
    poll(
        lambda: all(one["lastEvaluation"] > then[name] for name, one in lab.rules().items()),
        "the rules",
    )
    assert {
        name: one["lastError"] for name, one in lab.rules().items() if one.get("lastError")
    } == {}
    assert lab.firing() == set()


NOTHING = {
    "mvc_consistency_deviation": "no part compares the ranks",
    "mvc_consistency_mismatches_total": "no part compares the ranks",
    "mvc_nccl_bus_bandwidth_bytes_per_second": "gloo is not NCCL",
}


def test_the_dashboard_is_answered(lab):
    poll(lambda: lab.query("sum(increase(mvc_commit_write_seconds_count[12s])) > 0"), "a commit")
    panels = json.loads((FOLDER / "dashboard.json").read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    assert len(queries) > 20
    for query in queries:
        text = query.replace("$__rate_interval", "12s").replace("$job", ".+")
        found = poll_unless(lambda text=text: lab.query(text), query)
        has_data = bool(found) and not any(value != value for value in found)  # noqa: PLR0124  NaN
        assert has_data or any(name in query for name in NOTHING), query


def poll_unless(ask, query):
    """Wait for data where there has to be some."""
    return ask() if any(name in query for name in NOTHING) else poll(ask, query)


def test_a_slow_network_fires(lab):
    (lab.folder / "slow").touch()
    try:
        expected = {"MvcGradientSyncSlow", "MvcLinkUnderused"}
        poll(lambda: expected <= lab.firing(), "the alerts")
        alerts = ask_server(lab.url, "alerts")["alerts"]
        (said,) = [one for one in alerts if one["labels"]["alertname"] == "MvcGradientSyncSlow"]
        assert "at P99, more than 50 ms" in said["annotations"]["summary"]
        assert "the one that the others wait for" in said["annotations"]["action"]
        assert lab.firing() == expected
    finally:
        (lab.folder / "slow").unlink()
    poll(lambda: not lab.firing(), "the end of the alerts")
