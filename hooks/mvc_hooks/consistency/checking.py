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

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from mvc import UnsupportedError, UsageError
from mvc_hooks.consistency.answers import DEFAULT, Answers
from mvc_hooks.consistency.digest import fold
from mvc_hooks.consistency.held import Holdings, list_held, list_optimizers
from mvc_hooks.consistency.inquiry import Inquiry
from mvc_hooks.consistency.learning import LOOKS, Learned
from mvc_hooks.consistency.plan import SHARE_BYTES, Share, Slice, cut_shares, find_due
from mvc_hooks.consistency.reports import ConsistencyReport, InconsistentError
from mvc_hooks.consistency.sight import Before, Sight, keep_before, see
from mvc_hooks.consistency.twice import compare_twice
from mvc_hooks.divergence.history import Verdict, check_count
from mvc_hooks.parts.make import make_parts
from mvc_hooks.ranks.group import Ranks
from mvc_hooks.run.log import RunLog

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch.optim import Optimizer

    from mvc import Repo
    from mvc_hooks.consistency.reports import Answer
    from mvc_hooks.consistency.verdict import Trial
    from mvc_hooks.parts.part import Part
    from mvc_hooks.reports import RollbackReport

_FORM_BYTES, _DIGEST_BYTES = 8, 24
_MODELS = (
    "every rank trains one model: wrap it in DistributedDataParallel, or shard it with fully_shard or "
    "parallelize_module"
)


@dataclass(frozen=True, slots=True, eq=False)
class Host:
    """What a run lends to its check.

    Attributes:
        find_commit: returns the repository and its newest commit of the run; every rank calls it.
        roll_back: takes the run back to a commit of that step or before, for a reason.
        note_bad: notes that the state of a step was not sound.
    """

    ranks: Ranks
    log: RunLog
    find_commit: Callable[[], tuple[Repo, str] | None] = lambda: None
    roll_back: Callable[[int, str], RollbackReport] | None = None
    note_bad: Callable[[int], None] = lambda _: None


class Consistency:
    """Compares parameters, buffers and optimizer state of ranks that hold the same.

    Attributes:
        reports: one for every check that found a difference, oldest first.
        checks: comparisons so far.
        mismatches: how many of them found a difference.
        max_delta: the largest difference of two elements so far.
        digested_bytes: how much this rank digested.
        seconds: how long this rank spent on it, waiting for others included.
    """

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
        """Say how often, and what to do.

        Args:
            every: everything is compared once in so many steps.
            answers: what to do about a difference, the first that is possible: ``resync`` from
                ranks that are known to be right, ``rollback`` to a commit from before it (with a
                ``Checkpointer``), ``report`` and go on, or ``stop``.
            stop_after: so many answers within 2,000 steps are given, then the run is stopped; None: no limit.
            tolerance: a difference up to here is called small in reports.
            ignore: patterns of names (``model.head.*``) that are not compared.
            share_bytes: the least that is compared at once; smaller states are compared whole.

        Raises:
            UsageError: a setting that makes no sense.
        """
        hint = "every=100 compares everything once in 100 steps"
        self._every = check_count("every of Consistency", every, 1, hint=hint)
        self._share_bytes = check_count("share_bytes of Consistency", share_bytes, 1)
        if type(tolerance) not in (int, float) or not tolerance >= 0:
            raise UsageError(f"tolerance of Consistency is {tolerance!r}, not a number from 0")
        given: object = ignore
        if isinstance(given, str) or not all(isinstance(one, str) for one in ignore):
            raise UsageError(
                f"ignore is {ignore!r}, not a list of patterns", hint='ignore=["model.head.*"]'
            )
        self._answers = Answers(answers, stop_after)
        self._settings = f"every={every}, answers={tuple(answers)}, stop_after={stop_after}, "
        self._settings += f"ignore={tuple(ignore)}, share_bytes={share_bytes}"
        self._tolerance, self._ignore = float(tolerance), tuple(ignore)
        self.reports: list[ConsistencyReport] = []
        self.checks = self.mismatches = self.digested_bytes = 0
        self.max_delta = self.seconds = 0.0
        self._host: Host | None = None
        self._parts: Mapping[str, Part] = {}
        self._handles: list[Any] = []
        self._own_step = 0
        self._reset(0)

    def _reset(self, step: int) -> None:
        self._learned, self._looks = Learned(), 0
        self._holdings = Holdings((), {})
        self._form, self._next_form = b"", b""
        self._left_out: set[str] = set()
        self._rows: dict[str, list[tuple[int, ...]]] = {}
        self._shares: tuple[Share, ...] = ()
        self._next_step = step + 1
        self._before: dict[int, dict[int, Before]] = {}
        self._late: tuple[int, list[Sight]] | None = None
        self._good: dict[int, int] = {}

    # Alone.

    def watch(self, **parts: object) -> Self:
        """Begin to compare these parts: models, optimizers, or dicts and lists of them; every rank must call it.

        Raises:
            UsageError: no model and no optimizer, or ranks with other settings.
        """
        made = make_parts(parts)
        self.attach(made, Host(Ranks(), RunLog(None)), 0)
        self._own_step = 0
        return self

    def step(self) -> ConsistencyReport | None:
        """Say that a step is complete, after ``optimizer.step()``; every rank must call it.

        Returns:
            A report if a check found a difference; the ranks are the same again if its answer is
            ``resync``.

        Raises:
            InconsistentError: the answer is to stop.
        """
        if self._host is None:
            raise UsageError(
                "nothing is watched", hint="check.watch(model=model, optimizer=optimizer)"
            )
        known = len(self.reports)
        self._own_step += 1
        self.look(self._own_step)
        return self.reports[-1] if len(self.reports) > known else None

    def redo(self, step: Callable[[], object]) -> ConsistencyReport | None:
        """Do a whole step twice from the same state, and compare every bit; every rank must call it.

        It finds what replicas cannot see: a gradient that is computed wrong before the collective makes all
        ranks wrong alike. Parts and random numbers are put back in between, data is not: ``step`` takes a batch
        that it is given. It counts as one step. On a device it needs deterministic algorithms.

        Raises:
            UsageError: nothing is watched.
        """
        if self._host is None:
            raise UsageError(
                "nothing is watched", hint="check.watch(model=model, optimizer=optimizer)"
            )
        report = compare_twice(
            step, self._parts, self._host.ranks, self._next_step, self._tolerance
        )
        if report is not None:
            self._note(report, self._host)
        return report

    def remove(self) -> None:
        """Take all hooks off; it can watch other parts then."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._host = None

    # In a run.

    def attach(self, parts: Mapping[str, Part], host: Host, step: int) -> None:
        """Begin to compare the parts of a run that is at a step; every rank must call it.

        Raises:
            UsageError: as for ``watch``, or it already watches a run.
        """
        if self._host is not None:
            raise UsageError(
                "this Consistency already watches a run",
                hint="make one for each run, or remove() it",
            )
        optimizers = [optimizer for _, optimizer in list_optimizers(parts)]
        if not optimizers and not list_held(parts, 2).tensors:
            raise UsageError("no model and no optimizer to compare", hint="pass model=...")
        agree(host.ranks, self)
        self._reset(step)
        self._host, self._parts = host, parts
        if host.ranks.is_alone:
            host.log.doubt(["consistency: one process has nothing to be compared with"])
            return
        self._handles = [one.register_step_pre_hook(self._before_step) for one in optimizers]

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Keep what an optimizer is about to change of the shares that are due."""
        if self._host is None or self._host.ranks.is_alone:
            return
        started_s = time.perf_counter()
        for number in self._find_due(self._next_step):
            pieces = [
                (slot, piece)
                for piece in self._shares[number].slices
                for slot in [self._holdings.slots.get(piece.unit)]
                if slot is not None and slot.optimizer is optimizer
            ]
            if pieces:
                has_closure = len(args) > 1 or bool(kwargs)
                kept = keep_before(optimizer, pieces, has_closure=has_closure)
                self._before.setdefault(number, {})[id(optimizer)] = kept
        self.seconds += time.perf_counter() - started_s

    def _find_due(self, step: int) -> list[int]:
        return find_due(step, len(self._shares), self._every)

    def look(self, step: int) -> RollbackReport | None:
        """Compare what is due at a complete step; every rank must call it.

        Returns:
            A report if the run was rolled back.

        Raises:
            InconsistentError: the answer is to stop.
        """
        if self._host is None or self._host.ranks.is_alone:
            return None
        started_s = time.perf_counter()
        is_next = step == self._next_step  # or the run was taken back
        before, self._before = self._before if is_next else {}, {}
        late, self._late = self._late if is_next else None, None
        self._next_step = step + 1
        if not is_next:
            self._learned.forget()
        try:
            if self._looks < LOOKS:
                self._learn(self._host)
                return None
            back = None if late is None else self._compare(*late, self._host)
            if back is not None:
                return back
            sights = self._see(step, before)
            if any(one.is_late for one in sights):
                self._late = step, sights
                return None
            return self._compare(step, sights, self._host) if sights else None
        finally:
            self.seconds += time.perf_counter() - started_s

    def _see(self, step: int, before: Mapping[int, Mapping[int, Before]]) -> list[Sight]:
        """Digest the shares that are due."""
        sights = []
        for number in self._find_due(step):
            share = self._shares[number]
            wholes, pieces = self._list_pieces(share)
            sight = see(number, pieces, wholes, before.get(number, {}).values())
            kept = (one.grads for one in sight.before)
            self.digested_bytes += sum(one.digested_bytes for one in (sight.after, *kept))
            sights.append(sight)
        if sights and step % self._every == 0:
            self._next_form = _digest_form(self._list_held())
        return sights

    def _list_pieces(self, share: Share) -> tuple[dict[int, int], list[tuple[Any, Slice]]]:
        members: dict[int, list[Any]] = {}
        for held in self._holdings.tensors:
            members.setdefault(held.unit, []).append(held)
        pieces = [
            (held, piece)
            for piece in share.slices
            for held in members[piece.unit]
            if held.group == share.group
        ]
        wholes: dict[int, int] = {}
        for piece in share.slices:
            local = [one.local() for one in members[piece.unit]]
            wholes[piece.unit] = max(0 if one is None else one.numel() for one in local)
        return wholes, pieces

    # What is compared.

    def _list_held(self) -> Holdings:
        assert self._host is not None
        found = list_held(self._parts, self._host.ranks.size)
        return found.without(self._left_out | self._learned.own, self._ignore)

    def _learn(self, host: Host) -> None:
        """Look at everything; what differs and is no parameter is a rank's own."""
        self._looks += 1
        self._agree_on(self._list_held(), host)
        inquiry = self._inquire(host)
        testimonies = inquiry.testify(())
        self.digested_bytes += sum(size for _, size in testimonies[host.ranks.rank].live.values())
        for held in self._holdings.tensors:
            for row in self._rows[held.group]:
                found = {rank: testimonies[rank].live[held.name][0] for rank in row}
                if held.kind == "parameter" and len(set(found.values())) > 1:
                    raise UnsupportedError(
                        f"{held.name} differs between ranks {', '.join(map(str, row))} before anything was "
                        "compared",
                        hint=_MODELS,
                    )
                if held.kind != "parameter" and host.ranks.rank in row:
                    self._learned.note_first(held.name, found, found[host.ranks.rank])
        self._learned.own = set().union(*host.ranks.exchange(self._learned.own))
        self._learned.shared -= self._learned.own
        self._agree_on(self._list_held(), host)
        if self._looks == LOOKS:
            self._tell_start(host)

    def _tell_start(self, host: Host) -> None:
        held = self._holdings.tensors
        if not any(one.kind == "parameter" for one in held):
            rest = sum(one.size_bytes for one in held)
            text = f"only {rest:,} bytes of buffers and counters are" if rest else "nothing is"
            host.log.doubt(
                [f"consistency: no two ranks hold the same part of a parameter: {text} compared"]
            )

    def _agree_on(self, holdings: Holdings, host: Host) -> None:
        """Compare these from now on, as far as all ranks have them; every rank must call it."""
        told = host.ranks.exchange(holdings.describe())
        common = set(told[0]).intersection(*told[1:])
        missing = {name for one in told for name, *rest in one if (name, *rest) not in common}
        if missing:
            self._left_out |= missing
            some = ", ".join(sorted(missing)[:3])
            host.log.doubt([
                f"consistency: not compared, as not all ranks have it in one form: {some}"
                + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")  # noqa: PLR2004
            ])  # fmt: skip
            holdings = holdings.without(missing)
        self._holdings = holdings
        self._form = self._next_form = _digest_form(holdings)
        self._shares = cut_shares(holdings.units(), self._every, self._share_bytes)
        rows: dict[str, set[tuple[int, ...]]] = {}
        for one in host.ranks.exchange({held.group: held.row for held in holdings.tensors}):
            for group, row in one.items():
                rows.setdefault(group, set()).add(row)
        self._rows = {group: sorted(found) for group, found in rows.items()}
        self._good.clear()

    def _inquire(self, host: Host) -> Inquiry:
        return Inquiry(host.ranks, self._holdings, self._rows, self._learned)

    # What is found.

    def _compare(self, step: int, sights: Sequence[Sight], host: Host) -> RollbackReport | None:
        """Compare shares with those of the other ranks."""
        told = self._next_form + b"".join(fold(one.read(), _DIGEST_BYTES) for one in sights)
        heard = host.ranks.exchange_bytes(told)
        self.checks += 1
        unlike = [one for at, one in enumerate(sights) if self._is_unlike(at, one, heard)]
        back = None
        if unlike:
            back = self._answer(step, sights, host)
        else:
            for sight in sights:
                self._note_same(step, sight)
        if any(one[:_FORM_BYTES] != self._form for one in heard) and back is None:
            self._agree_on(self._list_held(), host)
        return back

    def _is_unlike(self, at: int, sight: Sight, heard: Sequence[bytes]) -> bool:
        first = _FORM_BYTES + at * _DIGEST_BYTES
        found = [one[first : first + _DIGEST_BYTES] for one in heard]
        rows = self._rows[self._shares[sight.number].group]
        return any(len({found[rank] for rank in row}) > 1 for row in rows)

    def _note_same(self, step: int, sight: Sight) -> None:
        self._good[sight.number] = step
        digests = sight.after.read()
        for (held, piece), digest in zip(sight.pieces, digests, strict=True):
            if held.kind != "parameter" and piece.parts == 1:
                self._learned.note_same(held.name, digest)

    def _answer(self, step: int, sights: Sequence[Sight], host: Host) -> RollbackReport | None:
        """Find out what differs and why, and do something about it; every rank does the same."""
        inquiry = self._inquire(host)
        trial = inquiry.find_suspects(inquiry.testify(sights))
        if not trial.state and not trial.gradients:  # a rank's own, learned now
            self._agree_on(self._list_held(), host)
            return None
        trial = inquiry.gather(trial, host.find_commit())
        cause, reason = trial.judge()
        answer = self._choose(step, trial, host)
        names = [one.name for one in trial.state]
        names += [f"gradient of {one.name}" for one in trial.gradients]
        report = ConsistencyReport(
            step, cause, reason, answer, inquiry.locate(trial, sights), tuple(dict.fromkeys(names)),
            self._tolerance,
        )  # fmt: skip
        return self._act(report, trial, inquiry, host)

    def _choose(self, step: int, trial: Trial, host: Host) -> Answer:
        possible: list[Answer] = ["report", "stop"]
        if trial.state and all(map(trial.find_right, trial.state)):
            possible.append("resync")
        if host.roll_back is not None:
            possible.append("rollback")
        answer = self._answers.choose(step, possible)
        return answer if trial.state or answer == "stop" else "report"

    def _act(
        self, report: ConsistencyReport, trial: Trial, inquiry: Inquiry, host: Host
    ) -> RollbackReport | None:
        good = self._find_good(report.step, trial)
        self._note(report, host)
        host.note_bad(report.step)
        if report.answer == "resync":
            inquiry.resync(trial)
            left = inquiry.find_suspects(inquiry.testify(())).state
            if left:
                report = replace(
                    report, answer="stop", reason=f"{report.reason}; resync did not help"
                )
                self.reports[-1] = report
        if report.answer == "stop":
            error = InconsistentError(
                f"the ranks are not the same at step {report.step}: {report}",
                hint="check memory and interconnect of the named ranks before the run goes on",
            )
            error.report = report
            raise error
        if report.answer == "rollback" and host.roll_back is not None:
            return host.roll_back(good, f"{report.cause}: {report.tensor} differs between ranks")
        return None

    def _find_good(self, step: int, trial: Trial) -> int:
        """Return the last step at which all that differs is known to have been the same."""
        if not trial.has_moved:
            return step - 1
        names = {one.name for one in trial.state}
        units = {one.unit for one in self._holdings.tensors if one.name in names}
        numbers = [
            number
            for number, share in enumerate(self._shares)
            if any(piece.unit in units for piece in share.slices)
        ]
        return min((self._good.get(number, 0) for number in numbers), default=0)

    def _note(self, report: ConsistencyReport, host: Host) -> None:
        self.reports.append(report)
        self.mismatches += 1
        self.max_delta = max(self.max_delta, report.max_delta)
        host.log.alarm(Verdict(report.cause, str(report), report.step, report.step))
        host.log.action(report.step, f"{report.answer}: {report.tensor}")


def agree(ranks: Ranks, check: Consistency | None) -> None:
    """Check that all ranks compare alike, or none does; every rank must call it.

    Raises:
        UsageError: they do not.
    """
    if ranks.is_alone:
        return
    told = ranks.exchange("nothing" if check is None else check._settings)  # noqa: SLF001  the same module
    for rank, one in enumerate(told):
        if one != told[0]:
            raise UsageError(
                f"consistency is {one} on rank {rank}, and {told[0]} on rank 0",
                hint="pass the same settings on every rank",
            )


def _digest_form(holdings: Holdings) -> bytes:
    return fold([repr(holdings.describe()).encode()], _FORM_BYTES)
