"""What compressing hooks add to the run that they are parts of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.optim.lr_scheduler import LRScheduler

from mvc import UsageError
from mvc_hooks.extension import Contribution, Extension
from mvc_hooks.parts.tree import walk_leaves
from mvc_lab.compression.hook import Compression
from mvc_lab.compression.stretch import extend

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mvc_hooks.extension import Host
    from mvc_hooks.parts.part import Entry


class CompressedRun(Extension):
    """The compressing hooks among the parts of a run."""

    name = "compression"

    def __init__(self, entries: Sequence[Entry], _: Mapping[str, object]) -> None:
        """Take the hooks among the parts, all of which must be attached; no option is for it."""
        self._hooks: list[Compression] = []
        for entry in entries:
            if isinstance(entry.part, Compression):
                name = entry.path[-1]
                if not entry.part.is_attached:
                    raise UsageError(
                        f"{name} is a {type(entry.part).__name__} that no DistributedDataParallel has",
                        hint=f"call {name}.attach(ddp) before the checkpointer",
                    )
                self._hooks.append(entry.part)
        self._told: list[str] = []

    def agree(self) -> str:
        """Return kinds and settings of the hooks."""
        texts = []
        for hook in self._hooks:
            settings = hook.settings | {"extend": hook.extend}
            kind = settings.pop("kind")
            texts.append(
                f"{kind}({', '.join(f'{name}={value}' for name, value in settings.items())})"
            )
        return " and ".join(texts)

    def open(self, host: Host) -> None:
        """Know the schedules of the run."""
        self._host = host

    def begin(self) -> None:
        """Stretch the schedules: before a resume, since those of the commit were stretched, too."""
        self._told = list(self._take_longer())

    def start(self) -> None:
        """Stretch what is new since the resume, and tell what was done."""
        self._host.log.doubt(dict.fromkeys([*self._told, *self._take_longer()]))

    def _take_longer(self) -> Iterator[str]:
        leaves = [leaf for _, leaf in walk_leaves(self._host.objects)]
        schedulers = [leaf for leaf in leaves if isinstance(leaf, LRScheduler)]
        for hook in self._hooks:
            yield from hook.take_longer(schedulers)

    def plan_steps(self, total: int) -> int:
        """Take 10 % more steps, if a hook asks for that."""
        return extend(total) if any(hook.is_extended for hook in self._hooks) else total

    def describe(self, step: int) -> Contribution:  # noqa: ARG002  of every commit
        """Tell the ratio really sent, of several hooks the first's, once there is one."""
        ratios = (hook.ratio for hook in self._hooks)
        ratio = next((ratio for ratio in ratios if ratio is not None), None)
        return Contribution(metrics={} if ratio is None else {"compression": ratio})


make_extension = CompressedRun
