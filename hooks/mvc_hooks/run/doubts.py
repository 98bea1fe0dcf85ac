"""What is probably not meant: said once, in one line, and never about an ordinary loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.optim.lr_scheduler import LRScheduler

from mvc_hooks.parts.optimizer import OptimizerPart, index_parameters
from mvc_hooks.parts.part import flatten_parts
from mvc_hooks.parts.tree import format_path, locate, walk_leaves
from mvc_hooks.parts.value import StatefulPart, ValuePart

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch import nn
    from torch.optim import Optimizer

    from mvc_hooks.parts.part import Part
    from mvc_hooks.parts.tree import Steps

HALF_STEP = (
    "step() came before backward(): it commits a step that is half done, whose batch a resume leaves "
    "out; call it after optimizer.step()"
)
STRAY_LOADER = (
    "a DataLoader is being iterated, but the checkpointer was given none: after a resume it starts "
    "from its beginning; pass dataloader=... and draw the batches with next_batch()"
)


def doubt_parts(
    leaves: Sequence[tuple[Steps, object]],
    modules: Sequence[nn.Module],
    optimizers: Mapping[Optimizer, Steps],
    parts: Mapping[str, Part],
) -> Iterator[str]:
    """Say what the parts of a run (as objects, and as parts) seem to lack."""
    trained = [param for module in modules for param in module.parameters()]
    steps = any(hasattr(one, "step") for _, one in leaves if not isinstance(one, LRScheduler))
    if not steps and any(param.requires_grad for param in trained):
        yield (
            "no optimizer was passed: if one trains the model, its state is in no commit, and a "
            "resume begins with a fresh one; pass optimizer=..."
        )
    inside = {id(param) for param in trained}
    for optimizer, path in optimizers.items():
        params = list(index_parameters(optimizer).values())
        others = [param for param in params if id(param) not in inside]
        held = _locate_values(parts) if others else set()
        lost = [param for param in others if locate(param) not in held]
        if lost and len(lost) == len(params) and modules:
            yield (
                f"{format_path(path)} steps no parameter of any model that was passed: it belongs to "
                "another model, or the model was made anew after it"
            )
        elif lost:
            yield (
                f"{format_path(path)} steps {len(lost)} of its {len(params)} parameters in no part: "
                "their values are in no commit; pass them, or their module"
            )


def _locate_values(parts: Mapping[str, Part]) -> set[object]:
    """Return where the tensors of values, objects and optimizers lie; None for empty ones."""
    kinds = (ValuePart, StatefulPart, OptimizerPart)
    states = [one.part.capture() for one in flatten_parts(parts) if isinstance(one.part, kinds)]
    tensors = (leaf for _, leaf in walk_leaves(states) if isinstance(leaf, torch.Tensor))
    return {None, *map(locate, tensors)}
