"""Which commits and files keep their content: a retention policy, and its choice. Pure.

A commit is kept if any rule keeps it. Whatever the policy says, these keep what they hold: HEAD, the
tip of every branch, every commit that a tag or any other ref points to, and the ``diverged/``
branches that rollbacks leave: every commit that can be reached from one of them and from no other
branch. A ``diverged/`` branch that the policy *names* loses this protection and that of its tip; its
commits are then judged like all others.

    keep-last N      per branch, the newest N commits along first parents; a detached HEAD counts
                     as a branch, a ``diverged/`` branch does not
    keep-every M     commits whose step is a multiple of M; a commit without a step never is
    keep-best K      the K commits of all branches with the smallest (or largest) value of a
                     metric; NaN never counts, and of equal values the newer wins
    keep-within T    commits recorded in the last T seconds

Commits that have no content left do not count in ``keep-last`` and ``keep-best``.

``weights-only`` keeps the files that are the model. A file's name is cut into words
(``optimizer_state.pt``: optimizer, state). A word that begins with *model*, *ema*, *weight*,
*adapter* or *lora* makes it the model; otherwise *optimizer*, *optim*, *scheduler*, *sched*, *rng*,
*scaler*, *trainer*, *dataloader* or *sampler* make it state, and so do *state* and *states* without
*dict*. If the name says neither, the folders above decide, the nearest first. A file that nothing is
known about is kept.

A commit from memory has a file per top-level name of the state (``model``, ``optimizer``, …). If one
of these names is a model's, all others are state.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from mvc.checkpoints.names import is_model_name, is_model_path
from mvc.errors import UsageError
from mvc.upkeep.durations import duration_text
from mvc.upkeep.versions import reach

if TYPE_CHECKING:
    from mvc.ids import GitId

DIVERGED = "diverged/"
_PLAIN_WORD = re.compile(r"[A-Za-z0-9_@%+=:,./-]+", re.ASCII)
_NO_RULE_HINT = "say what to keep: give `keep_last`, `keep_every`, `keep_best` or `keep_tagged`"
_OPTIONS = {
    "keep_last": "--keep-last",
    "keep_every": "--keep-every",
    "keep_best": "--keep-best",
    "metric": "--metric",
    "maximise": "--max",
    "keep_tagged": "--keep-tagged",
    "keep_branch_tips": "--keep-branch-tips",
    "keep_within_s": "--keep-within",
    "weights_only": "--weights-only",
    "also_diverged": "--also-diverged",
}


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """What to keep; the fields are the parameters of ``repo.upkeep.plan_prune``, which documents them."""

    keep_last: int | None = None
    keep_every: int | None = None
    keep_best: int | None = None
    metric: str | None = None
    maximise: bool = False
    keep_tagged: bool = False
    keep_branch_tips: bool = False
    keep_within_s: int | None = None
    weights_only: bool = False
    also_diverged: tuple[str, ...] = ()

    def check(self) -> None:
        """Check that the policy has a rule, and that its values make sense."""
        for name in ("keep_last", "keep_every", "keep_best"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(
                    f"a rule with {value} keeps nothing", hint=f"give `{name}` 1 or more"
                )
        if self.keep_within_s is not None and self.keep_within_s < 0:
            raise UsageError(f"an age of {self.keep_within_s} s is negative")
        if (self.keep_best is None) != (self.metric is None):
            raise UsageError(
                "keeping the best commits takes both a number and a metric",
                hint="give `keep_best` and `metric`",
            )
        if self.maximise and self.keep_best is None:
            raise UsageError(
                "which metric values are better matters only for the best commits",
                hint="give `keep_best`",
            )
        rules = (self.keep_last, self.keep_every, self.keep_best, self.keep_within_s)
        if not (self.keep_tagged or self.keep_branch_tips) and rules.count(None) == len(rules):
            raise UsageError("the policy keeps nothing", hint=_NO_RULE_HINT)

    def text(self) -> str:
        """Return the policy as on the command line; release records store this text."""
        words: list[str] = []
        for name, option in _OPTIONS.items():
            value = getattr(self, name)
            if value is True:
                words.append(option)
            elif value is not None and value is not False:  # an age of 0 is a rule too
                values = value if isinstance(value, tuple) else (value,)
                to_text = duration_text if name == "keep_within_s" else str
                words += [word for part in values for word in (option, _quoted(to_text(part)))]
        return " ".join(words)

    def names_diverged(self, branch: str) -> bool:
        """Return whether a branch is a ``diverged/`` one that the policy names."""
        return branch.startswith(DIVERGED) and any(
            fits_diverged(pattern, branch) for pattern in self.also_diverged
        )


def fits_diverged(pattern: str, branch: str) -> bool:
    """Return whether a name or wildcard, with or without ``diverged/``, matches a branch."""
    return fnmatchcase(branch, pattern) or fnmatchcase(branch, DIVERGED + pattern)


def _quoted(word: str) -> str:
    if _PLAIN_WORD.fullmatch(word):
        return word
    plain = "".join(sign if sign.isprintable() else "?" for sign in word)
    return "'" + plain.replace("'", "'\"'\"'") + "'"


@dataclass(frozen=True, slots=True)
class Candidate:
    """One commit as a policy sees it."""

    id: GitId
    parents: tuple[GitId, ...]
    time_s: int
    step: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    has_content: bool = True


@dataclass(frozen=True, slots=True)
class Landmarks:
    """Where the refs of a repository stand: name → commit, tags followed."""

    head: GitId | None = None
    branches: Mapping[str, GitId] = field(default_factory=dict)
    tags: Mapping[str, GitId] = field(default_factory=dict)
    others: Mapping[str, GitId] = field(default_factory=dict)

    def tips(self) -> list[GitId]:
        """Return every commit that a ref or HEAD points to, each once."""
        named = (*self.branches.values(), *self.tags.values(), *self.others.values())
        return list(dict.fromkeys(named if self.head is None else (self.head, *named)))


def choose(
    commits: Sequence[Candidate], landmarks: Landmarks, policy: RetentionPolicy, now_s: int
) -> dict[GitId, tuple[str, ...]]:
    """Return for every commit why it is kept; no reason means that its content may go.

    ``commits`` are all that the refs reach, newest first, children before parents.
    """
    policy.check()
    reasons: dict[GitId, list[str]] = {commit.id: [] for commit in commits}
    known = {commit.id: commit for commit in commits}
    marks = (
        *_protected(known, landmarks, policy),
        *_last(known, landmarks, policy),
        *_by_step(commits, policy),
        *_best(commits, policy),
        *_recent(commits, policy, now_s),
    )
    for commit, reason in marks:
        if commit in reasons and reason not in reasons[commit]:
            reasons[commit].append(reason)
    return {commit: tuple(given) for commit, given in reasons.items()}


def find_protected(
    commits: Iterable[Candidate], landmarks: Landmarks, policy: RetentionPolicy
) -> set[GitId]:
    """Return the commits that are kept whatever the rules of a policy say."""
    known = {commit.id: commit for commit in commits}
    return {commit for commit, _ in _protected(known, landmarks, policy)}


_Mark = tuple["GitId", str]


def _protected(
    known: Mapping[GitId, Candidate], landmarks: Landmarks, policy: RetentionPolicy
) -> Iterator[_Mark]:
    if landmarks.head is not None:
        yield landmarks.head, "HEAD"
    for name, tip in landmarks.branches.items():
        if policy.keep_branch_tips or not policy.names_diverged(name):
            yield tip, f"tip of {name}"
    for name, commit in landmarks.tags.items():
        yield commit, f"tag {name}"
    for name, commit in landmarks.others.items():
        yield commit, name
    ordinary = [tip for name, tip in landmarks.branches.items() if not name.startswith(DIVERGED)]
    ordinary += [] if landmarks.head is None else [landmarks.head]
    parents = {commit.id: commit.parents for commit in known.values()}
    shared = reach(parents, ordinary)
    for name, tip in landmarks.branches.items():
        if name.startswith(DIVERGED) and not policy.names_diverged(name):
            for commit in sorted(reach(parents, [tip], shared)):
                yield commit, f"on {name}"


def _last(
    known: Mapping[GitId, Candidate], landmarks: Landmarks, policy: RetentionPolicy
) -> Iterator[_Mark]:
    if policy.keep_last is None:
        return
    lines = {name: tip for name, tip in landmarks.branches.items() if not name.startswith(DIVERGED)}
    if landmarks.head is not None and landmarks.head not in lines.values():
        lines["HEAD"] = landmarks.head
    for name, tip in lines.items():
        left, commit = policy.keep_last, known.get(tip)
        while commit is not None and left:
            if commit.has_content:
                yield commit.id, f"last {policy.keep_last} of {name}"
                left -= 1
            commit = known.get(commit.parents[0]) if commit.parents else None


def _by_step(commits: Iterable[Candidate], policy: RetentionPolicy) -> Iterator[_Mark]:
    if policy.keep_every is None:
        return
    for commit in commits:
        if commit.step is not None and commit.step % policy.keep_every == 0:
            yield commit.id, f"every {policy.keep_every:,} steps"


def _best(commits: Sequence[Candidate], policy: RetentionPolicy) -> Iterator[_Mark]:
    if policy.keep_best is None or policy.metric is None:
        return
    sign = -1 if policy.maximise else 1
    ranked = sorted(
        (sign * value, -commit.time_s, place, commit.id)
        for place, commit in enumerate(commits)
        if commit.has_content
        and (value := commit.metrics.get(policy.metric)) is not None
        and value == value  # noqa: PLR0124  no NaN; math.isnan fails on whole numbers beyond floats
    )
    for rank, (*_, commit_id) in enumerate(ranked[: policy.keep_best], 1):
        yield commit_id, f"best {policy.metric} #{rank}"


def _recent(commits: Iterable[Candidate], policy: RetentionPolicy, now_s: int) -> Iterator[_Mark]:
    if policy.keep_within_s is None:
        return
    for commit in commits:
        if commit.time_s >= now_s - policy.keep_within_s:
            yield commit.id, f"within {duration_text(policy.keep_within_s)}"


def state_paths(paths: Iterable[str], state_files: Collection[str] = ()) -> tuple[str, ...]:
    """Return those of some files that are not the model.

    ``state_files`` are those of them that are top-level names of a committed state.
    """
    has_model = any(is_model_name(path) for path in state_files)
    state: list[str] = []
    for path in paths:
        is_model = is_model_path(path)
        if path in state_files and has_model:
            is_model = is_model or False
        if is_model is False:
            state.append(path)
    return tuple(state)
