"""bisect: find the commit that broke something by binary search, as Git does."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from mvc.errors import ConflictError, NotFoundError, ReleasedError
from mvc.history.bisection import choose, find_doubtful, steps_left, weigh
from mvc.operations.bisect_marks import (
    BisectPlan,
    answer,
    begin,
    leave_out,
    name_commit,
    replay_log,
)
from mvc.operations.checkout import checkout_revision
from mvc.workspace import bisection as files
from mvc.workspace.bisection import find_bisection, get_bisection
from mvc.workspace.checkout_plan import CheckoutResult
from mvc.workspace.manifests import TensorContents
from mvc.workspace.recovery import recover
from mvc.workspace.worktree import relative_paths

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from mvc.history.values import CommitInfo
    from mvc.ids import GitId
    from mvc.progress import ByteProgress
    from mvc.workspace.bisection import Bisection
    from mvc.workspace.context import Context
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


def start(
    context: Context,
    bad: str | None = None,
    *good: str,
    paths: Paths = (),
    tensors: str | None = None,
    terms: tuple[str, str] | None = None,
    checkout: bool = True,
    first_parent: bool = False,
    progress: ByteProgress = None,
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
        progress: called with bytes written.

    Raises:
        ConflictError: a good commit is the bad one or comes after it.
        UsageError: a term is not a word that can be used.
    """
    plan = BisectPlan(tuple(relative_paths(context, paths)), tensors, terms, checkout, first_parent)
    recover(context)
    begin(context, bad, good, plan)
    return advance(context, progress=progress)


def mark(context: Context, term: str, *revisions: str, progress: ByteProgress = None) -> BisectStep:
    """Mark commits as ``bad`` or ``good``; the tested one by default.

    Raises:
        ConflictError: no bisection is under way, or a commit would be both.
        UsageError: another word, or two bad commits.
    """
    answer(context, term, revisions)
    return advance(context, progress=progress)


def skip(context: Context, *revisions: str, progress: ByteProgress = None) -> BisectStep:
    """Mark commits or ranges, the tested commit by default, as untestable.

    Raises:
        ConflictError: no bisection is under way.
    """
    leave_out(context, revisions)
    return advance(context, progress=progress)


def replay(context: Context, log: str, *, progress: ByteProgress = None) -> BisectStep:
    """Begin the bisection in a log and replay its answers.

    Raises:
        FormatError: the text is not such a log; a bisection under way is kept.
    """
    recover(context)
    replay_log(context, log)
    return advance(context, progress=progress)


def advance(context: Context, *, progress: ByteProgress = None) -> BisectStep:
    """Go to the commit to test, as after a crash or a checkout elsewhere.

    Raises:
        ConflictError: no bisection is under way, or local changes would be lost.
    """
    released: list[GitId] = []
    while True:
        state = get_bisection(context)
        step = _decide(context, state, tuple(released))
        if step.status in ("found", "undecided"):
            files.add_to_log(context, _found_lines(context, step))
        if step.status != "testing":
            return step
        assert step.commit is not None
        files.write(context, files.EXPECTED, step.commit)
        if not state.checks_out:
            files.write(context, files.UNTOUCHED, step.commit)
            return step
        try:
            checkout_revision(context, step.commit, detach=True, progress=progress)
        except ReleasedError:
            released.append(step.commit)
            leave_out(context, [step.commit])
        except ConflictError as error:
            error.hint = 'commit or restore them, then run "mvc bisect next"'
            raise
        else:
            return step


def _found_lines(context: Context, step: BisectStep) -> Iterator[str]:
    term = step.terms[0]
    if step.commit is not None:
        yield f"# first {term} commit: {name_commit(context, step.commit)}"
        return
    yield "# only skipped commits left to test"
    for commit in step.doubtful:
        yield f"# possible first {term} commit: {name_commit(context, commit)}"


def _decide(context: Context, state: Bisection, released: tuple[GitId, ...] = ()) -> BisectStep:
    """Return where a bisection stands; nothing is changed."""
    facts = (state.words, state.bad, state.good)
    if state.bad is None or not state.good:
        return BisectStep("waiting", None, 0, 0, *facts)
    base = _untested_base(context, state)
    if base is not None:
        return BisectStep("testing", base, 0, 0, *facts, is_merge_base=True)
    doubtful = find_doubtful(
        context.history, state.bad, state.good, first_parent=state.first_parent
    )
    counted = _count(context, doubtful, state)
    weights = weigh(doubtful, counted, first_parent=state.first_parent)
    chosen = choose(weights, counted, state.skipped)
    tried = [one for one in counted if one in state.skipped]
    if chosen is None or chosen == state.bad:
        if tried:
            rest: list[GitId] = [state.bad, *(one for one in tried if one != state.bad)]
            return BisectStep(
                "undecided", None, 0, 0, *facts, doubtful=tuple(rest), released=released
            )
        if chosen is None:
            raise ConflictError(
                f"none of the {len(doubtful):,} commits in doubt changed any of these paths or tensors",
                hint="start again without paths and tensors",
            )
        return BisectStep("found", state.bad, 0, 0, *facts, released=released)
    left, steps = len(counted) - weights[chosen] - 1, steps_left(len(counted))
    return BisectStep("testing", chosen, max(left, 0), steps, *facts, released=released)


def _untested_base(context: Context, state: Bisection) -> GitId | None:
    """Return a common ancestor to test first: a good commit on another line says nothing of it."""
    history, bad = context.history, state.bad
    assert bad is not None
    known = {*state.good, *state.skipped}
    for good in state.good:
        if not history.is_ancestor(good, bad):
            for base in history.find_merge_bases(bad, good):
                if base not in known and not any(
                    history.is_ancestor(base, one) for one in state.good if one != good
                ):
                    return base
    return None


def _count(context: Context, doubtful: Sequence[CommitInfo], state: Bisection) -> list[GitId]:
    """Return the commits that are worth a test, in the order of ``doubtful``."""
    if not state.paths and state.tensors is None:
        return [info.id for info in doubtful]
    reader, read_tree = TensorContents(context), lru_cache(_TREES_KEPT)(context.history.read_tree)

    def differs(info: CommitInfo) -> bool:
        """Return whether a commit differs from all its parents in the chosen paths and tensors."""
        trees = [read_tree(parent) for parent in info.parents] or [{}]
        return all(
            reader.differ(before, read_tree(info.id), state.paths, state.tensors)
            for before in trees
        )

    return [info.id for info in doubtful if differs(info)]


def run(
    context: Context,
    test: Callable[[GitId], bool | None],
    *,
    before_test: Callable[[BisectStep], None] | None = None,
    progress: ByteProgress = None,
) -> BisectStep:
    """Test commits until the first bad one is found.

    Args:
        test: returns whether a commit is good, None if it cannot be tested. What it raises ends
            the run; the bisection can go on.
        before_test: called before each test.
        progress: called with bytes written.

    Raises:
        ConflictError: no bisection is under way, or no bad or no good commit is known.
    """
    step = advance(context, progress=progress)
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
            step = skip(context, commit, progress=progress)
        else:
            step = mark(context, step.terms[bool(verdict)], commit, progress=progress)
    return step


def read_step(context: Context) -> BisectStep | None:
    """Return where the bisection stands, None without one; nothing is changed.

    Raises:
        CorruptionError: what is kept of it is damaged.
    """
    state = find_bisection(context)
    return None if state is None else _decide(context, state)


def reset(
    context: Context, revision: str | None = None, *, progress: ByteProgress = None
) -> CheckoutResult | None:
    """End the bisection, and go back to where HEAD was or to a revision; None without one.

    Raises:
        ConflictError: local changes would be lost; the bisection continues.
    """
    recover(context)
    origin = files.find_start(context)
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
        result = checkout_revision(context, revision or origin, progress=progress)
    files.clear(context)
    return result


def read_log(context: Context) -> str:
    """Return the answers so far, in the format that ``bisect_replay`` and Git read.

    Raises:
        ConflictError: no bisection is under way.
    """
    get_bisection(context)
    return files.read_log(context)
