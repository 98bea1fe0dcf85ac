"""bisect: find the commit that broke something by binary search, as Git does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from mvc.errors import ConflictError, NotFoundError, ReleasedError, UsageError
from mvc.history.revisions import split_range
from mvc.operations.checkout import checkout_revision
from mvc.workspace import bisection as files
from mvc.workspace.bisection import Bisection, BisectOptions, find_bisection, get_bisection
from mvc.workspace.checkout_plan import CheckoutResult
from mvc.workspace.context import Context, holds_sweep_lock
from mvc.workspace.manifests import TensorContents
from mvc.workspace.pending import BISECTION
from mvc.workspace.ranges import list_commits
from mvc.workspace.recovery import recover
from mvc.workspace.worktree import relative_paths

if TYPE_CHECKING:
    from mvc.history.values import CommitInfo
    from mvc.ids import GitId
    from mvc.workspace.worktree import Paths

    Status = Literal["waiting", "testing", "found", "undecided"]

_TREES_KEPT = 64


@dataclass(frozen=True, slots=True)
class BisectStep:
    """Where a bisection stands.

    Attributes:
        status: ``waiting`` for a bad or a good commit, ``testing`` a commit, ``found`` the first bad
            one, or ``undecided``: only skipped commits are left.
        commit: the commit to test, or the first bad one.
        left: how many commits are in doubt after this test.
        steps: about how many tests are left after this one.
        terms: what a bad and a good commit are called.
        bad: the commit known to be bad.
        good: the commits known to be good.
        doubtful: where undecided, all that may be the first bad commit.
        is_merge_base: whether a common ancestor is tested because a good commit is on another line.
        released: commits that were skipped because their content was released.
    """

    status: Status
    commit: GitId | None
    left: int
    steps: int
    terms: tuple[str, str]
    bad: GitId | None
    good: tuple[GitId, ...]
    doubtful: tuple[GitId, ...] = ()
    is_merge_base: bool = False
    released: tuple[GitId, ...] = ()


@holds_sweep_lock
def start(
    context: Context,
    bad: str | None = None,
    *good: str,
    paths: Paths = (),
    tensors: str | None = None,
    terms: tuple[str, str] | None = None,
    checkout: bool = True,
    first_parent: bool = False,
) -> BisectStep:
    """Begin a search for the commit that broke something; return what to test first.

    A bisection under way ends; ``bisect_reset`` still goes back to where it began.

    Args:
        bad: a commit that is bad.
        good: commits that are good.
        paths: only commits that changed these are tested.
        tensors: only commits that changed these tensors are tested.
        terms: other words for bad and good.
        checkout: check out the commit to test; otherwise it is only returned, and BISECT_HEAD.
        first_parent: follow only the first parent of merges.

    Raises:
        ConflictError: a good commit is the bad one or comes after it.
        UsageError: a term is not a word that can be used.
    """
    options = BisectOptions(
        tuple(relative_paths(context, paths)), tensors, terms, checkout, first_parent
    )
    recover(context)
    _begin(context, [] if bad is None else [bad, *good], options)
    return advance(context)


@holds_sweep_lock
def mark(context: Context, term: str, *revisions: str) -> BisectStep:
    """Mark commits as ``bad`` or ``good``; the tested one by default.

    Raises:
        ConflictError: no bisection is under way, or a commit would be both.
        UsageError: another word, or two bad commits.
    """
    _answer(context, term, revisions)
    return advance(context)


@holds_sweep_lock
def skip(context: Context, *revisions: str) -> BisectStep:
    """Mark commits or ranges, the tested commit by default, as untestable.

    Raises:
        ConflictError: no bisection is under way.
    """
    _leave_out(context, revisions)
    return advance(context)


@holds_sweep_lock
def replay(context: Context, log: str) -> BisectStep:
    """Begin the bisection in a log and replay its answers.

    Raises:
        FormatError: the text is not such a log; a bisection under way is kept.
    """
    recover(context)
    steps = files.parse_log(log)
    for _, *revisions in steps[1:]:  # all of it is checked before anything changes
        for revision in revisions:
            old, _, new = split_range(revision) or (revision, "", revision)
            for end in dict.fromkeys((old, new)):
                context.history.resolve_commit(end)
    for name, *words in steps:
        if name == "start":
            _begin(context, *files.parse_start(words))
        elif name == "skip":
            _leave_out(context, words)
        else:
            _answer(context, name, words)
    return advance(context)


@holds_sweep_lock
def advance(context: Context) -> BisectStep:
    """Go to the commit to test, as after a crash or a checkout elsewhere.

    Raises:
        ConflictError: no bisection is under way, or local changes would be lost.
    """
    released: list[GitId] = []
    while True:
        state = get_bisection(context)
        step = _decide(context, state, tuple(released))
        bad = step.terms[0]
        if step.status == "undecided":
            lines = [
                f"# possible first {bad} commit: {files.name_commit(context, commit)}"
                for commit in step.doubtful
            ]
            files.add_to_log(context, ["# only skipped commits left to test", *lines])
        if step.commit is None:
            return step
        if step.status == "found":
            name = files.name_commit(context, step.commit)
            files.add_to_log(context, [f"# first {bad} commit: {name}"])
            return step
        files.write(context, files.EXPECTED, step.commit)
        if not state.options.checks_out:
            files.write(context, files.UNTOUCHED, step.commit)
            return step
        try:
            checkout_revision(context, step.commit, detach=True)
        except ReleasedError:
            released.append(step.commit)
            _leave_out(context, [step.commit])
        except ConflictError as error:
            error.hint = 'commit or restore them, then run "mvc bisect next"'
            raise
        else:
            return step


def _decide(context: Context, state: Bisection, released: tuple[GitId, ...] = ()) -> BisectStep:
    """Return where a bisection stands; nothing is changed."""
    first_parent, bad = state.options.first_parent, state.bad
    waiting = BisectStep("waiting", None, 0, 0, state.terms, bad, state.good, released=released)
    if bad is None or not state.good:
        return waiting
    base = files.find_untested_base(context.history, state, bad)
    if base is not None:
        return replace(waiting, status="testing", commit=base, is_merge_base=True)
    doubtful = files.find_doubtful(context.history, bad, state.good, first_parent=first_parent)
    counted = _count(context, doubtful, state.options)
    weights = files.weigh(doubtful, counted, first_parent=first_parent)
    chosen = files.choose(weights, counted, state.skipped)
    if chosen is not None and chosen != bad:
        left, steps = len(counted) - weights[chosen] - 1, files.steps_left(len(counted))
        return replace(waiting, status="testing", commit=chosen, left=max(left, 0), steps=steps)
    skipped = [commit for commit in counted if commit in state.skipped]
    if skipped:
        return replace(waiting, status="undecided", doubtful=tuple(dict.fromkeys([bad, *skipped])))
    if chosen is None:
        raise ConflictError(
            f"none of the {len(doubtful):,} commits in doubt changed any of these paths or tensors",
            hint="start again without paths and tensors",
        )
    return replace(waiting, status="found", commit=bad)


def _count(context: Context, doubtful: Sequence[CommitInfo], options: BisectOptions) -> list[GitId]:
    """Return the commits that are worth a test, in the order of ``doubtful``."""
    if not options.paths and options.tensors is None:
        return [info.id for info in doubtful]
    reader, read_tree = TensorContents(context), lru_cache(_TREES_KEPT)(context.history.read_tree)

    def differs(info: CommitInfo) -> bool:
        """Return whether a commit differs from all its parents in the chosen paths and tensors."""
        trees = [read_tree(parent) for parent in info.parents] or [{}]
        return all(
            reader.differ(before, read_tree(info.id), options.paths, options.tensors)
            for before in trees
        )

    return [info.id for info in doubtful if differs(info)]


def run(
    context: Context,
    test: Callable[[GitId], bool | None],
    *,
    before_test: Callable[[BisectStep], None] | None = None,
) -> BisectStep:
    """Test commits until the first bad one is found.

    Args:
        test: returns whether a commit is good, None if it cannot be tested. What it raises ends
            the run; the bisection can go on.
        before_test: called before each test.

    Raises:
        ConflictError: no bisection is under way, or no bad or no good commit is known.
    """
    step = advance(context)
    if step.status == "waiting":
        raise ConflictError(
            "a bad and a good commit must be known first", hint='"mvc bisect start BAD GOOD"'
        )
    while step.status == "testing":
        if before_test is not None:
            before_test(step)
        commit = step.commit
        assert commit is not None
        verdict = test(commit)
        if verdict is None:
            step = skip(context, commit)
        else:
            step = mark(context, step.terms[bool(verdict)], commit)
    return step


def read_step(context: Context) -> BisectStep | None:
    """Return where the bisection stands, None without one; nothing is changed.

    Raises:
        CorruptionError: what is kept of it is damaged.
    """
    state = find_bisection(context)
    return None if state is None else _decide(context, state)


def reset(context: Context, revision: str | None = None) -> CheckoutResult | None:
    """End the bisection, and go back to where HEAD was or to a revision; None without one.

    Raises:
        ConflictError: local changes would be lost; the bisection continues.
    """
    recover(context)
    origin = files.read(context, BISECTION)
    if origin is None:
        return None
    is_untouched = (context.git_dir / files.UNTOUCHED).exists() and revision is None
    if not is_untouched and revision is None and context.history.find_commit(origin) is None:
        raise NotFoundError(
            f"{origin!r}, where HEAD was, is gone", hint='"mvc bisect reset REV" goes to REV'
        )
    if is_untouched:
        head = context.history.head()
        result = CheckoutResult(head.commit, head.branch)
    else:
        result = checkout_revision(context, revision or origin)
    files.clear(context)
    return result


def read_log(context: Context) -> str:
    """Return the answers so far, in the format that ``bisect_replay`` and Git read.

    Raises:
        ConflictError: no bisection is under way.
    """
    get_bisection(context)
    return files.read_log(context)


def _begin(context: Context, revisions: Sequence[str], options: BisectOptions) -> None:
    """Record a new bisection; everything is checked before the previous one is dropped."""
    history, head = context.history, context.history.head()
    if options.terms is not None:
        files.check_terms(*options.terms)
    origin = files.read(context, BISECTION) or head.branch or head.commit
    if origin is None or head.commit is None:
        raise NotFoundError("there is no commit yet", hint='make one with "mvc commit"')
    commits = [history.resolve_commit(revision) for revision in revisions]
    if commits:
        _check_good(context, commits[0], commits[1:])
    files.clear(context)
    files.write_start(context, origin, head.commit, options)
    terms = options.terms or files.DEFAULT_TERMS
    lines = [
        files.mark(context, terms, "good" if place else "bad", commit)
        for place, commit in enumerate(commits)
    ]
    # By their ids: HEAD is elsewhere by the time that the log is replayed.
    words = files.quote(options.words(commits))
    files.add_to_log(context, [*lines, f"git bisect start {words}".rstrip()])


def _answer(context: Context, term: str, revisions: Sequence[str]) -> None:
    """Mark commits as bad or good; the tested one by default."""
    state = get_bisection(context)
    terms = state.terms
    if state.options.terms is None and term in ("new", "old"):
        terms = ("new", "old")
    if term not in terms:
        raise UsageError(
            f"{term!r} is not a term of this bisection",
            hint=f"its terms are {' and '.join(map(repr, terms))}",
        )
    is_bad = term == terms[0]
    commits = [context.history.resolve_commit(revision) for revision in revisions]
    commits = commits or [_tested(context)]
    if is_bad and len(commits) > 1:
        raise UsageError(f"only one commit can be {term!r}")
    bad = commits[0] if is_bad else state.bad
    if bad is not None:
        _check_good(context, bad, state.good if is_bad else commits)
    for commit in commits:
        line = files.mark(context, terms, "bad" if is_bad else "good", commit)
        files.add_to_log(context, [line, f"git bisect {term} {commit}"])


def _leave_out(context: Context, revisions: Sequence[str]) -> None:
    """Mark commits as untestable; the tested one by default."""
    state = get_bisection(context)
    for commit in list_commits(context, revisions) if revisions else [_tested(context)]:
        line = files.mark(context, state.terms, "skip", commit)
        files.add_to_log(context, [line, f"git bisect skip {commit}"])


def _tested(context: Context) -> GitId:
    """Return the commit that is tested: BISECT_HEAD if nothing is checked out, or else HEAD."""
    return context.history.find_ref(files.UNTOUCHED) or context.history.resolve_commit("HEAD")


def _check_good(context: Context, bad: GitId, good: Sequence[GitId]) -> None:
    """Check that no good commit is the bad one or has it among its ancestors."""
    for commit in good:
        if context.history.is_ancestor(bad, commit):
            descendant = f"bad, and its descendant {commit[:7]} good"
            raise ConflictError(
                f"commit {bad[:7]} would be {'both good and bad' if commit == bad else descendant}",
                hint='did you mix them up? To find the commit that fixed something, use "new" and "old"',
            )
