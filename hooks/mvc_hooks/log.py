"""What a run reports: one-line records for ``logging``, and the feed that ``mvc watch`` shows.

Named ranges around what mvc does on the training thread are for profilers: torch's sees them as ``record_function``, Nsight Systems as NVTX ranges. ``record_function``
costs several microseconds even where no profiler runs, so a range is entered only while one does, or
in a process that uses CUDA, where an NVTX call without a tool returns at once.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import torch
from torch import distributed
from torch.autograd import profiler

from mvc import MvcError
from mvc_hooks.reports import CommitFailedError, CommitReport, RollbackReport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from mvc.training import RunFeed
    from mvc_hooks.divergence.history import Reading, Verdict
    from mvc_hooks.snapshot.ring import Snapshot


log = logging.getLogger("mvc_hooks")
_MOST = 8
_ADVICE = (
    "; if a resume needs it, pass it as a part (a variable: in a dict), make it a buffer, or give its "
    "owner get_extra_state (a module) or state_dict"
)
_FIRST_TOLD_S, _MUCH_WAITING = 10.0, 0.05
"""Waiting for the writer that is worth a word: seconds, and their share of the time of the run."""


def _speaks(record: logging.LogRecord) -> bool:
    """Return whether this rank says a line: rank 0 speaks for all, others name themselves in errors."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return True
    rank = distributed.get_rank()
    if rank and record.levelno >= logging.ERROR:
        record.msg = f"rank {rank}: {record.msg}"
    return not rank or record.levelno >= logging.ERROR


log.addFilter(_speaks)


class RunLog:
    """Both at once; a failure of either never reaches the training."""

    def __init__(self, feed: RunFeed | None = None) -> None:
        # What ``mvc watch`` follows; None: there is none yet, or this is not rank 0.
        self.feed = feed
        # Each gets kind and fields of every record, on all ranks.
        self.observers: list[Callable[[str, Mapping[str, Any]], None]] = []
        self._has_stopped = False
        self._began_s, self._waited_s, self._told_s = time.perf_counter(), 0.0, _FIRST_TOLD_S

    def _record(self, kind: str, **fields: object) -> None:
        if self.feed is not None:
            self.feed.append(kind, **fields)
        for observe in self.observers:
            observe(kind, fields)

    def announce(self, text: str, *values: object) -> None:
        """Log what everybody should see once, even if ``logging`` shows only warnings."""
        is_unheard = self.feed is not None and not log.hasHandlers()
        log.log(logging.WARNING if is_unheard else logging.INFO, text, *values)

    def start(
        self, step: int, every: int | None, parts: Iterable[str], doubts: Iterable[str] = ()
    ) -> None:
        """The run begins."""
        self.doubt(doubts)
        self._record("start", step=step, every=every, parts=sorted(parts))

    def resume(
        self,
        step: int,
        commit: str,
        seconds: float,
        changes: Sequence[tuple[str, object, object]],
        *,
        tier: str,
    ) -> None:
        """The run was resumed from a commit, whose content a tier had."""
        text = "resumed at step %d from %s in %.2f s, to the bit (commit %s)"
        self.announce(text, step, tier, seconds, commit[:10])
        for item, then, now in changes:
            log.warning("environment: %s was %r, is %r", item, then, now)
        self._record("resume", step=step, commit=commit, tier=tier, seconds=seconds)

    def fall_back(
        self, left: tuple[int | None, str], to: tuple[int | None, str], kept: str | None, why: str
    ) -> None:
        """The tip of the branch cannot be restored: step and commit that were left, and went back to."""
        log.warning(
            "step %s (commit %s) is left for step %s (commit %s), and kept as %s: %s",
            *(left[0], left[1][:10], to[0], to[1][:10], kept, why),
        )
        self._record(
            "rollback",
            step=left[0],
            to_step=to[0],
            to_commit=to[1],
            diverged_branch=kept,
            skipped_batches=0,
            reason=why,
        )

    def doubt(self, texts: Iterable[str]) -> None:
        """Something is probably not meant."""
        for text in texts:
            log.warning("%s", text)

    def missing(self, branch: str, step: int | None) -> None:
        """A branch has no commits, though a run has made one of some step on it."""
        if step is not None:
            log.warning(
                "branch %r was deleted: a run has committed step %d to it, and this one starts at "
                'step 0 ("mvc undo" may bring it back)',
                *(branch, step),
            )

    def hand_over(self, branch: str, step: int) -> None:
        """Another checkpointer of this process takes the branch."""
        log.warning("branch %r is taken over from the checkpointer at step %d", branch, step)

    def failed_end(self, error: Exception) -> None:
        """The run was not closed properly, and only the log can say so; it knows failed commits."""
        if not isinstance(error, CommitFailedError):
            said = error.message if isinstance(error, MvcError) else error
            log.error("the last state is not committed: %s: %s", type(error).__name__, said)

    def lose(self, kept: int, step: int) -> None:
        """The run ends in the middle of the next step, which cannot be committed."""
        log.warning(
            "the run ended in the middle of step %d, so its last commit is that of step %d; a smaller "
            "every= or every_seconds=, or a ring=, loses less",
            *(step + 1, kept),
        )

    def serve(self, urls: Sequence[str]) -> None:
        """Metrics of the run are served, for each rank at its place."""
        if urls:
            more = f" … {urls[-1]} ({len(urls)} ranks)" if len(urls) > 1 else ""
            self.announce("metrics are served at %s%s", urls[0], more)

    def hold(self, summary: str) -> None:
        """What commits of the run hold."""
        self.announce("commits hold %s", summary)

    def miss(self, found: Sequence[str]) -> None:
        """State was found that no commit holds."""
        if found:
            self.doubt([f"in no commit: {'; '.join(found[:_MOST])}{_ADVICE}"])

    def step(self, reading: Reading, lr: float | None, scaler: Mapping[str, float]) -> None:
        """A step was read, and with it what is known of a scaler."""
        loss, grad_norm = reading.loss, reading.grad_norm
        self._record("step", step=reading.step, loss=loss, grad_norm=grad_norm, lr=lr, **scaler)

    def snapshot(self, snapshot: Snapshot) -> None:
        """A state was frozen."""
        stall_s, size = snapshot.stall_s, snapshot.size_bytes
        self._record("snapshot", step=snapshot.step, stall_s=stall_s, bytes=size)

    def commit(self, report: CommitReport) -> None:
        """A commit was made, refused by a gate, or failed."""
        if report.is_refused:
            log.warning("%s", report)
            self._record("skip", step=report.step, reason=report.error)
            return
        if report.commit is None:
            log.error("%s", report)
            self._record("error", text=str(report))
            return
        log.log(logging.WARNING if report.failed_gates else logging.INFO, "%s", report)
        self._record("commit", **asdict(report))
        if report.is_disputed:
            reason = f"{report.agreement}; the commit of step {report.step} cannot become healthy"
            log.warning("replicas: %s", reason)
            self._record("alarm", step=report.step, cause="replicas", reason=reason)

    def skip(self, step: int, policy: str) -> None:
        """A commit was skipped."""
        log.warning("step %d is not committed: the writer is behind (%s)", step, policy)
        self._record("skip", step=step, reason="the writer is behind")

    def wait(self, seconds: float) -> None:
        """A commit waited for the writer; logged when that is long, and again when it has doubled."""
        self._waited_s += seconds
        share = self._waited_s / max(time.perf_counter() - self._began_s, self._waited_s)
        if self._waited_s >= self._told_s and share >= _MUCH_WAITING:
            self._told_s = 2 * self._waited_s
            log.warning(
                "the writer is behind: commits have waited %.0f s for it, %.0f %% of the time; commit "
                'less often, or pass when_behind="skip"',
                *(self._waited_s, 100 * share),
            )

    def alarm(self, verdict: Verdict) -> None:
        """A detector raised an alarm."""
        advice = f"; if the run is healthy: {verdict.advice}" if verdict.advice else ""
        log.warning("alarm at step %d: %s%s", verdict.step, verdict.reason, advice)
        self._record("alarm", step=verdict.step, cause=verdict.cause, reason=verdict.reason)

    def action(self, step: int, text: str) -> None:
        """The ladder answered."""
        log.warning("answer at step %d: %s", step, text)
        self._record("action", step=step, text=text)

    def rollback(self, report: RollbackReport) -> None:
        """The run was rolled back."""
        log.warning("%s", report)
        self._record(
            "rollback",
            step=report.from_step,
            to_step=report.to_step,
            to_commit=report.to_commit,
            diverged_branch=report.diverged_branch,
            skipped_batches=report.skipped_count,
            seconds=report.seconds,
            reason=report.reason,
        )

    def healthy(self, step: int, commit: str) -> None:
        """A commit is marked as healthy."""
        self._record("healthy", step=step, commit=commit)

    def stop(self, step: int, reason: str) -> None:
        """The run ends; the first reason given counts."""
        if not self._has_stopped:
            self._record("stop", step=step, reason=reason)
        self._has_stopped = True

    def close(self) -> None:
        """Write what is left."""
        if self.feed is not None:
            self.feed.close()


_Params = ParamSpec("_Params")
_Result = TypeVar("_Result")


def ranged(name: str) -> Callable[[Callable[_Params, _Result]], Callable[_Params, _Result]]:
    """Return a decorator that gives every call of a function a range of this name."""

    def decorate(function: Callable[_Params, _Result]) -> Callable[_Params, _Result]:
        @functools.wraps(function)
        def call(*args: _Params.args, **kwargs: _Params.kwargs) -> _Result:
            has_cuda = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]  # so in torch
            if not has_cuda and not profiler._is_profiler_enabled:  # noqa: SLF001  there is no public way
                return function(*args, **kwargs)
            with _enter(name, has_cuda=has_cuda):
                return function(*args, **kwargs)

        return call

    return decorate


@contextlib.contextmanager
def _enter(name: str, *, has_cuda: bool) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        if profiler._is_profiler_enabled:  # noqa: SLF001  as above
            stack.enter_context(profiler.record_function(name))
        if has_cuda:
            stack.enter_context(torch.cuda.nvtx.range(name))
        yield
