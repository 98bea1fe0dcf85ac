"""Find the commit that broke something."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mvc.cli.options import PROGRESS_JSON, TENSORS, check_alone, check_no_more
from mvc.cli.output import Output, Shown, pick, printable, stdout
from mvc.cli.parameters import CommandUsageError, Exit, arguments, decimal, flag, named, string
from mvc.cli.progress import byte_progress
from mvc.cli.render.text import count_text, number_text, short_id, step_text
from mvc.cli.session import open_repo, split_revisions
from mvc.errors import ConflictError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mvc.ids import GitId
    from mvc.operations.bisect import BisectStep
    from mvc.operations.bisect_metric import MetricBreak
    from mvc.repo import Repo


UNDECIDED = 2  # Git's exit code for this answer
_ANSWERS = ("bad", "good", "new", "old")
_SHOWN = ("terms", "log", "view", "visualize")


_START = named(
    flag("--no-checkout", "start: check nothing out; BISECT_HEAD names the commit."),
    flag("--first-parent", "start: follow only the first parent of merges."),
    TENSORS,
    string("--term-bad, --term-new WORD", "start: use this word for bad."),
    string("--term-good, --term-old WORD", "start: use this word for good."),
)

_STDERR = 2
_CANNOT_SAY = 125
_NOT_RUN = (126, 127)  # how a shell says that a command is not there, or not to be run
_ABORT = 128


def bisect(
    names: list[str] = arguments(
        "[SUBCOMMAND [REV... | FILE | CMD...]] [[--] PATH...]", raw_after=["run"]
    ),
    start: dict[str, Any] = _START,
    metric: str | None = string("--metric NAME", "Search by a stored metric, without tests."),
    above: float | None = decimal("--above X", "With --metric: larger values are bad."),
    below: float | None = decimal("--below X", "With --metric: smaller values are bad."),
    shown: Shown = PROGRESS_JSON,
) -> None:
    """Find the commit that broke something by binary search.

    start [BAD [GOOD...]] [-- PATH...] begins. good, bad (or old, new) and skip mark the commit that
    is checked out, and go to the next one. reset goes back to where you were. log, replay FILE,
    view, terms and next work as in Git. With PATHs or --tensors, only commits that changed those
    are tested.

    run CMD... tests each commit with a command, which finds the commit's id in MVC_REV. Exit code 0
    means good, 125 cannot be tested, any other code below 128 bad; 128 and above stop the run. With
    --no-checkout no file is touched.

    --metric loss --above 2.5 [BAD [GOOD...]] looks at stored metrics only and answers at once: it
    finds the start of the bad values that lead up to BAD (HEAD). NaN counts as bad; commits without
    the metric are skipped.
    """
    check_alone([("--above", above is not None), ("--below", below is not None)])
    used = [f"--{name}" for name, value in start.items() if value not in (None, False)]
    if metric is not None:
        check_alone([*((option, True) for option in used[:1]), ("--metric", True)])
        _by_metric(names, metric, above, below, shown)
        return
    if above is not None or below is not None:
        raise CommandUsageError("--above and --below need --metric")
    if not names:
        raise CommandUsageError("say what to do: start, good, bad, skip, run, log or reset")
    name, *rest = names
    if used and name != "start":
        raise CommandUsageError(f"{used[0]} is for start")
    repo = open_repo()
    with byte_progress("checking out", wanted=shown.progress and not shown.as_json):
        if name in _SHOWN:
            _show(repo, name, rest, shown)
        elif name == "reset":
            _reset(repo, rest, shown)
        elif name == "start":
            bad, good = start["term-bad"], start["term-good"]
            terms = (bad or "bad", good or "good") if bad or good else None
            revisions, paths = split_revisions(repo, rest)
            step = repo.bisect.start(
                *revisions, paths=paths, tensors=start["tensors"], terms=terms,
                checkout=not start["no-checkout"], first_parent=start["first-parent"],
            )  # fmt: skip
            _write(repo, step, shown)
        else:
            _write(repo, _step(repo, name, rest, as_json=shown.as_json), shown)


def _step(
    repo: Repo,
    name: str,
    words: list[str],
    *,
    as_json: bool,
) -> BisectStep:
    """Carry out a subcommand that leads to another commit."""
    if name == "skip":
        return repo.bisect.skip(*words)
    if name == "run":
        return run_command(repo, words, as_json=as_json)
    if name == "replay":
        from mvc.cli.editor import read_message

        if len(words) != 1:
            raise CommandUsageError("name one file: replay FILE")
        return repo.bisect.replay(read_message(Path(words[0])))
    if name == "next":
        check_no_more(words, 0)
        return repo.bisect.next()
    if name not in _ANSWERS and repo.bisect.step() is None:
        raise CommandUsageError(f"{name!r} is not start, good, bad, skip, run, log or reset")
    return repo.bisect.mark(name, *words)


def _write(repo: Repo, step: BisectStep, shown: Shown) -> None:
    shown.answer(lambda: step_fields(repo, step), write_step, repo, step)
    if step.status == "undecided":
        raise Exit(UNDECIDED)


def _reset(repo: Repo, names: Sequence[str], shown: Shown) -> None:
    from mvc.cli.render.moves import result_fields, write_move

    check_no_more(names, 1)
    before = repo.head
    result = repo.bisect.reset(names[0] if names else None)
    if result is None:
        shown.answer(None, Output.line, "No bisection is under way.")
    else:
        shown.answer(result_fields(result), write_move, repo, before, result, is_new=False)


def _show(repo: Repo, name: str, words: Sequence[str], shown: Shown) -> None:
    """Show the log of a bisection, its terms, or the commits in doubt."""
    check_no_more(words, 0)
    text, step = repo.bisect.log(), repo.bisect.step()
    assert step is not None  # else there is no log, and it says so
    if name == "log":
        shown.page(text, Output.lines, map(printable, text.splitlines()))
    elif name == "terms":
        bad, good = step.terms
        lines = [
            f"Your current terms are {printable(good)} for the old state",
            f"and {printable(bad)} for the new state.",
        ]
        shown.answer({"bad": bad, "good": good}, Output.lines, lines)
    else:
        from mvc.cli.render.log import entry_fields, write_oneline

        starts = [] if step.bad is None else [step.bad, *(f"^{commit}" for commit in step.good)]
        entries = list(repo.log(*starts))
        shown.page(lambda: list(map(entry_fields, entries)), write_oneline, entries, None)


def _by_metric(
    names: Sequence[str],
    metric: str,
    above: float | None,
    below: float | None,
    shown: Shown,
) -> None:
    if above is None and below is None:
        raise CommandUsageError("say which values are bad: --above X or --below X")
    repo = open_repo()
    bad, *good = names[names[:1] == ["start"] :] or ["HEAD"]
    broken = repo.bisect.metric(metric, above=above, below=below, bad=bad, good=good)
    shown.answer(lambda: break_fields(repo, broken), write_break, repo, broken)


def step_fields(repo: Repo, step: BisectStep) -> dict[str, object]:
    """Return a step for ``--json``."""
    entry = None if step.commit is None else repo.show(step.commit)
    known = {"subject": None, "step": None} if entry is None else pick(entry, "subject step")
    return {
        **pick(step, "status commit"),
        **known,
        **pick(step, "left steps terms bad good doubtful merge_base=is_merge_base released"),
    }


def write_step(out: Output, repo: Repo, step: BisectStep) -> None:
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
        out.lines(_commit_line(repo, out, commit) for commit in step.doubtful)
    elif step.status == "found":
        assert step.commit is not None
        out.line(f"{step.commit} is the first {bad} commit")
        _write_commit(repo, out, step.commit)
    else:
        assert step.commit is not None
        tests = f"(roughly {count_text(step.steps, 'step')})"
        left = f"{count_text(step.left, 'revision')} left to test after this {tests}"
        out.line(f"Bisecting: {'a merge base must be tested' if step.is_merge_base else left}")
        out.line(_commit_line(repo, out, step.commit))


def break_fields(repo: Repo, broken: MetricBreak) -> dict[str, object]:
    """Return where a metric went wrong for ``--json``."""
    return {
        **pick(broken, "metric commit"),
        **pick(repo.show(broken.commit), "subject step"),
        **pick(broken, "value before before_value unknown others earlier tested"),
    }


def write_break(out: Output, repo: Repo, broken: MetricBreak) -> None:
    """Write where a metric went wrong."""
    name = printable(broken.metric)
    out.line(f"{broken.commit} is the first bad commit: {name} {number_text(broken.value)}")
    if broken.before is not None and broken.before_value is not None:
        value = number_text(broken.before_value)
        out.line(f"before it, {name} was {value}: {_commit_line(repo, out, broken.before)}")
    else:
        out.line(f"no commit before it has {name}")
    if broken.unknown:
        count = count_text(len(broken.unknown), "commit")
        out.line(f"{count} between the two without {name}: the first bad one may be among them")
        out.lines(f"  {_commit_line(repo, out, commit)}" for commit in broken.unknown)
    for commit in broken.others:
        out.line(f"also on another line of history: {_commit_line(repo, out, commit)}")
    if broken.earlier is not None:
        out.line(
            f"{name} was already bad earlier, and recovered: {_commit_line(repo, out, broken.earlier)}"
        )
    out.line()
    _write_commit(repo, out, broken.commit)


def _commit_line(repo: Repo, out: Output, commit: GitId) -> str:
    entry = repo.show(commit)
    return f"[{out.style(commit, 'yellow')}] {printable(entry.subject)}{step_text(entry.step)}"


def _write_commit(repo: Repo, out: Output, commit: GitId) -> None:
    from mvc.cli.render.files import write_diff
    from mvc.cli.render.log import write_full

    write_full(out, [repo.show(commit)], None)
    out.line()
    write_diff(out, repo.changes(commit), "stat", everything=False)


def run_command(repo: Repo, words: list[str], *, as_json: bool) -> BisectStep:
    """Test commits by a command until the first bad one is found."""
    while words[:1] == ["--"]:
        del words[0]
    if not words:
        raise CommandUsageError("name the command that tests a commit: run CMD...")
    if shutil.which(words[0]) is None:
        raise NotFoundError(f"command {words[0]!r} cannot be found or run")
    first, out = repo.bisect.step(), stdout()
    is_untried = True

    def test(commit: GitId) -> bool | None:
        nonlocal is_untried
        code = _execute(words, commit, is_aside=as_json)
        if is_untried and code in _NOT_RUN and first is not None:
            _check_elsewhere(repo, words, code, commit, first.good[0], is_aside=as_json)
        is_untried = False
        return None if code == _CANNOT_SAY else code == 0

    def tell(step: BisectStep) -> None:
        if not as_json:
            if first is None or step.commit != first.commit:
                write_step(out, repo, step)
            out.line(f"running {printable(' '.join(words))}")

    return repo.bisect.run(test, before_test=tell)


def _execute(words: list[str], commit: GitId, *, is_aside: bool) -> int:
    """Run the command; return its exit code if that says something about the commit."""
    sys.stdout.flush()
    environment = {**os.environ, "MVC_REV": commit}
    aside = _STDERR if is_aside else None  # standard output is the answer's
    try:
        done = subprocess.run(words, env=environment, stdout=aside, check=False)  # noqa: S603
    except OSError as error:
        raise NotFoundError(
            f"command {words[0]!r} cannot be run at commit {short_id(commit)}",
            hint="keep it outside the checked-out files",
        ) from error
    code = done.returncode
    if not 0 <= code < _ABORT:
        signals = {each.value: each.name for each in signal.Signals}
        name = str(code) if code >= 0 else signals.get(-code, f"signal {-code}")
        raise ConflictError(
            f"the test ended with {name} at commit {short_id(commit)}: neither good nor bad",
            hint="repeat the command to go on from there; exit codes 1 to 127 mean bad, 125 skips",
        )
    return code


def _check_elsewhere(
    repo: Repo, words: list[str], code: int, commit: GitId, good: GitId, *, is_aside: bool
) -> None:
    """Check that a command which could not be run, as it seems, can be at a good commit.

    If it cannot, every commit would look bad. Git asks the same before it believes such a code.
    """
    is_checked_out = repo.head.branch is None and repo.head.commit == commit
    if is_checked_out:
        repo.checkout(good, detach=True)
    try:
        same = _execute(words, good, is_aside=is_aside) == code
    finally:
        if is_checked_out:
            repo.checkout(commit, detach=True)
    if same:
        raise ConflictError(
            f"the test also ends with {code} at the good commit {short_id(good)}",
            hint="this code means that a command cannot be found or run",
        )
