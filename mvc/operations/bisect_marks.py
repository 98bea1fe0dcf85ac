"""The answers of a bisection: its start, the good, bad and skipped commits, and its log."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mvc.errors import ConflictError, FormatError, NotFoundError, UsageError
from mvc.history.revisions import split_range
from mvc.workspace import bisection as files
from mvc.workspace.bisection import get_bisection
from mvc.workspace.context import holds_sweep_lock
from mvc.workspace.ranges import walk_ranges

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mvc.ids import GitId
    from mvc.workspace.bisection import Bisection
    from mvc.workspace.context import Context

_OPTIONS = ("--term-new=", "--term-bad=", "--term-old=", "--term-good=", "--tensors=")


@dataclass(frozen=True, slots=True)
class BisectPlan:
    """The options of a bisection, as in ``repo.bisect.start``."""

    paths: tuple[str, ...] = ()
    tensors: str | None = None
    terms: tuple[str, str] | None = None
    checks_out: bool = True
    first_parent: bool = False

    def words(self, revisions: Sequence[str]) -> list[str]:
        """Return the command line that starts such a bisection."""
        terms = self.terms
        return [
            *([] if terms is None else [f"--term-new={terms[0]}", f"--term-old={terms[1]}"]),
            *([] if self.checks_out else ["--no-checkout"]),
            *(["--first-parent"] if self.first_parent else []),
            *([] if self.tensors is None else [f"--tensors={self.tensors}"]),
            *revisions,
            *(["--", *self.paths] if self.paths else []),
        ]


@holds_sweep_lock
def begin(context: Context, bad: str | None, good: Sequence[str], plan: BisectPlan) -> None:
    """Record a new bisection; everything is checked before the previous one is dropped."""
    history, head = context.history, context.history.head()
    if plan.terms is not None:
        files.check_terms(*plan.terms)
    origin = files.find_start(context) or head.branch or head.commit
    if origin is None or head.commit is None:
        raise NotFoundError("there is no commit yet", hint='make one with "mvc commit"')
    named = [history.resolve_commit(one) for one in ([] if bad is None else [bad, *good])]
    if named:
        _check_good(context, named[0], named[1:])
    files.clear(context)
    files.write_start(
        context,
        origin,
        plan.terms,
        plan.paths,
        plan.tensors,
        checks_out=plan.checks_out,
        first_parent=plan.first_parent,
    )
    state = get_bisection(context)
    lines = [_mark(context, state, "good" if at else "bad", one) for at, one in enumerate(named)]
    # By their ids: HEAD is elsewhere by the time that the log is replayed.
    words = files.quote(plan.words(named))
    files.add_to_log(context, [*lines, f"git bisect start {words}".rstrip()])


@holds_sweep_lock
def answer(context: Context, term: str, revisions: Sequence[str]) -> None:
    """Mark commits as bad or good; the tested one by default."""
    state = get_bisection(context)
    words = state.words
    if state.terms is None and term in ("new", "old"):
        words = ("new", "old")
    if term not in words:
        raise UsageError(
            f"{term!r} is not a term of this bisection",
            hint=f"its terms are {' and '.join(map(repr, words))}",
        )
    is_bad = term == words[0]
    commits = [context.history.resolve_commit(one) for one in revisions] or [_tested(context)]
    if is_bad and len(commits) > 1:
        raise UsageError(f"only one commit can be {term!r}")
    bad = commits[0] if is_bad else state.bad
    if bad is not None:
        _check_good(context, bad, state.good if is_bad else commits)
    for commit in commits:
        line = _mark(context, replace(state, terms=words), "bad" if is_bad else "good", commit)
        files.add_to_log(context, [line, f"git bisect {term} {commit}"])


@holds_sweep_lock
def leave_out(context: Context, revisions: Sequence[str]) -> None:
    """Mark commits as untestable; the tested one by default."""
    state = get_bisection(context)
    commits: list[GitId] = []
    for one in revisions:
        if split_range(one) is None:
            commits.append(context.history.resolve_commit(one))
        else:
            commits += [info.id for info in walk_ranges(context, [one])]
    for commit in dict.fromkeys(commits if revisions else [_tested(context)]):
        line = _mark(context, state, "skip", commit)
        files.add_to_log(context, [line, f"git bisect skip {commit}"])


def _mark(context: Context, state: Bisection, kind: str, commit: GitId) -> str:
    """Record an answer (``bad``, ``good`` or ``skip``); return its line for the log."""
    term = kind if kind == "skip" else state.words[kind == "good"]
    if kind != "skip" and not (context.git_dir / files.TERMS).exists():
        files.write(context, files.TERMS, "\n".join(state.words))
    files.mark(context, term if kind == "bad" else f"{term}-{commit}", commit)
    return f"# {term}: {name_commit(context, commit)}"


def name_commit(context: Context, commit: GitId) -> str:
    """Return a commit's name for the log of a bisection."""
    return f"[{commit}] {context.history.read_commit(commit).subject}"


def _tested(context: Context) -> GitId:
    """Return the commit that is tested: BISECT_HEAD if nothing is checked out, or else HEAD."""
    return context.history.find_ref(files.UNTOUCHED) or context.history.resolve_commit("HEAD")


def _check_good(context: Context, bad: GitId, good: Sequence[GitId]) -> None:
    """Check that no good commit is the bad one or has it among its ancestors."""
    for one in good:
        if context.history.is_ancestor(bad, one):
            fact = "both good and bad" if one == bad else f"bad, and its descendant {one[:7]} good"
            raise ConflictError(
                f"commit {bad[:7]} would be {fact}",
                hint='did you mix them up? To find the commit that fixed something, use "new" and "old"',
            )


@holds_sweep_lock
def replay_log(context: Context, text: str) -> None:
    """Begin the bisection in a log and record its answers, after checking all of it."""
    lines = [_parse_line(number, line) for number, line in enumerate(text.split("\n"), 1)]
    said = [words for words in lines if words]
    if not said or said[0][0] != "start":
        raise FormatError('not a log of a bisection: it does not begin with "git bisect start"')
    for words in said[1:]:
        for one in words[1:]:
            parts = split_range(one)
            for revision in (one,) if parts is None else (parts[0], parts[2]):
                context.history.resolve_commit(revision)
    for name, *rest in said:
        if name == "start":
            begin(context, *_parse_start(rest))
        elif name == "skip":
            leave_out(context, rest)
        else:
            answer(context, name, rest)


def _parse_line(number: int, line: str) -> list[str]:
    """Return the words of a line after ``git bisect``; none for a comment."""
    line = line.strip()
    if not line or line.startswith("#"):
        return []
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise FormatError(f"line {number} of the log: {error}") from None
    if words[:2] not in (["git", "bisect"], ["mvc", "bisect"]) or len(words) < 3:  # noqa: PLR2004
        raise FormatError(f"line {number} of the log: {line[:80]!r} is not a step of a bisection")
    return words[2:]


def _parse_start(words: Sequence[str]) -> tuple[str | None, list[str], BisectPlan]:
    """Return (bad, good, how) of the words after ``start``."""
    at = words.index("--") if "--" in words else len(words)
    terms, plan = ["bad", "good"], BisectPlan(paths=tuple(words[at + 1 :]))
    names: list[str] = []
    for word in words[:at]:
        option = next((one for one in _OPTIONS if word.startswith(one)), None)
        if word == "--no-checkout":
            plan = replace(plan, checks_out=False)
        elif word == "--first-parent":
            plan = replace(plan, first_parent=True)
        elif option == "--tensors=":
            plan = replace(plan, tensors=word.removeprefix(option))
        elif option is not None:
            terms[option in ("--term-old=", "--term-good=")] = word.removeprefix(option)
            plan = replace(plan, terms=(terms[0], terms[1]))
        elif word.startswith("-"):
            raise FormatError(f"the log starts with option {word[:80]!r}, which mvc does not know")
        else:
            names.append(word)
    return (names[0] if names else None), names[1:], plan
