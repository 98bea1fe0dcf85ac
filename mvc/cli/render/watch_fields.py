"""A training run as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.cli.render.text import iso_date

if TYPE_CHECKING:
    from mvc.runs.view import RunCommit, RunRollback, RunView


def run_fields(view: RunView) -> dict[str, object]:
    """Return a run as ``--json`` prints it."""
    return {
        "branch": view.branch,
        "alive": view.alive,
        "stopped": view.stopped,
        "pid": view.pid,
        "host": view.host,
        "started": _date(view.started_s),
        "updated": _date(view.updated_s),
        "step": view.step,
        "total": view.total,
        "every": view.every,
        "steps_per_s": view.steps_per_s,
        "loss": view.loss,
        "grad_norm": view.grad_norm,
        "lr": view.lr,
        "stall_s": view.stall_s,
        "queue_depth": view.queue_depth,
        "losses": {
            "steps": [step for step, _ in view.losses],
            "values": [loss for _, loss in view.losses],
        },
        "commits": [_commit_fields(one) for one in view.commits],
        "alarms": [
            {"step": one.step, "time": _date(one.time_s), "cause": one.cause, "reason": one.reason}
            for one in view.alarms
        ],
        "rollbacks": [_rollback_fields(one) for one in view.rollbacks],
        **{
            name: [
                {"kind": one.kind, "step": one.step, "time": _date(one.time_s), "text": one.text}
                for one in events
            ]
            for name, events in (("events", view.events), ("errors", view.errors))
        },
        "damaged_lines": view.damaged_lines,
    }


def _commit_fields(one: RunCommit) -> dict[str, object]:
    return {
        "step": one.step,
        "time": _date(one.time_s),
        "commit": one.commit or None,
        "subject": one.subject,
        "stall_s": one.stall_s,
        "write_s": one.write_s,
        "written_bytes": one.written_bytes,
        "plain_bytes": one.plain_bytes,
        "queue_depth": one.queue_depth,
        "healthy": one.is_healthy,
        "abandoned": one.is_abandoned,
    }


def _rollback_fields(one: RunRollback) -> dict[str, object]:
    return {
        "step": one.step,
        "to_step": one.to_step,
        "time": _date(one.time_s),
        "to_commit": one.to_commit or None,
        "diverged_branch": one.diverged_branch or None,
        "skipped_batches": one.skipped_batches,
        "seconds": one.seconds,
        "reason": one.reason,
    }


def _date(time_s: float | None) -> str | None:
    return None if time_s is None else iso_date(int(time_s), 0)
