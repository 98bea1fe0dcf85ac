"""Who changed what, when it broke, which commit is best."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc import operations
from mvc.repo.opening import OpenRepo

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mvc.ids import GitId
    from mvc.operations import bisect_marks  # noqa: F401
    from mvc.operations.best import BestCommit
    from mvc.operations.bisect import BisectStep
    from mvc.operations.bisect_metric import MetricBreak
    from mvc.operations.blame import Blame
    from mvc.repo.opening import Paths, Progress
    from mvc.workspace.checkout_plan import CheckoutResult


class Searching(OpenRepo):
    """Who changed what, when it broke, which commit is best."""

    def blame(
        self,
        revision: str = "HEAD",
        *,
        tensors: str | None = None,
        paths: Paths = (),
        samples: int = 24,
        compute: bool = False,
        progress: Progress = None,
    ) -> Blame:
        """Return for each tensor the commit that last changed it, and its drift along history.

        Args:
            revision: which commit.
            tensors: only these tensors.
            paths: only these files, folders or wildcards.
            samples: at how many commits, spread evenly along first parents, to sample the drift.
            compute: read and compare what is not cached; otherwise no tensor is read.
            progress: called with bytes read.

        Raises:
            NotFoundError: no such revision, or no such tensor in it.
            UsageError: fewer than two samples.
        """
        return operations.blame.blame(
            self._context,
            revision,
            tensors=tensors,
            paths=self._paths(paths),
            samples=samples,
            compute=compute,
            progress=progress,
        )

    def bisect_start(
        self,
        bad: str | None = None,
        *good: str,
        paths: Paths = (),
        tensors: str | None = None,
        terms: tuple[str, str] | None = None,
        checkout: bool = True,
        first_parent: bool = False,
        progress: Progress = None,
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
        plan = operations.bisect_marks.BisectPlan(
            tuple(self._paths(paths)), tensors, terms, checkout, first_parent
        )
        return operations.bisect.start(self._context, bad, good, plan, progress=progress)

    def bisect_mark(self, term: str, *revisions: str, progress: Progress = None) -> BisectStep:
        """Mark commits as ``bad`` or ``good``; the tested one by default.

        Raises:
            ConflictError: no bisection is under way, or a commit would be both.
            UsageError: another word, or two bad commits.
        """
        return operations.bisect.mark(self._context, term, revisions, progress=progress)

    def bisect_skip(self, *revisions: str, progress: Progress = None) -> BisectStep:
        """Mark commits or ranges, the tested commit by default, as untestable.

        Raises:
            ConflictError: no bisection is under way.
        """
        return operations.bisect.skip(self._context, revisions, progress=progress)

    def bisect_next(self, *, progress: Progress = None) -> BisectStep:
        """Go to the commit to test, as after a crash or a checkout elsewhere.

        Raises:
            ConflictError: no bisection is under way, or local changes would be lost.
        """
        return operations.bisect.advance(self._context, progress=progress)

    def bisect_run(
        self,
        test: Callable[[GitId], bool | None],
        *,
        told: Callable[[BisectStep], None] | None = None,
        progress: Progress = None,
    ) -> BisectStep:
        """Test commits until the first bad one is found.

        Args:
            test: returns whether a commit is good, None if it cannot be tested. What it raises ends
                the run; the bisection can go on.
            told: called before each test.
            progress: called with bytes written.

        Raises:
            ConflictError: no bisection is under way, or no bad or no good commit is known.
        """
        return operations.bisect.run(self._context, test, told=told, progress=progress)

    def bisect_step(self) -> BisectStep | None:
        """Return where the bisection stands, None without one; nothing is changed.

        Raises:
            CorruptionError: what is kept of it is damaged.
        """
        return operations.bisect.read_step(self._context)

    def bisect_log(self) -> str:
        """Return the answers so far, in the format that ``bisect_replay`` and Git read.

        Raises:
            ConflictError: no bisection is under way.
        """
        return operations.bisect.read_log(self._context)

    def bisect_replay(self, log: str, *, progress: Progress = None) -> BisectStep:
        """Begin the bisection in a log and replay its answers.

        Raises:
            FormatError: the text is not such a log; a bisection under way is kept.
        """
        return operations.bisect.replay(self._context, log, progress=progress)

    def bisect_reset(
        self, revision: str | None = None, *, progress: Progress = None
    ) -> CheckoutResult | None:
        """End the bisection, and go back to where HEAD was or to a revision; None without one.

        Raises:
            ConflictError: local changes would be lost; the bisection continues.
        """
        return operations.bisect.reset(self._context, revision, progress=progress)

    def bisect_metric(
        self,
        metric: str,
        *,
        above: float | None = None,
        below: float | None = None,
        bad: str = "HEAD",
        good: Sequence[str] = (),
    ) -> MetricBreak:
        """Return the start of the bad values of a stored metric that lead up to a commit.

        Args:
            metric: its name, or ``step``.
            above: larger values are bad; NaN always is.
            below: smaller values are bad.
            bad: the commit to look back from; if it lacks the metric, the ones before it count.
            good: commits that are not looked at, nor what comes before them.

        Raises:
            ConflictError: the commit is not bad.
            NotFoundError: no commit there has the metric.
            UsageError: both bounds, or none.
        """
        return operations.bisect_metric.bisect_metric(
            self._context, metric, above=above, below=below, bad=bad, good=good
        )

    def best(self, metric: str, *revisions: str, maximise: bool = False) -> BestCommit:
        """Return the commit with the lowest value of a metric, the earliest of several.

        Commits that a rollback abandoned, and values that are not finite, are left out.

        Args:
            metric: its name; ``step`` and figures such as ``health.norm`` work too.
            revisions: where to look, by default what HEAD reaches; ``A..B`` excludes commits.
            maximise: return the commit with the highest value.

        Raises:
            NotFoundError: no such revision, or no commit there has the metric.
        """
        return operations.best.find_best(self._context, metric, revisions, maximise=maximise)
