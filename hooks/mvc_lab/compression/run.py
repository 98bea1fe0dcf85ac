"""What compressing hooks are to the run that they are parts of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc import UsageError
from mvc_lab.compression.hook import Compression
from mvc_lab.compression.stretch import extend

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from mvc_hooks.parts.part import Entry


class CompressedRun:
    """The compressing hooks among the parts of a run.

    Attributes:
        settings: of each hook, by its name; they have to be the same on all ranks.
    """

    def __init__(self, entries: Iterable[Entry]) -> None:
        found = {entry.path: entry.part for entry in entries}
        hooks = {path: one for path, one in found.items() if isinstance(one, Compression)}
        for path, one in hooks.items():
            if not one.is_attached:
                raise UsageError(
                    f"{path[-1]} is a {type(one).__name__} that no DistributedDataParallel has",
                    hint=f"call {path[-1]}.attach(ddp) before the checkpointer",
                )
        self._hooks = list(hooks.values())
        self.settings = {
            str(path[-1]): one.settings | {"extend": one.extend} for path, one in hooks.items()
        }

    def take_longer(self, schedulers: Sequence[object]) -> Iterator[str]:
        """As for ``Compression``."""
        for one in self._hooks:
            yield from one.take_longer(schedulers)

    def extend(self, total: int) -> int:
        """Return how many steps the run takes that was to take ``total``."""
        return extend(total) if any(one.is_extended for one in self._hooks) else total

    def read_metrics(self) -> dict[str, float]:
        """Return the ratio really sent, of several hooks the first's, once there is one."""
        ratios = (one.ratio for one in self._hooks)
        return next(({"compression": ratio} for ratio in ratios if ratio is not None), {})


def check_compressions(found: Sequence[dict[str, dict[str, object]]]) -> None:
    """Check that all ranks compress in the same way."""
    for rank, one in enumerate(found):
        if one != found[0]:
            raise UsageError(
                f"rank 0 compresses gradients by {_name(found[0])}, and rank {rank} by {_name(one)}",
                hint="attach the same compression on every rank",
            )


def _name(settings: dict[str, dict[str, object]]) -> str:
    texts = []
    for one in settings.values():
        values = ", ".join(f"{name}={value}" for name, value in one.items() if name != "kind")
        texts.append(f"{one['kind']}({values})")
    return " and ".join(texts) or "nothing"
