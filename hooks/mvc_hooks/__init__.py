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
    from mvc_hooks.behaviour.comparing import compare_modules, compare_outputs
    from mvc_hooks.behaviour.loading import load_weights
    from mvc_hooks.behaviour.modules import ModuleDifference, ModuleReport
    from mvc_hooks.behaviour.outputs import OutputReport
    from mvc_hooks.checkpointer import Checkpointer
    from mvc_hooks.consistency.checking import Consistency
    from mvc_hooks.consistency.reports import ConsistencyReport, Deviation, InconsistentError
    from mvc_hooks.data.loader import ConsistentDataLoader
    from mvc_hooks.divergence.finite import NotFinite
    from mvc_hooks.divergence.history import History, Reading, Verdict
    from mvc_hooks.divergence.ladder import both, lr_scale, rollback, skip_step, stop
    from mvc_hooks.divergence.scale import ScaleCollapse
    from mvc_hooks.divergence.spike import Spike
    from mvc_hooks.divergence.trend import Trend
    from mvc_hooks.divergence.watch import as_detector, default_detectors
    from mvc_hooks.environment import read_environment
    from mvc_hooks.handover import capture, restore
    from mvc_hooks.monitor.monitor import Monitor
    from mvc_hooks.monitor.thresholds import Thresholds
    from mvc_hooks.parts.restoring import InexactRestoreError
    from mvc_hooks.replay.replaying import replay_steps
    from mvc_hooks.replay.report import ReplayReport
    from mvc_hooks.reports import CommitFailedError, CommitReport, DivergedError, RollbackReport
    from mvc_hooks.run.audit import Audit
    from mvc_hooks.snapshot.ring import Ring
    from mvc_hooks.training import StepRun, Training

__all__ = [
    "Audit",
    "Checkpointer",
    "CommitFailedError",
    "CommitReport",
    "Consistency",
    "ConsistencyReport",
    "ConsistentDataLoader",
    "Deviation",
    "DivergedError",
    "History",
    "InconsistentError",
    "InexactRestoreError",
    "ModuleDifference",
    "ModuleReport",
    "Monitor",
    "NotFinite",
    "OutputReport",
    "Reading",
    "ReplayReport",
    "Ring",
    "RollbackReport",
    "ScaleCollapse",
    "Spike",
    "StepRun",
    "Thresholds",
    "Training",
    "Trend",
    "Verdict",
    "as_detector",
    "both",
    "capture",
    "compare_modules",
    "compare_outputs",
    "default_detectors",
    "load_weights",
    "lr_scale",
    "read_environment",
    "replay_steps",
    "restore",
    "rollback",
    "skip_step",
    "stop",
]


_find_name = lazy_names(
    __name__,
    {
        "mvc_hooks.behaviour.comparing": "compare_modules compare_outputs",
        "mvc_hooks.behaviour.loading": "load_weights",
        "mvc_hooks.behaviour.modules": "ModuleDifference ModuleReport",
        "mvc_hooks.behaviour.outputs": "OutputReport",
        "mvc_hooks.checkpointer": "Checkpointer",
        "mvc_hooks.consistency.checking": "Consistency",
        "mvc_hooks.consistency.reports": "ConsistencyReport Deviation InconsistentError",
        "mvc_hooks.data.loader": "ConsistentDataLoader",
        "mvc_hooks.divergence.finite": "NotFinite",
        "mvc_hooks.divergence.history": "History Reading Verdict",
        "mvc_hooks.divergence.ladder": "both lr_scale rollback skip_step stop",
        "mvc_hooks.divergence.scale": "ScaleCollapse",
        "mvc_hooks.divergence.spike": "Spike",
        "mvc_hooks.divergence.trend": "Trend",
        "mvc_hooks.divergence.watch": "as_detector default_detectors",
        "mvc_hooks.environment": "read_environment",
        "mvc_hooks.handover": "capture restore",
        "mvc_hooks.monitor.monitor": "Monitor",
        "mvc_hooks.monitor.thresholds": "Thresholds",
        "mvc_hooks.parts.restoring": "InexactRestoreError",
        "mvc_hooks.replay.replaying": "replay_steps",
        "mvc_hooks.replay.report": "ReplayReport",
        "mvc_hooks.reports": "CommitFailedError CommitReport DivergedError RollbackReport",
        "mvc_hooks.run.audit": "Audit",
        "mvc_hooks.snapshot.ring": "Ring",
        "mvc_hooks.training": "StepRun Training",
    },
)


def __getattr__(name: str) -> object:
    try:
        return _find_name(name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError("mvc_hooks needs torch: pip install 'mvc-models[torch]'") from error
