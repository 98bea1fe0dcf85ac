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
    from mvc_hooks.checkpointer import Checkpointer as Checkpointer
    from mvc_hooks.divergence.history import History as History
    from mvc_hooks.divergence.history import Reading as Reading
    from mvc_hooks.divergence.history import Verdict as Verdict
    from mvc_hooks.divergence.ladder import both as both
    from mvc_hooks.divergence.ladder import lr_scale as lr_scale
    from mvc_hooks.divergence.ladder import rollback as rollback
    from mvc_hooks.divergence.ladder import skip_step as skip_step
    from mvc_hooks.divergence.ladder import stop as stop
    from mvc_hooks.divergence.scale import ScaleCollapse as ScaleCollapse
    from mvc_hooks.divergence.spike import NotFinite as NotFinite
    from mvc_hooks.divergence.spike import Spike as Spike
    from mvc_hooks.divergence.trend import Trend as Trend
    from mvc_hooks.extension import Extension as Extension
    from mvc_hooks.handover import capture as capture
    from mvc_hooks.handover import restore as restore
    from mvc_hooks.parts.restoring import InexactRestoreError as InexactRestoreError
    from mvc_hooks.reports import CommitFailedError as CommitFailedError
    from mvc_hooks.reports import CommitReport as CommitReport
    from mvc_hooks.reports import DivergedError as DivergedError
    from mvc_hooks.reports import RollbackReport as RollbackReport
    from mvc_hooks.run.audit import Audit as Audit
    from mvc_hooks.snapshot.ring import Ring as Ring
    from mvc_hooks.training import StepRun as StepRun
    from mvc_hooks.training import Training as Training
else:  # imported on first use
    __getattr__, __all__ = lazy_names(
        __name__,
        {
            "mvc_hooks.checkpointer": "Checkpointer",
            "mvc_hooks.divergence.history": "History Reading Verdict",
            "mvc_hooks.divergence.ladder": "both lr_scale rollback skip_step stop",
            "mvc_hooks.divergence.scale": "ScaleCollapse",
            "mvc_hooks.divergence.spike": "NotFinite Spike",
            "mvc_hooks.divergence.trend": "Trend",
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
