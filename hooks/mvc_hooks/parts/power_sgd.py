"""The state of DDP's PowerSGD communication hook.

Its memory belongs to *buckets*, which DDP rebuilds after its first backward pass, in the order in
which gradients arrived. A restored state compresses from its first step on, so in a fresh process
it would meet the buckets from before that: if sizes differ, it fails; if they do not, it adds the
errors of one parameter to another. So the hook must have run once in this process before a state
with memory is restored, as its ``iter`` shows. ``ranks.buckets`` sees to that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from mvc import ConflictError
from mvc_hooks.parts.part import Part
from mvc_hooks.parts.tree import (
    ABSENT,
    Difference,
    compare_arrays,
    compare_keys,
    find_at,
    format_path,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mvc_hooks.parts.tree import Steps

_MEMORY = ("error_dict", "p_memory_dict", "q_memory_dict")


class PowerSgdPart(Part):
    """The state of DDP's PowerSGD hook, which has no ``state_dict``; the process group stays."""

    _LEFT = ("process_group",)

    def __init__(self, state: Any) -> None:
        self._state = state

    def capture(self) -> dict[str, object]:
        """Return all of its fields, and the state of its generator."""
        names = [name for name in type(self._state).__slots__ if name not in self._LEFT]
        fields = {name: getattr(self._state, name) for name in names}
        return fields | {"rng": self._state.rng.get_state(legacy=False)}

    def compare(self, live: Any, stored: Any, path: Steps) -> Iterator[Difference]:
        """Compare the fields; there must be no stored memory before DDP has made its final buckets."""
        has_memory = any(find_at(stored, (name,)) not in ({}, ABSENT) for name in _MEMORY)
        if has_memory and find_at(live, ("iter",)) == 0:
            raise ConflictError(
                f"{format_path(path)} is of buckets that DistributedDataParallel has not made yet",
                hint="make it before the checkpointer, or pass warm_up=..., which runs one forward and "
                "backward pass",
            )
        yield from compare_keys(live, stored, path)
        for difference in compare_arrays(live, stored, path):
            key = difference.path[len(path) :]
            if (difference.live is not None and difference.stored is not None) or not str(
                key[0]
            ).endswith("_dict"):
                yield difference

    def targets(self, captured: Any, stored: Any) -> object:  # noqa: ARG002  what fits is picked
        """Return the buckets' memory."""
        return {key: value for key, value in captured.items() if key.endswith("_dict")}

    def restore(self, stored: Any) -> None:
        """Set all fields; new memory of buckets goes where the gradients are."""
        live = self.capture()
        for name, value in stored.items():
            if name == "rng":
                self._state.rng.set_state(value)
            elif isinstance(value, dict):
                mine = getattr(self._state, name)
                placed = {key: self._place(item, live, name, key) for key, item in value.items()}
                mine.clear()
                mine.update(placed)
            else:
                setattr(self._state, name, value)

    def _place(self, value: Any, live: object, name: str, key: object) -> Any:
        mine = find_at(live, (name, key))
        if isinstance(mine, torch.Tensor):
            return value.to(mine.device)
        name_group = getattr(self._state.process_group, "name", None)
        is_nccl = name_group is not None and "nccl" in str(name_group()).lower()
        return value.to("cuda") if is_nccl else value
