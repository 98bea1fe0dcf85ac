"""The ranks of one run, compared step by step: what is due is kept, digested, and compared.

All that decides whether a message is sent is the same on every rank: the step, and a plan that all ranks have
agreed on. Where the form of the state changes, as when an optimizer makes its state, the digest of the form that
travels with each check says so at the same step everywhere.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mvc import UnsupportedError
from mvc_hooks.divergence.history import Verdict
from mvc_hooks.log import ranged
from mvc_hooks.parts.optimizer import OptimizerPart
from mvc_hooks.parts.part import find_parts
from mvc_hooks.ranks.group import spell_ranks
from mvc_lab.consistency.digest import TensorDigests, fold
from mvc_lab.consistency.held import ComparedTensors, PlannedShare, cut_shares, find_due, list_held
from mvc_lab.consistency.inquiry import LOOKS, Inquiry, Learned
from mvc_lab.consistency.kept import CheckedShare, KeptStep, digest_share, keep_step
from mvc_lab.consistency.reports import ConsistencyReport, InconsistentError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch.optim import Optimizer

    from mvc_hooks.extension import Host
    from mvc_hooks.reports import RollbackReport
    from mvc_lab.consistency.held import HeldTensor
    from mvc_lab.consistency.reports import Answer, Answers
    from mvc_lab.consistency.verdict import Trial

_FORM_BYTES, _DIGEST_BYTES = 8, 24
"""What travels in a check: the form of the state, and a digest for each share that is due, nearly always one."""
_MOST = 3
_HINT = "check memory and interconnect of these ranks before the run goes on"
_MODELS = (
    "every rank trains one model: wrap it in DistributedDataParallel, or shard it with fully_shard or "
    "parallelize_module"
)


@dataclass(frozen=True, slots=True)
class ConsistencySettings:
    """The settings of a ``Consistency``, which documents them."""

    every: int
    answers: Answers
    tolerance: float
    ignore: tuple[str, ...]
    share_bytes: int


class Findings:
    """What was found so far.

    Attributes:
        reports: one for every check that found a difference, oldest first.
        checks: how often the ranks were compared.
        digested_bytes: how much this rank has digested.
        seconds: how long this rank has spent on it, waiting for other ranks included.
    """

    def __init__(self) -> None:
        self.reports: list[ConsistencyReport] = []
        self.checks = self.digested_bytes = 0
        self.seconds = 0.0

    @property
    def mismatches(self) -> int:
        """How often a difference was found."""
        return len(self.reports)

    @property
    def max_delta(self) -> float:
        """The largest difference of two elements that was found."""
        return max((report.max_delta for report in self.reports), default=0.0)


class Watching:
    """Compares the ranks of a run; every rank makes one."""

    def __init__(self, settings: ConsistencySettings, findings: Findings, host: Host) -> None:
        """Take a run where it is, and put hooks on its optimizers."""
        self._settings, self._findings, self.host = settings, findings, host
        self.parts, self.next_step = host.parts, host.step + 1
        self._learned, self._looks = Learned(), 0
        self._holdings = ComparedTensors((), {})
        self._form = self._next_form = b""
        self._left_out: set[str] = set()
        self._rows: dict[str, list[tuple[int, ...]]] = {}
        self._shares: tuple[PlannedShare, ...] = ()
        self._before: dict[int, dict[int, KeptStep]] = {}
        self._late: tuple[int, list[CheckedShare]] | None = None
        self._good: dict[int, int] = {}
        self._handles = [
            part.optimizer.register_step_pre_hook(self._before_step)
            for _, part in find_parts(self.parts, OptimizerPart)
        ]

    def remove(self) -> None:
        """Take all hooks off."""
        for handle in self._handles:
            handle.remove()

    # A step.

    @ranged("mvc.digest")
    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Keep what an optimizer is about to change of the shares that are due."""
        started_s = time.perf_counter()
        for number in self._find_due(self.next_step):
            share = self._shares[number]
            # Of a share of counters alone, as beside DTensors, there is no step to be done again.
            units = {
                held.unit
                for held in self._holdings.tensors
                if held.kind == "parameter" and held.group == share.group
            }
            pieces = [
                (slot, piece)
                for piece in share.slices
                for slot in [self._holdings.slots.get(piece.unit)]
                if slot is not None and slot.optimizer is optimizer and piece.unit in units
            ]
            if pieces:
                given = (*args[1:], *kwargs.values())  # the optimizer itself comes first
                has_closure = any(value is not None for value in given)
                kept = keep_step(optimizer, pieces, has_closure=has_closure)
                self._before.setdefault(number, {})[id(optimizer)] = kept
        self._findings.seconds += time.perf_counter() - started_s

    def _find_due(self, step: int) -> list[int]:
        return find_due(step, len(self._shares), self._settings.every)

    @ranged("mvc.digest")
    def look(self, step: int) -> RollbackReport | None:
        """Compare what is due at a complete step; as ``Consistency.check_step``."""
        if self.host.ranks.is_alone:
            return None
        started_s = time.perf_counter()
        is_next = step == self.next_step  # or the run was taken back
        before, self._before = self._before if is_next else {}, {}
        late, self._late = self._late if is_next else None, None
        self.next_step = step + 1
        if not is_next:
            self._learned.forget()
        try:
            if self._looks < LOOKS:
                self._learn()
                return None
            back = None if late is None else self._compare(*late)
            if back is not None:
                return back
            checked = self._see(step, before)
            if any(share.is_late for share in checked):
                self._late = step, checked
                return None
            return self._compare(step, checked) if checked else None
        finally:
            self._findings.seconds += time.perf_counter() - started_s

    def _see(self, step: int, before: Mapping[int, Mapping[int, KeptStep]]) -> list[CheckedShare]:
        """Digest the shares that are due."""
        checked = []
        for number in self._find_due(step):
            share = self._shares[number]
            members = {piece.unit: list[Any]() for piece in share.slices}
            for held in self._holdings.tensors:
                if held.unit in members:
                    members[held.unit].append(held)
            pieces = [
                (held, piece)
                for piece in share.slices
                for held in members[piece.unit]
                if held.group == share.group
            ]
            # The elements of what is here of each unit's parameter.
            wholes: dict[int, int] = {}
            for unit, tensors in members.items():
                local = [held.local() for held in tensors]
                wholes[unit] = max(0 if tensor is None else tensor.numel() for tensor in local)
            checked_share = digest_share(number, pieces, wholes, before.get(number, {}).values())
            grads = (kept.grads for kept in checked_share.before)
            size = sum(digests.digested_bytes for digests in (checked_share.after, *grads))
            self._findings.digested_bytes += size
            checked.append(checked_share)
        if checked and step % self._settings.every == 0:
            self._next_form = _digest_form(self._list_held())
        return checked

    # What is compared.

    def _list_held(self) -> ComparedTensors:
        holdings = list_held(self.parts, self.host.ranks.size)
        return holdings.without(self._left_out | self._learned.own, self._settings.ignore)

    def _learn(self) -> None:
        """Look at everything; what differs and is not a parameter is a rank's own."""
        self._looks += 1
        self._agree_on(self._list_held())
        ranks, tensors = self.host.ranks, self._holdings.tensors
        seen = TensorDigests(held.local() for held in tensors)
        self._findings.digested_bytes += seen.digested_bytes
        mine = dict(zip((held.name for held in tensors), seen.read(), strict=True))
        members: dict[tuple[str, str], list[HeldTensor]] = {}
        for held in tensors:
            members.setdefault((held.kind, held.group), []).append(held)
        for (kind, group), some in members.items():
            digests = ranks.exchange_bytes(fold(mine[held.name] for held in some))
            rows = self._rows[group]
            if all(len({digests[rank] for rank in row}) == 1 for row in rows):
                for held in some if kind != "parameter" else ():
                    self._learned.note_same(held.name, mine[held.name])
                continue
            tables = ranks.exchange([mine[held.name] for held in some])
            for at, held in enumerate(some):
                for row in rows:
                    self._learn_row(held, {rank: tables[rank][at] for rank in row})
        self._learned.own = set().union(*ranks.exchange(self._learned.own))
        self._learned.shared -= self._learned.own
        self._agree_on(self._list_held())
        kinds = {held.kind for held in self._holdings.tensors}
        if self._looks == LOOKS and "parameter" not in kinds:
            rest = sum(held.size_bytes for held in self._holdings.tensors)
            text = f"only {rest:,} bytes of buffers and counters are" if rest else "nothing is"
            self.host.log.doubt(
                [f"consistency: no two ranks hold the same part of a parameter: {text} compared"]
            )

    def _learn_row(self, held: HeldTensor, digests: Mapping[int, bytes]) -> None:
        is_same = len(set(digests.values())) == 1
        if held.kind == "parameter" and not is_same:
            raise UnsupportedError(
                f"{held.name} differs between {spell_ranks(sorted(digests))} before anything was compared",
                hint=_MODELS,
            )
        if not is_same:
            self._learned.own.add(held.name)
        elif self.host.ranks.rank in digests:
            self._learned.note_same(held.name, digests[self.host.ranks.rank])

    def _agree_on(self, holdings: ComparedTensors) -> None:
        """Compare these from now on, as far as all ranks have them; every rank must call it."""
        ranks = self.host.ranks
        missing = self._find_missing(holdings)
        if missing:
            self._left_out |= missing
            some = ", ".join(sorted(missing)[:_MOST])
            more = f" and {len(missing) - _MOST} more" if len(missing) > _MOST else ""
            text = "consistency: not compared, as not all ranks have it in one form: "
            self.host.log.doubt([text + some + more])
            holdings = holdings.without(missing)
        self._holdings = holdings
        self._form = self._next_form = _digest_form(holdings)
        settings = self._settings
        self._shares = cut_shares(holdings.units(), settings.every, settings.share_bytes)
        rows: dict[str, set[tuple[int, ...]]] = {}
        for table in ranks.exchange({held.group: held.row for held in holdings.tensors}):
            for group, row in table.items():
                rows.setdefault(group, set()).add(row)
        self._rows = {group: sorted(members) for group, members in rows.items()}
        self._good.clear()

    def _find_missing(self, holdings: ComparedTensors) -> set[str]:
        """Return the names of what not all ranks have in one form."""
        ranks = self.host.ranks
        if len(set(ranks.exchange_bytes(_digest_form(holdings)))) == 1:
            return set()
        every = ranks.exchange(holdings.describe())
        common = set(every[0]).intersection(*every[1:])
        return {line[0] for lines in every for line in lines if line not in common}

    # What is found.

    def _compare(self, step: int, checked: Sequence[CheckedShare]) -> RollbackReport | None:
        """Compare shares with those of the other ranks."""
        mine = self._next_form + b"".join(
            fold(checked_share.read(), _DIGEST_BYTES) for checked_share in checked
        )
        heard = self.host.ranks.exchange_bytes(mine)
        self._findings.checks += 1
        is_unlike = False
        for at, checked_share in enumerate(checked):
            first = _FORM_BYTES + at * _DIGEST_BYTES
            digests = [message[first : first + _DIGEST_BYTES] for message in heard]
            rows = self._rows[self._shares[checked_share.number].group]
            is_unlike |= any(len({digests[rank] for rank in row}) > 1 for row in rows)
        back = self._answer(step, checked) if is_unlike else None
        for checked_share in () if is_unlike else checked:
            self._good[checked_share.number] = step
            for (held, piece), digest in zip(
                checked_share.pieces, checked_share.after.read(), strict=True
            ):
                if held.kind != "parameter" and piece.parts == 1:
                    self._learned.note_same(held.name, digest)
        if any(message[:_FORM_BYTES] != self._form for message in heard) and back is None:
            self._agree_on(self._list_held())
        return back

    def _answer(self, step: int, checked: Sequence[CheckedShare]) -> RollbackReport | None:
        """Find out what differs and why, and do something about it; every rank does the same."""
        host = self.host
        inquiry = Inquiry(host.ranks, self._holdings, self._rows, self._learned)
        trial = inquiry.find_suspects(inquiry.testify(checked))
        if not trial.state and not trial.gradients:  # a rank's own, learned now
            self._agree_on(self._list_held())
            return None
        tip = host.ranks.share(host.tip)  # the newest commit of the run that rank 0 knows
        trial = inquiry.gather(trial, (host.repo, tip) if tip else None)
        report = ConsistencyReport(
            step,
            *trial.judge(),
            self._choose(step, trial),
            inquiry.locate(trial, checked),
            trial.list_names(),
            self._settings.tolerance,
        )
        return self._act(report, trial, inquiry)

    def _choose(self, step: int, trial: Trial) -> Answer:
        possible: list[Answer] = ["report", "stop"]
        if all(map(trial.find_right, trial.state)):
            possible.append("resync")
        if self.host.roll_back is not None:
            possible.append("rollback")
        answer = self._settings.answers.choose(step, possible)
        return answer if trial.state or answer == "stop" else "report"

    def _act(
        self, report: ConsistencyReport, trial: Trial, inquiry: Inquiry
    ) -> RollbackReport | None:
        host, good = self.host, self._find_good(report.step, trial)
        self.note(report)
        host.note_bad_state(report.step)
        if report.answer == "resync":
            inquiry.resync(trial)
            if inquiry.find_suspects(inquiry.testify(())).state:
                reason = f"{report.reason}; a resync did not help"
                report = replace(report, answer="stop", reason=reason)
                self._findings.reports[-1] = report
        if report.answer == "stop":
            text = f"the ranks are not the same at step {report.step}: {report}"
            raise InconsistentError(text, hint=_HINT, report=report)
        if report.answer == "rollback" and host.roll_back is not None:
            return host.roll_back(good, f"{report.cause}: {report.tensor} differs between ranks")
        return None

    def _find_good(self, step: int, trial: Trial) -> int:
        """Return the last step at which all that differs is known to have been the same."""
        if not trial.has_moved:
            return step - 1
        names = {suspect.name for suspect in trial.state}
        units = {held.unit for held in self._holdings.tensors if held.name in names}
        numbers = [
            number
            for number, share in enumerate(self._shares)
            if any(piece.unit in units for piece in share.slices)
        ]
        return min((self._good.get(number, 0) for number in numbers), default=0)

    def note(self, report: ConsistencyReport) -> None:
        """Keep a report, and log it."""
        self._findings.reports.append(report)
        self.host.log.alarm(Verdict(report.cause, str(report), report.step, report.step))
        self.host.log.action(report.step, f"{report.answer}: {report.tensor}")


def _digest_form(holdings: ComparedTensors) -> bytes:
    return fold([repr(holdings.describe()).encode()], _FORM_BYTES)
