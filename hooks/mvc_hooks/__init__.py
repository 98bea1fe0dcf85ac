"""The live training run ⇄ a repository; torch lives here.

from mvc_hooks import Checkpointer

ckpt = Checkpointer("runs/gpt", model=model, optimizer=optimizer, dataloader=loader, every=1000)
for step in ckpt.steps(100_000):
    loss = train_step(ckpt.next_batch())
    ckpt.step(loss=loss)

Names are loaded on first use, so that the writer process, which needs no torch, does not load it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mvc_hooks.checkpointer import Checkpointer
    from mvc_hooks.divergence.detectors import NotFinite, Spike, as_detector, default_detectors
    from mvc_hooks.divergence.history import History
    from mvc_hooks.divergence.ladder import both, lr_scale, rollback, skip_step, stop
    from mvc_hooks.divergence.trend import Trend
    from mvc_hooks.divergence.values import Reading, Verdict
    from mvc_hooks.environment import read_environment
    from mvc_hooks.errors import CommitFailedError, DivergedError
    from mvc_hooks.handover import capture, restore
    from mvc_hooks.parts.restoring import InexactRestoreError
    from mvc_hooks.replay.replaying import replay_steps
    from mvc_hooks.replay.report import ReplayReport
    from mvc_hooks.reports import CommitReport, RollbackReport
    from mvc_hooks.snapshot.ring import Ring
    from mvc_hooks.training import StepRun, Training

_HOMES = {
    "Checkpointer": "mvc_hooks.checkpointer",
    "CommitFailedError": "mvc_hooks.errors",
    "CommitReport": "mvc_hooks.reports",
    "DivergedError": "mvc_hooks.errors",
    "History": "mvc_hooks.divergence.history",
    "InexactRestoreError": "mvc_hooks.parts.restoring",
    "NotFinite": "mvc_hooks.divergence.detectors",
    "Reading": "mvc_hooks.divergence.values",
    "ReplayReport": "mvc_hooks.replay.report",
    "Ring": "mvc_hooks.snapshot.ring",
    "RollbackReport": "mvc_hooks.reports",
    "Spike": "mvc_hooks.divergence.detectors",
    "StepRun": "mvc_hooks.training",
    "Training": "mvc_hooks.training",
    "Trend": "mvc_hooks.divergence.trend",
    "Verdict": "mvc_hooks.divergence.values",
    "as_detector": "mvc_hooks.divergence.detectors",
    "both": "mvc_hooks.divergence.ladder",
    "capture": "mvc_hooks.handover",
    "default_detectors": "mvc_hooks.divergence.detectors",
    "lr_scale": "mvc_hooks.divergence.ladder",
    "read_environment": "mvc_hooks.environment",
    "replay_steps": "mvc_hooks.replay.replaying",
    "restore": "mvc_hooks.handover",
    "rollback": "mvc_hooks.divergence.ladder",
    "skip_step": "mvc_hooks.divergence.ladder",
    "stop": "mvc_hooks.divergence.ladder",
}

__all__ = [
    "Checkpointer",
    "CommitFailedError",
    "CommitReport",
    "DivergedError",
    "History",
    "InexactRestoreError",
    "NotFinite",
    "Reading",
    "ReplayReport",
    "Ring",
    "RollbackReport",
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
    "replay_steps",
    "restore",
    "rollback",
    "skip_step",
    "stop",
]


def __getattr__(name: str) -> object:
    """Load a public name on first use."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'mvc_hooks' has no attribute {name!r}")
    try:
        value: object = getattr(importlib.import_module(home), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError("mvc_hooks needs torch: pip install 'mvc-models[torch]'") from error
    globals()[name] = value
    return value
