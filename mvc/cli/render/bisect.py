"""Where a bisection stands, and what it found, as text and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.cli.output import Output, pick, printable
from mvc.cli.render.text import count_text, number_text, short_id

if TYPE_CHECKING:
    from mvc.ids import GitId
    from mvc.operations.bisect import BisectStep
    from mvc.operations.bisect_metric import MetricBreak
    from mvc.repo import Repo


def step_fields(repo: Repo, step: BisectStep) -> dict[str, object]:
    """Return a step for ``--json``."""
    entry = None if step.commit is None else repo.show(step.commit)
    return {
        **pick(step, "status commit"),
        "subject": None if entry is None else entry.subject,
        "step": None if entry is None else entry.step,
        **pick(step, "left steps terms bad good doubtful merge_base=is_merge_base released"),
    }


def write_step(repo: Repo, out: Output, step: BisectStep) -> None:
    """Write where a bisection stands, in Git's words."""
    bad, good = step.terms
    for commit in step.released:
        out.line(f"{short_id(commit)} was skipped: its content was released")
    if step.status == "waiting":
        missing = [f"{bad} commit"] * (step.bad is None) + [f"{good} commit"] * (not step.good)
        out.line(f"status: waiting for a {' and a '.join(missing)}")
    elif step.status == "undecided":
        out.line("There are only 'skip'ped commits left to test.")
        out.line(f"The first {bad} commit could be any of:")
        out.lines(_line(repo, out, commit) for commit in step.doubtful)
    elif step.status == "found":
        assert step.commit is not None
        out.line(f"{step.commit} is the first {bad} commit")
        _write_commit(repo, out, step.commit)
    else:
        assert step.commit is not None
        tests = f"(roughly {count_text(step.steps, 'step')})"
        left = f"{count_text(step.left, 'revision')} left to test after this {tests}"
        out.line(f"Bisecting: {'a merge base must be tested' if step.is_merge_base else left}")
        out.line(_line(repo, out, step.commit))


def break_fields(repo: Repo, found: MetricBreak) -> dict[str, object]:
    """Return where a metric went wrong for ``--json``."""
    entry = repo.show(found.commit)
    return {
        **pick(found, "metric commit"),
        "subject": entry.subject,
        "step": entry.step,
        **pick(found, "value before before_value unknown others earlier tested"),
    }


def write_break(repo: Repo, out: Output, found: MetricBreak) -> None:
    """Write where a metric went wrong."""
    name = printable(found.metric)
    out.line(f"{found.commit} is the first bad commit: {name} {number_text(found.value)}")
    if found.before is not None and found.before_value is not None:
        value = number_text(found.before_value)
        out.line(f"before it, {name} was {value}: {_line(repo, out, found.before)}")
    else:
        out.line(f"no commit before it has {name}")
    if found.unknown:
        count = count_text(len(found.unknown), "commit")
        out.line(f"{count} between the two without {name}: the first bad one may be among them")
        out.lines(f"  {_line(repo, out, commit)}" for commit in found.unknown)
    for commit in found.others:
        out.line(f"also on another line of history: {_line(repo, out, commit)}")
    if found.earlier is not None:
        out.line(
            f"{name} was already bad earlier, and recovered: {_line(repo, out, found.earlier)}"
        )
    out.line()
    _write_commit(repo, out, found.commit)


def _line(repo: Repo, out: Output, commit: GitId) -> str:
    entry = repo.show(commit)
    step = "" if entry.step is None else f" (step {entry.step:,})"
    return f"[{out.style(commit, 'yellow')}] {printable(entry.subject)}{step}"


def _write_commit(repo: Repo, out: Output, commit: GitId) -> None:
    from mvc.cli.render.files import write_diff
    from mvc.cli.render.log import write_full

    write_full(out, [repo.show(commit)], None)
    out.line()
    write_diff(out, repo.changes(commit), "stat", everything=False)
