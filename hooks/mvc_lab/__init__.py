"""What is asked of a run beside keeping it: are its ranks the same, what does it measure, can it be trained again?

from mvc_hooks import Checkpointer
from mvc_lab import Consistency, Monitor

ckpt = Checkpointer("runs/gpt", model=ddp, optimizer=optimizer, consistency=Consistency(), monitor=Monitor(port=9400))

Compressed gradients are in ``mvc_lab.compression``. Names are loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.lazy import lazy_names

if TYPE_CHECKING:
    from mvc_lab.behaviour.comparing import compare_modules as compare_modules
    from mvc_lab.behaviour.comparing import compare_outputs as compare_outputs
    from mvc_lab.behaviour.loading import load_weights as load_weights
    from mvc_lab.behaviour.modules import ModuleDifference as ModuleDifference
    from mvc_lab.behaviour.modules import ModuleReport as ModuleReport
    from mvc_lab.behaviour.outputs import OutputReport as OutputReport
    from mvc_lab.consistency.checking import Consistency as Consistency
    from mvc_lab.consistency.reports import ConsistencyReport as ConsistencyReport
    from mvc_lab.consistency.reports import Deviation as Deviation
    from mvc_lab.consistency.reports import InconsistentError as InconsistentError
    from mvc_lab.monitor.monitor import Monitor as Monitor
    from mvc_lab.monitor.thresholds import Thresholds as Thresholds
    from mvc_lab.replay.replaying import replay_steps as replay_steps
    from mvc_lab.replay.report import ReplayReport as ReplayReport
else:  # imported on first use
    __getattr__, __all__ = lazy_names(
        __name__,
        {
            "mvc_lab.behaviour.comparing": "compare_modules compare_outputs",
            "mvc_lab.behaviour.loading": "load_weights",
            "mvc_lab.behaviour.modules": "ModuleDifference ModuleReport",
            "mvc_lab.behaviour.outputs": "OutputReport",
            "mvc_lab.consistency.checking": "Consistency",
            "mvc_lab.consistency.reports": "ConsistencyReport Deviation InconsistentError",
            "mvc_lab.monitor.monitor": "Monitor",
            "mvc_lab.monitor.thresholds": "Thresholds",
            "mvc_lab.replay.replaying": "replay_steps",
            "mvc_lab.replay.report": "ReplayReport",
        },
        needs="torch",
    )
