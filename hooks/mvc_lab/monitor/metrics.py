"""The metrics of a run by their Prometheus names, in base units, and the endpoint that Prometheus scrapes.

NVIDIA's NCCL Inspector is a plugin of NCCL that notes how long each collective took. ``NCCL_INSPECTOR_DUMP_DIR`` names
its folder: files of JSON objects, one for each collective, or one ``.prom`` file for each GPU in the
text format of Prometheus. Both give bandwidth in GB/s and time in µs. Whatever else is there is skipped,
and only the ends of the newest files are read.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import re
import socket
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import mvc
from mvc import UsageError

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from mvc_lab.monitor.numbers import RunNumbers
    from mvc_lab.monitor.thresholds import Alarm

FOLDER = "NCCL_INSPECTOR_DUMP_DIR"
_MAX_FILES, _MAX_BYTES, _MAX_NAMES = 32, 64 * 1024, 32
_GB, _US = 1e9, 1e-6
_PROM = {
    "nccl_bus_bandwidth_gbs": ("bus", _GB),
    "nccl_collective_exec_time_microseconds": ("seconds", _US),
}
_LINE = re.compile(r'(\w+)\{[^}]*\bcollective="(\w{1,40})"[^}]*\} (\S{1,32})')


def read_inspector(folder: str | None) -> dict[str, dict[str, float]]:
    """Return collective → ``bus`` and ``seconds``, the medians of what the ends of the newest files say."""
    values: dict[str, dict[str, list[float]]] = {}
    for text in _read_ends(Path(folder)) if folder else ():
        for name, what, value in parse_inspector(text):
            if name in values or len(values) < _MAX_NAMES:
                values.setdefault(name, {}).setdefault(what, []).append(value)
    return {
        name: {what: median(numbers) for what, numbers in kinds.items()}
        for name, kinds in values.items()
    }


def parse_inspector(text: str) -> Iterator[tuple[str, str, float]]:
    """Yield collective, ``bus`` or ``seconds``, and value of every line that says so."""
    for line in text.splitlines():
        if line.startswith("{"):
            yield from _parse_json(line)
        elif match := _LINE.fullmatch(line.strip()):
            metric, name, number = match.groups()
            value = _amount(number)
            if metric in _PROM and value is not None:
                what, unit = _PROM[metric]
                yield name, what, value * unit


def _parse_json(line: str) -> Iterator[tuple[str, str, float]]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return
    host, perf = _find(record, "metadata", "hostname"), _find(record, "coll_perf")
    name = _find(perf, "coll")
    if host not in (None, platform.node()) or not isinstance(name, str) or not name.isalnum():
        return
    for key, what, unit in (("coll_busbw_gbs", "bus", _GB), ("coll_exec_time_us", "seconds", _US)):
        value = _amount(_find(perf, key))
        if value is not None:
            yield name[:40], what, value * unit


def _find(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _amount(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if 0 <= number < math.inf else None


def _read_ends(folder: Path) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            files = [entry for entry in entries if entry.is_file(follow_symlinks=False)]
        newest = sorted(files, key=lambda entry: entry.stat().st_mtime)[-_MAX_FILES:]
    except OSError:
        return
    for entry in newest:
        try:
            with open(entry.path, "rb") as file:
                file.seek(max(0, entry.stat().st_size - _MAX_BYTES))
                yield file.read(_MAX_BYTES).decode("utf-8", "replace")
        except OSError:
            continue


Labels = tuple[str, ...]


class Metric(NamedTuple):
    """A metric; ``read`` yields values of its labels, and a number or a histogram."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    text: str
    labels: Labels
    read: Callable[[RunNumbers], Iterable[tuple[Labels, Any]]]


def _field(name: str) -> Callable[[RunNumbers], Iterable[tuple[Labels, Any]]]:
    return lambda numbers: [((), getattr(numbers, name))]


def _by_label(name: str) -> Callable[[RunNumbers], Iterable[tuple[Labels, Any]]]:
    return lambda numbers: [((key,), value) for key, value in dict(getattr(numbers, name)).items()]


def _read_nccl(what: str) -> Callable[[RunNumbers], Iterable[tuple[Labels, Any]]]:
    def read(numbers: RunNumbers) -> Iterator[tuple[Labels, float | None]]:  # noqa: ARG001  not of the run
        for name, values in read_inspector(os.environ.get(FOLDER)).items():
            yield (name,), values.get(what)

    return read


METRICS = (
    Metric("mvc_run_info", "gauge", "Branch, host and version of the run.", ("branch", "host", "version"),
           lambda numbers: [((numbers.branch, platform.node(), mvc.__version__), 1)]),
    Metric("mvc_ranks", "gauge", "Ranks of the run.", (), _field("ranks")),
    Metric("mvc_training_step", "gauge", "Number of the last complete step.", (), _field("step")),
    Metric("mvc_steps_total", "counter", "Steps that this process has done.", (), _field("steps_done")),
    Metric("mvc_step_seconds", "histogram", "From the end of a step to the end of the next.", (), _field("step_bars")),
    Metric("mvc_loss", "gauge", "Loss, the mean of the ranks.", (), _field("loss")),
    Metric("mvc_gradient_norm", "gauge", "Norm of the gradients, the mean of the ranks.", (), _field("grad_norm")),
    Metric("mvc_learning_rate", "gauge", "Learning rate of the first group.", (), _field("lr")),
    Metric("mvc_scaler_scale", "gauge", "Scale of the GradScaler.", (), _field("scale")),
    Metric("mvc_gradient_sync_seconds", "histogram", "Sum of a bucket of gradients over the ranks.", ("bucket",),
           _by_label("bucket_bars")),
    Metric("mvc_gradient_update_sync_seconds", "histogram",
           "Time in which at least one bucket of a backward pass was on its way.", (), _field("update_bars")),
    Metric("mvc_gradient_sync_window_seconds", "gauge",
           "Exact quantiles of the last 1000 sums of a bucket; bucket all: of whole updates.",
           ("bucket", "quantile"),
           lambda numbers: [((name, str(share)), window.quantile(share))
                            for name, window in {"all": numbers.updates, **numbers.buckets}.items()
                            for share in (0.5, 0.99)]),
    Metric("mvc_gradient_bytes_total", "counter", "Bytes of gradients that were summed.", (), _field("gradient_bytes")),
    Metric("mvc_link_speed_bytes_per_second", "gauge", "Speed of the link, as stated or measured.", (), _field("link")),
    Metric("mvc_link_utilization_ratio", "gauge",
           "Share of the link's speed that large buckets reach.", (), _field("bandwidth_used")),
    Metric("mvc_nccl_bus_bandwidth_bytes_per_second", "gauge", "Median that NCCL Inspector noted.", ("collective",),
           _read_nccl("bus")),
    Metric("mvc_nccl_collective_seconds", "gauge", "Median that NCCL Inspector noted.", ("collective",),
           _read_nccl("seconds")),
    Metric("mvc_commit_stall_seconds", "histogram", "How long the training paused for a commit.", (), _field("stall_bars")),
    Metric("mvc_commit_write_seconds", "histogram", "How long the writer took for a commit.", (), _field("write_bars")),
    Metric("mvc_commits_total", "counter", "Commits that were made, failed or skipped; rank 0 counts.", ("result",), _by_label("commits")),
    Metric("mvc_bytes_written_total", "counter", "Bytes that commits added to the repository; rank 0 counts.", (),
           _field("written_bytes")),
    Metric("mvc_bytes_plain_total", "counter", "Bytes of the states that were committed; rank 0 counts.", (),
           _field("plain_bytes")),
    Metric("mvc_queue_depth", "gauge", "Snapshots that wait for the writer or are being written.", (), _field("queue_depth")),
    Metric("mvc_recovery_seconds", "gauge", "Seconds of the last resume and the last rollback.", ("kind",),
           _by_label("recovery_s")),
    Metric("mvc_recovery_timestamp_seconds", "gauge", "When the last resume and the last rollback ended.", ("kind",),
           _by_label("recovered_at")),
    Metric("mvc_resume_info", "gauge", "Where the state was found at the resume.", ("tier",),
           lambda numbers: [((numbers.tier,), 1)] if numbers.tier else []),
    Metric("mvc_rollbacks_total", "counter", "Rollbacks of this process.", (), _field("rollbacks")),
    Metric("mvc_consistency_checks_total", "counter", "Comparisons of the ranks.", (), _field("checks")),
    Metric("mvc_consistency_mismatches_total", "counter", "Comparisons that found a difference.", (), _field("mismatches")),
    Metric("mvc_consistency_deviation", "gauge", "Largest difference between ranks.", (), _field("deviation")),
    Metric("mvc_alarms_total", "counter", "Alarms by cause, those of detectors too.", ("alarm",), _by_label("alarms")),
)  # fmt: skip
"""All metrics but ``mvc_alarm_active``; every one has the label ``rank``, too."""


class Collector:
    """Reads the numbers of a run whenever Prometheus asks."""

    def __init__(self, numbers: RunNumbers, alarms: Mapping[str, Alarm]) -> None:
        self._numbers, self._alarms = numbers, alarms

    def collect(self) -> Iterator[Any]:
        """Yield the families of metrics that have values."""
        from prometheus_client import core  # noqa: PLC0415  it need not be installed

        families: dict[str, Any] = {
            "counter": core.CounterMetricFamily,
            "gauge": core.GaugeMetricFamily,
            "histogram": core.HistogramMetricFamily,
        }
        active = [((name,), float(alarm.is_on)) for name, alarm in self._alarms.items()]
        text = "Whether a threshold is crossed now."
        alarms = Metric("mvc_alarm_active", "gauge", text, ("alarm",), lambda _: active)
        for metric in (*METRICS, alarms):
            family = families[metric.kind](
                metric.name, metric.text, labels=["rank", *metric.labels]
            )
            for labels, value in metric.read(self._numbers):
                values = [str(self._numbers.rank), *labels]
                if metric.kind == "histogram":
                    family.add_metric(values, value.bars(), value.sum)
                elif value is not None:
                    family.add_metric(values, value)
            if family.samples:
                yield family


class Endpoint:
    """Serves the metrics of one process until it is closed."""

    def __init__(self, address: str, port: int, collector: Collector) -> None:
        """Listen at once; port 0 takes any that is free.

        Raises:
            UsageError: prometheus-client is not installed, the port is taken, or the address is not one
                of this machine.
        """
        try:
            from prometheus_client import CollectorRegistry, start_http_server  # noqa: PLC0415  optional
        except ModuleNotFoundError as error:
            raise UsageError(
                "an endpoint for metrics needs prometheus-client",
                hint="pip install 'mvc-models[monitor]'; port=None measures without an endpoint",
            ) from error
        registry: Any = CollectorRegistry()
        registry.register(collector)
        try:
            server, thread = start_http_server(port, address, registry)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise UsageError(
                f"metrics cannot be served at {address}:{port}: {reason.lower()}",
                hint="pass Monitor(port=...) with one that is free, or port=0 for any; rank r of a machine "
                "takes port + r",
            ) from error
        self._server: Any = server
        self._thread: threading.Thread = thread
        host = f"[{address}]" if ":" in address else address
        self.url = f"http://{host}:{server.server_port}/metrics"

    def close(self) -> None:
        """Let go of the port, and end the thread."""
        self._server.shutdown()
        # Processes that were forked meanwhile hold the socket, too; it must not listen for them either.
        with contextlib.suppress(OSError):
            self._server.socket.shutdown(socket.SHUT_RDWR)
        self._server.server_close()
        self._thread.join()
