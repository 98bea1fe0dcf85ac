"""Consistency: a rotating share of what the ranks hold alike is compared while a run goes on.

    check = Consistency(every=100)
    ckpt = Checkpointer("runs/gpt", model=model, optimizer=optimizer, consistency=check)

Or alone, in a loop of one's own; every rank does the same:

    check = Consistency(every=100).watch(model=model, optimizer=optimizer)
    for batch in batches:
        train_step(batch)
        check.step()
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import torch

from mvc import UsageError
from mvc_hooks.checks import Requirement, check_count, sequence
from mvc_hooks.extension import Extension, Host
from mvc_hooks.log import RunLog
from mvc_hooks.parts.data import DataPart
from mvc_hooks.parts.make import make_parts
from mvc_hooks.parts.module import ModulePart
from mvc_hooks.parts.optimizer import OptimizerPart
from mvc_hooks.parts.part import flatten_parts
from mvc_hooks.parts.restoring import capture_parts, from_values, restore_parts
from mvc_hooks.parts.tree import find_changes, format_path, map_tensors, to_local, walk_leaves
from mvc_hooks.ranks.group import Ranks
from mvc_hooks.run.extensions import check_alike
from mvc_lab.consistency.digest import compare_bits, find_index
from mvc_lab.consistency.held import SHARE_BYTES
from mvc_lab.consistency.reports import DEFAULT, Answers, ConsistencyReport, Deviation
from mvc_lab.consistency.watching import ConsistencySettings, Findings, Watching

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from mvc_hooks.parts.part import Part
    from mvc_hooks.parts.tree import Steps
    from mvc_hooks.reports import RollbackReport
    from mvc_lab.consistency.reports import Answer, Cause

_TOLERANCE = Requirement(
    lambda value: type(value) in (int, float) and value >= 0, "not a number from 0 on"
)
_IGNORE = sequence(str, "patterns", 'ignore=["model.head.*"]')


class Consistency(Findings, Extension):
    """Compares parameters, buffers and optimizer state of ranks that hold the same.

    Args:
        every: everything is compared once in this many steps.
        answers: what to do about a difference, the first that is possible: ``resync`` from
            ranks that are known to be right, ``rollback`` to a commit from before it (with a
            ``Checkpointer``), ``report`` and go on, or ``stop``.
        stop_after: this many answers within 2,000 steps are given, then the run is stopped;
            None: no limit.
        tolerance: a difference up to here is called small in reports.
        ignore: patterns of names (``model.head.*``) that are not compared.
        share_bytes: the least that is compared at once; smaller states are compared whole.

    Raises:
        UsageError: a setting that makes no sense.
    """

    name = "consistency"

    def __init__(
        self,
        every: int = 100,
        *,
        answers: Sequence[Answer] = DEFAULT,
        stop_after: int | None = 3,
        tolerance: float = 1e-5,
        ignore: Sequence[str] = (),
        share_bytes: int = SHARE_BYTES,
    ) -> None:
        hint = "every=100 compares everything once in 100 steps"
        check_count("every of Consistency", every, 1, hint=hint)
        check_count("share_bytes of Consistency", share_bytes, 1)
        _TOLERANCE.check("tolerance of Consistency", tolerance)
        _IGNORE.check("ignore", ignore)
        self._settings = ConsistencySettings(
            every, Answers(answers, stop_after), float(tolerance), tuple(ignore), share_bytes
        )
        self._spelled = f"every={every}, answers={tuple(answers)}, stop_after={stop_after}, "
        self._spelled += f"ignore={tuple(ignore)}, share_bytes={share_bytes}"
        super().__init__()
        self._watching: Watching | None = None
        self._host: Host | None = None

    # Alone.

    def watch(self, **parts: object) -> Self:
        """Begin to compare these parts: models, optimizers, dicts and lists of them.

        Every rank must call it.

        Raises:
            UsageError: no model and no optimizer, ranks with other settings, or it already
                watches a run.
        """
        host = Host(parts, make_parts(parts), Ranks(), RunLog())
        check_alike(host.ranks, [self])
        self.open(host)
        self.start()
        return self

    def step(self) -> ConsistencyReport | None:
        """Say that a step is complete, after ``optimizer.step()``; every rank must call it.

        Returns:
            A report if a check found a difference; the ranks are the same again if its answer is
            ``resync``.

        Raises:
            InconsistentError: the answer is to stop.
            UnsupportedError: the ranks do not train one model; said in the first two steps.
        """
        watching, known = self._get_watching(), self.mismatches
        watching.look(watching.next_step)
        return self.reports[-1] if self.mismatches > known else None

    def redo(self, step: Callable[[], object]) -> ConsistencyReport | None:
        """Do a whole step twice from the same state, and compare every bit; every rank must call it.

        It finds what replicas cannot see: a gradient that is computed wrong before the collective
        makes all ranks wrong alike. Parts and random numbers are put back in between, data is not:
        ``step`` uses a batch that it has. Both together are one step. On a device it needs
        deterministic algorithms.

        Returns:
            A report if a rank came to other bits; the parts are as after the second time.
        """
        watching = self._get_watching()
        # Replicas cannot see what one of them gets wrong before the gradients are averaged, since all of them
        # take the same wrong average. The step that is done again does.
        parts = {
            name: part for name, part in watching.parts.items() if not isinstance(part, DataPart)
        }
        start = _copy(parts)
        step()
        first = _copy(parts)
        restore_parts(from_values(start), parts)
        step()
        ranks, now = watching.host.ranks, capture_parts(parts)
        mine = list(_list_deviations(find_changes(now, first), ranks.rank))
        deviations = [deviation for rank in ranks.exchange(mine) for deviation in rank]
        if not deviations:
            return None
        tensors = [leaf for _, leaf in walk_leaves(now) if isinstance(leaf, torch.Tensor)]
        is_exact = torch.are_deterministic_algorithms_enabled() or all(
            tensor.device.type == "cpu" for tensor in tensors
        )
        reason = "the same step, done again from the same state, gave other bits"
        if not is_exact:
            reason += "; kernels of the device need not be deterministic (torch.use_deterministic_algorithms)"
        names = tuple(dict.fromkeys(deviation.tensor for deviation in deviations))
        cause: Cause = "compute" if is_exact else "unknown"
        tolerance = self._settings.tolerance
        report = ConsistencyReport(
            watching.next_step, cause, reason, "report", tuple(deviations), names, tolerance
        )
        watching.note(report)
        return report

    def _get_watching(self) -> Watching:
        if self._watching is None:
            raise UsageError(
                "nothing is watched", hint="check.watch(model=model, optimizer=optimizer)"
            )
        return self._watching

    def remove(self) -> None:
        """Take all hooks off; it can watch other parts then."""
        self.close()

    # In a run.

    def agree(self) -> str:
        """Return the settings in words."""
        return self._spelled

    def open(self, host: Host) -> None:
        """Check that there is something to compare.

        Raises:
            UsageError: as for ``watch``.
        """
        if self._host is not None:
            raise UsageError(
                "this Consistency already watches a run",
                hint="make one for each run, or remove() it",
            )
        kinds = (ModulePart, OptimizerPart)
        if not any(isinstance(entry.part, kinds) for entry in flatten_parts(host.parts)):
            raise UsageError("no model and no optimizer to compare", hint="pass model=...")
        self._host = host

    def start(self) -> None:
        """Begin to compare the parts."""
        host = self._host
        assert host is not None
        if host.ranks.is_alone:
            host.log.doubt(["consistency: one process has nothing to be compared with"])
        self._watching = Watching(self._settings, self, host)

    def check_step(self, step: int) -> RollbackReport | None:
        """Compare what is due.

        Raises:
            InconsistentError: the answer is to stop.
        """
        return self._get_watching().look(step)

    def close(self) -> None:
        """Take all hooks off."""
        if self._watching is not None:
            self._watching.remove()
        self._watching = self._host = None


def _copy(parts: Mapping[str, Part]) -> dict[str, Any]:
    return map_tensors(capture_parts(parts), lambda tensor: tensor.detach().clone())  # type: ignore[no-any-return]


def _list_deviations(changes: Iterable[tuple[Steps, Any, Any]], rank: int) -> Iterator[Deviation]:
    for path, live, before in changes:
        name = format_path(path)
        if not isinstance(live, torch.Tensor) or not isinstance(before, torch.Tensor):
            yield Deviation(name, (rank,), None, (), 0.0, 0, 0)
            continue
        ours, theirs = to_local(live.detach()).cpu(), to_local(before.detach()).cpu()
        bits = compare_bits(ours, theirs)
        index = () if bits.first is None else find_index(bits.first, ours.shape)
        yield Deviation(name, (rank,), None, index, bits.max_delta, bits.bits, bits.elements)
