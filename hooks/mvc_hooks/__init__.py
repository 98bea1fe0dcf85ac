"""The live training run ⇄ a repository; torch lives here.

from mvc_hooks import Checkpointer

ckpt = Checkpointer("runs/gpt", model=model, optimizer=optimizer, dataloader=loader, every=1000)
for step in ckpt.steps(100_000):
    loss = train_step(ckpt.next_batch())
    ckpt.step(loss=loss)

Names are loaded on first use, so that the writer process, which needs no torch, does not load it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.lazy import lazy_names

if TYPE_CHECKING:
    from mvc_hooks.checkpointer import Checkpointer
    from mvc_hooks.divergence.finite import NotFinite
    from mvc_hooks.divergence.history import History, Reading, Verdict
    from mvc_hooks.divergence.ladder import both, lr_scale, rollback, skip_step, stop
    from mvc_hooks.divergence.scale import ScaleCollapse
    from mvc_hooks.divergence.spike import Spike
    from mvc_hooks.divergence.trend import Trend
    from mvc_hooks.divergence.watch import as_detector, default_detectors
    from mvc_hooks.environment import read_environment
    from mvc_hooks.extension import Extension
    from mvc_hooks.handover import capture, restore
    from mvc_hooks.parts.restoring import InexactRestoreError
    from mvc_hooks.reports import CommitFailedError, CommitReport, DivergedError, RollbackReport
    from mvc_hooks.run.audit import Audit
    from mvc_hooks.snapshot.ring import Ring
    from mvc_hooks.training import StepRun, Training

__all__ = [
    "Audit",
    "Checkpointer",
    "CommitFailedError",
    "CommitReport",
    "DivergedError",
    "Extension",
    "History",
    "InexactRestoreError",
    "NotFinite",
    "Reading",
    "Ring",
    "RollbackReport",
    "ScaleCollapse",
    "Spike",
    "StepRun",
    "Training",
    "Trend",
    "Verdict",
    "as_detector",
    "both",
    "capture",
    "default_detectors",
    "lr_scale",
    "read_environment",
    "restore",
    "rollback",
    "skip_step",
    "stop",
]


__getattr__, _ = lazy_names(
    __name__,
    {
        "mvc_hooks.checkpointer": "Checkpointer",
        "mvc_hooks.divergence.finite": "NotFinite",
        "mvc_hooks.divergence.history": "History Reading Verdict",
        "mvc_hooks.divergence.ladder": "both lr_scale rollback skip_step stop",
        "mvc_hooks.divergence.scale": "ScaleCollapse",
        "mvc_hooks.divergence.spike": "Spike",
        "mvc_hooks.divergence.trend": "Trend",
        "mvc_hooks.divergence.watch": "as_detector default_detectors",
        "mvc_hooks.environment": "read_environment",
        "mvc_hooks.extension": "Extension",
        "mvc_hooks.handover": "capture restore",
        "mvc_hooks.parts.restoring": "InexactRestoreError",
        "mvc_hooks.reports": "CommitFailedError CommitReport DivergedError RollbackReport",
        "mvc_hooks.run.audit": "Audit",
        "mvc_hooks.snapshot.ring": "Ring",
        "mvc_hooks.training": "StepRun Training",
    },
    needs="torch",
)
