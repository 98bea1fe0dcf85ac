"""Monitor: measures a run while it trains, shows the numbers, and says when one is beyond its threshold.

    monitor = Monitor(port=9400)
    ckpt = Checkpointer("runs/gpt", model=ddp, optimizer=optimizer, every=1000, monitor=monitor)

It sees what the run's log sees, the ends of steps, and DDP's sums of gradients. Nothing here waits for
a device or another rank once the run has begun, and no failure of an output reaches the training.
Every rank measures for itself and has an endpoint of its own; rank 0 alone says alarms.
"""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from mvc import UsageError
from mvc.training import RunFeed
from mvc_hooks.checks import Requirement, instance, optional
from mvc_hooks.divergence.history import Reading, Verdict
from mvc_hooks.extension import Extension, Host
from mvc_hooks.ranks.buckets import Buckets
from mvc_hooks.ranks.group import Ranks, find_backends
from mvc_hooks.ranks.syncing import TimedHook, count_bus_bytes, install, time_sums
from mvc_lab.monitor.metrics import Collector, Endpoint
from mvc_lab.monitor.numbers import RunNumbers
from mvc_lab.monitor.thresholds import RULES, Alarm, Thresholds, check_positive

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


ENOUGH = 100  # gradient updates before P99 and bandwidth mean something
_WARM_UP = 2  # updates that still open connections and build buckets
_LOOK_S = 1.0
_HOST_BYTES, _CUDA_BYTES = 4 * 2**20, 64 * 2**20
_TRIES = 3
_MAX_PORT = 65535
_RULES = {
    "port": Requirement(
        lambda value: value is None or (type(value) is int and 0 <= value <= _MAX_PORT),
        "not a port",
        "0 takes any that is free, None opens none",
    ),
    "address": instance(str, "an address", '"127.0.0.1"'),
    "jsonl": optional(
        Requirement(lambda value: isinstance(value, str | os.PathLike), "not the path of a file")
    ),
    "thresholds": optional(instance(Thresholds, "Thresholds", "Thresholds(stall_s=2.0)")),
}
_EVENTS = ("resume", "rollback", "commit", "skip", "error", "alarm")


class Monitor(Extension):
    """Measures one run at a time; pass it to ``Checkpointer(monitor=...)``.

    Attributes:
        endpoints: where the metrics of each rank are served, by rank.
        consistency: what knows of differences between ranks: an object with ``checks``,
            ``mismatches`` and ``max_delta``, or None.

    Args:
        port: of the endpoint for Prometheus; rank r of a machine takes port + r. 0: any free one;
            None: no endpoint.
        address: to listen at; "0.0.0.0" lets other machines in.
        jsonl: a file that gets a line of JSON for events and, at most a few times a second, for a
            step; several ranks write one file each, ``NAME-rank1.jsonl`` and so on.
        link_bytes_per_s: speed of the link between ranks; measured at the start if it is not given.
        thresholds: defaults to ``Thresholds()``.

    Raises:
        UsageError: a setting that makes no sense.
    """

    name = "monitor"

    def __init__(
        self,
        port: int | None = 9400,
        address: str = "127.0.0.1",
        *,
        jsonl: str | os.PathLike[str] | None = None,
        link_bytes_per_s: float | None = None,
        thresholds: Thresholds | None = None,
    ) -> None:
        given = {"port": port, "address": address, "jsonl": jsonl, "thresholds": thresholds}
        for name, value in given.items():
            _RULES[name].check(name, value)
        check_positive("link_bytes_per_s", link_bytes_per_s, hint="12.5e9 is 100 Gbit/s")
        self._port, self._address, self._stated = port, address, link_bytes_per_s
        self._jsonl = None if jsonl is None else Path(jsonl)
        limits = thresholds or Thresholds()
        self._limits = {name: getattr(limits, name) for name in RULES}
        self.endpoints: Sequence[str] = ()
        self.consistency: object = None
        self._reset()

    def _reset(self) -> None:
        self.numbers = RunNumbers()
        self._alarms = {
            name: Alarm(limit, is_above=RULES[name].is_above, hold_s=RULES[name].hold_s)
            for name, limit in self._limits.items()
            if limit is not None
        }
        self._endpoint: Endpoint | None = None
        self._feed: RunFeed | None = None
        self._hooks: list[TimedHook] = []
        self._host: Host | None = None
        self._ended_s: float | None = None
        self._look_at_s = 0.0
        self._updates = 0

    def measure(self) -> dict[str, float]:
        """Return the numbers of this rank now; what is unknown is left out.

        Returns:
            ``sync_p50_s`` and ``sync_p99_s`` (seconds in which a gradient update is summed, of the last
            1000), ``bandwidth_used`` (share of the link's speed), ``deviation_max``, ``mismatches`` and
            ``checks`` (of the ranks compared), ``recovery_s`` (the longer of the last resume and the last
            rollback), ``stall_s`` (the longest of the last 100 commits), ``loss``, ``grad_norm``,
            ``step_s`` (median) and ``ranks``.
        """
        self.numbers.take_consistency(self.consistency)
        return self.numbers.measure()

    def timed(self, hook: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        """Return a communication hook as one that is timed, for ``ddp.register_comm_hook``.

        What it sends is unknown, so no use of the link is computed.
        """
        if not callable(hook):
            raise UsageError(f"{hook!r} is not a communication hook")
        return TimedHook(hook)

    # The life of a run.

    def open(self, host: Host) -> None:
        """Open endpoint and file, before anything of the run is changed; every rank must call it.

        Raises:
            UsageError: this monitor measures another run, the port is taken, or the file cannot be.
        """
        if self._host is not None:
            raise UsageError("this monitor measures another run", hint="make one for each run")
        self._reset()
        ranks = host.ranks
        nodes = ranks.exchange(platform.node())
        self.numbers.rank, self.numbers.ranks = ranks.rank, ranks.size
        self.numbers.is_link_known = self._stated is not None or len(set(nodes)) > 1
        local_rank = nodes[: ranks.rank].count(platform.node()) if len(nodes) > 1 else 0
        self._host = host
        try:
            urls = ranks.ask_all(lambda: self._listen(local_rank))
        except BaseException:
            self.close()
            raise
        self.endpoints = [url for url in urls if url]
        host.log.observers.append(self.take_event)

    def _listen(self, local_rank: int) -> str | None:
        if self._jsonl is not None:
            path, rank = self._jsonl, self.numbers.rank
            if rank:
                path = path.with_name(f"{path.stem}-rank{rank}{path.suffix}")
            try:
                with open(path, "ab"):  # to know that it can be written
                    pass
            except OSError as error:
                reason = (error.strerror or str(error)).lower()
                raise UsageError(
                    f"jsonl cannot be written to {path}: {reason}",
                    hint="name a file in a folder that exists",
                ) from error
            self._feed = RunFeed(path)
        if self._port is None:
            return None
        port = self._port + local_rank if self._port else 0
        self._endpoint = Endpoint(self._address, port, Collector(self.numbers, self._alarms))
        return self._endpoint.url

    def start(self) -> None:
        """Begin to measure the sums of gradients; a link whose speed was not stated is measured.

        A ``Consistency`` of the run says itself where ranks differ, and does something about it.
        """
        assert self._host is not None
        host, ranks = self._host, self._host.ranks
        for extension in host.extensions:
            if hasattr(extension, "max_delta"):
                self.consistency = extension
                self._alarms.pop("deviation", None)
        doubts: list[str] = []
        if ranks.size > 1:
            # What cannot be timed is a text that says why.
            results = [install(model) for model in Buckets(host.parts).list_models()]
            self._hooks = [hook for hook in results if isinstance(hook, TimedHook)]
            doubts = [text for text in results if isinstance(text, str)]
            if not results:
                doubts = ["no part is in a DistributedDataParallel"]
        self.numbers.branch, self.numbers.link = host.branch, self._stated
        if all(ranks.exchange(bool(self._hooks) and self._stated is None)):
            self.numbers.link = measure_link(ranks)
        host.log.doubt(
            ranks.merge(f"gradient synchronisation is not measured: {text}" for text in doubts)
        )
        host.log.serve(self.endpoints)

    def after_step(self, step: int) -> None:
        """Take in the end of a step of the run."""
        assert self._host is not None
        self.end_step(step, self._host.reading, self._host.queue_depth)

    def close(self) -> None:
        """Let go of the port, the file and the hooks; what was measured stays readable."""
        for hook in self._hooks:
            hook.stop()
        if self._endpoint is not None:
            self._endpoint.close()
        if self._feed is not None:
            self._write_step()
            self._feed.close()
        self._hooks, self._endpoint, self._feed, self._host = [], None, None, None

    # What happens.

    def take_event(self, kind: str, fields: Mapping[str, Any]) -> None:
        """Take in what the run's log records, with the fields that the feed gets."""
        event = dict(fields)
        self.numbers.take_event(kind, event)
        if self._feed is not None and kind in _EVENTS:
            self._feed.append(kind, **event)
        if kind in ("resume", "rollback") and "seconds" in event:
            self._judge("recovery_s", event["seconds"], event["step"])
        if kind == "snapshot" and event["step"]:  # that of step 0 comes before the training
            self._judge("stall_s", event["stall_s"], event["step"])

    def end_step(self, step: int, reading: Reading | None, queue_depth: int) -> None:
        """Take in the end of a step; ``reading`` is the newest one."""
        now_s, numbers = time.perf_counter(), self.numbers
        numbers.take_step(step, None if self._ended_s is None else now_s - self._ended_s)
        self._ended_s = now_s
        numbers.queue_depth = queue_depth
        if reading is not None:
            numbers.take_reading(reading)
        for number, hook in enumerate(self._hooks):
            model = f"{number}/" if len(self._hooks) > 1 else ""
            for update in hook.take():
                self._updates += 1
                if self._updates > _WARM_UP:
                    numbers.take_update(update, model)
        if now_s >= self._look_at_s:
            self._look_at_s = now_s + _LOOK_S
            self._look(reading)

    def _look(self, reading: Reading | None) -> None:
        """Compare with the thresholds what changes slowly."""
        numbers = self.numbers
        numbers.take_consistency(self.consistency)
        if reading is not None:
            numbers.scale = reading.scale
        if len(numbers.updates) >= ENOUGH:
            self._judge("sync_p99_s", numbers.updates.quantile(0.99))
            self._judge("bandwidth_used", numbers.bandwidth_used)
        self._judge("deviation", numbers.deviation)
        self._judge("queue", numbers.queue_depth)
        self._write_step()

    def _write_step(self) -> None:
        numbers = self.numbers
        if self._feed is not None:
            fields = numbers.measure() | {
                "queue_depth": numbers.queue_depth,
                "scale": numbers.scale,
            }
            windows = numbers.buckets.items()
            buckets = {name: [window.quantile(q) for q in (0.5, 0.99)] for name, window in windows}
            self._feed.append("step", step=numbers.step, **fields, buckets=buckets)

    def _judge(self, name: str, value: float | None, step: int | None = None) -> None:
        alarm, rule = self._alarms.get(name), RULES[name]
        if alarm is None or value is None or not alarm.look(value, time.monotonic()):
            return
        text = f"{rule.fact.format(value, self._limits[name])}; {rule.advice}"
        if self._host is not None:
            at = self.numbers.step if step is None else step
            self._host.log.alarm(Verdict(name, text, at, at))


def measure_link(ranks: Ranks) -> float:
    """Return bytes per second that a rank sends while nothing else happens; every rank must call it.

    It is the best of a few sums, as the slowest rank has it.
    """
    uses_cuda = "cuda" in find_backends() and torch.cuda.is_available()
    device = torch.device("cuda", torch.cuda.current_device()) if uses_cuda else torch.device("cpu")
    size_bytes = _CUDA_BYTES if uses_cuda else _HOST_BYTES
    durations_s = time_sums(size_bytes, _TRIES, device, warm_up=1)  # opens connections
    slowest_s: float = max(ranks.exchange(min(durations_s)))
    return count_bus_bytes(size_bytes, ranks.size) / slowest_s
