"""Find the commit that broke something."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.cli.bisect_run import run_command
from mvc.cli.options import JSON, PROGRESS, TENSORS, check_alone
from mvc.cli.output import paged, printable, stdout, write_json
from mvc.cli.parameters import CommandUsageError, Exit, arguments, decimal, flag, string
from mvc.cli.progress import byte_progress
from mvc.cli.render.bisect import break_fields, step_fields, write_break, write_step
from mvc.cli.session import open_repo, split_revisions
from mvc.errors import ConflictError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mvc.operations.bisect import BisectStep
    from mvc.repo import Repo

UNDECIDED = 2  # Git's exit code for this answer
_ANSWERS = ("bad", "good", "new", "old")
_SHOWN = ("terms", "log", "view", "visualize")


def bisect(
    names: list[str] = arguments(
        "[SUBCOMMAND [REV... | FILE | CMD...]] [[--] PATH...]", raw_after=["run"]
    ),
    no_checkout: bool = flag(
        "--no-checkout", help="start: check nothing out; BISECT_HEAD names the commit."
    ),
    first_parent: bool = flag(
        "--first-parent", help="start: follow only the first parent of merges."
    ),
    tensors: str | None = TENSORS,
    term_bad: str | None = string(
        "--term-bad", "--term-new", metavar="WORD", help="start: use this word for bad."
    ),
    term_good: str | None = string(
        "--term-good", "--term-old", metavar="WORD", help="start: use this word for good."
    ),
    metric: str | None = string(
        "--metric", metavar="NAME", help="Search by a stored metric, without tests."
    ),
    above: float | None = decimal(
        "--above", metavar="X", help="With --metric: larger values are bad."
    ),
    below: float | None = decimal(
        "--below", metavar="X", help="With --metric: smaller values are bad."
    ),
    progress: bool = PROGRESS,
    as_json: bool = JSON,
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
    starting = {
        "--no-checkout": no_checkout, "--first-parent": first_parent, "--tensors": tensors,
        "--term-bad": term_bad, "--term-good": term_good,
    }  # fmt: skip
    used = [option for option, value in starting.items() if value not in (None, False)]
    if metric is not None:
        _by_metric(names or [], metric, above, below, used, as_json=as_json)
        return
    if above is not None or below is not None:
        raise CommandUsageError("--above and --below need --metric")
    if not names:
        raise CommandUsageError("say what to do: start, good, bad, skip, run, log or reset")
    name, *rest = names
    if used and name != "start":
        raise CommandUsageError(f"{used[0]} is for start")
    repo = open_repo()
    with byte_progress("checking out", wanted=progress and not as_json) as bar:
        if name in _SHOWN:
            _show(repo, name, rest, as_json=as_json)
        elif name == "reset":
            _reset(repo, rest, bar, as_json=as_json)
        elif name == "start":
            terms = (term_bad or "bad", term_good or "good") if term_bad or term_good else None
            revisions, paths = split_revisions(repo, rest)
            step = repo.bisect_start(
                *revisions, paths=paths, tensors=tensors, terms=terms, checkout=not no_checkout,
                first_parent=first_parent, progress=bar,
            )  # fmt: skip
            _write(repo, step, as_json=as_json)
        else:
            _write(repo, _step(repo, name, rest, bar, as_json=as_json), as_json=as_json)


def _step(
    repo: Repo,
    name: str,
    words: list[str],
    progress: Callable[[int], None] | None,
    *,
    as_json: bool,
) -> BisectStep:
    """Carry out a subcommand that leads to another commit."""
    if name == "skip":
        return repo.bisect_skip(*words, progress=progress)
    if name == "run":
        return run_command(repo, words, progress, as_json=as_json)
    if name == "replay":
        return _replay(repo, words, progress)
    if name == "next":
        _check_no_more(words, 0)
        return repo.bisect_next(progress=progress)
    if name not in _ANSWERS and repo.bisect_step() is None:
        raise CommandUsageError(f"{name!r} is not start, good, bad, skip, run, log or reset")
    return repo.bisect_mark(name, *words, progress=progress)


def _check_no_more(words: Sequence[str], most: int) -> None:
    if len(words) > most:
        raise CommandUsageError(f"unexpected argument {words[most]!r}")


def _write(repo: Repo, step: BisectStep, *, as_json: bool) -> None:
    if as_json:
        write_json(step_fields(repo, step))
    else:
        write_step(repo, stdout(), step)
    if step.status == "undecided":
        raise Exit(UNDECIDED)


def _replay(repo: Repo, names: Sequence[str], progress: Callable[[int], None] | None) -> BisectStep:
    from mvc.cli.editor import read_message

    if len(names) != 1:
        raise CommandUsageError("name one file: replay FILE")
    from pathlib import Path

    return repo.bisect_replay(read_message(Path(names[0])), progress=progress)


def _reset(
    repo: Repo,
    names: Sequence[str],
    progress: Callable[[int], None] | None,
    *,
    as_json: bool,
) -> None:
    from mvc.cli.render.moves import result_fields, write_move

    _check_no_more(names, 1)
    before = repo.head
    result = repo.bisect_reset(names[0] if names else None, progress=progress)
    if as_json:
        write_json(None if result is None else result_fields(result))
    elif result is None:
        stdout().line("No bisection is under way.")
    else:
        write_move(repo, stdout(), before, result, is_new=False)


def _show(repo: Repo, name: str, words: Sequence[str], *, as_json: bool) -> None:
    """Show the log of a bisection, its terms, or the commits in doubt."""
    _check_no_more(words, 0)
    step = repo.bisect_step()
    if step is None:
        raise ConflictError(
            "no bisection is under way", hint='"mvc bisect start BAD GOOD" starts one'
        )
    if name == "log":
        text = repo.bisect_log()
        if as_json:
            write_json(text)
        else:
            paged().lines(map(printable, text.splitlines()))
    elif name == "terms":
        if as_json:
            write_json({"bad": step.terms[0], "good": step.terms[1]})
        else:
            out = stdout()
            out.line(f"Your current terms are {printable(step.terms[1])} for the old state")
            out.line(f"and {printable(step.terms[0])} for the new state.")
    else:
        from mvc.cli.render.log import entry_fields, write_oneline

        starts = [] if step.bad is None else [step.bad, *(f"^{one}" for one in step.good)]
        entries = list(repo.log(*starts))
        if as_json:
            write_json([entry_fields(entry) for entry in entries])
        else:
            write_oneline(paged(), entries, None)


def _by_metric(
    names: Sequence[str],
    metric: str,
    above: float | None,
    below: float | None,
    used: Sequence[str],
    *,
    as_json: bool,
) -> None:
    if used:
        raise CommandUsageError(f"{used[0]} and --metric cannot be used together")
    if above is None and below is None:
        raise CommandUsageError("say which values are bad: --above X or --below X")
    repo = open_repo()
    bad, *good = names[names[:1] == ["start"] :] or ["HEAD"]
    found = repo.bisect_metric(metric, above=above, below=below, bad=bad, good=good)
    if as_json:
        write_json(break_fields(repo, found))
    else:
        write_break(repo, stdout(), found)
