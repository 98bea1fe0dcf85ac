"""prune: release the content of old commits by a retention policy; history itself stays as it is.

    plan   commits ──► why each is kept (``retention``) ──► files of the others ──► what they cost
    run    release records, durable  ──► gc frees what only released versions refer to

Commits, manifests and metrics stay: the log, ``diff`` by identity and checks of a re-run need no
content. A file version is released only if no version that stays has the same manifest, and gc does
not touch chunks that anything else needs. A commit that only a reflog still knows protects nothing:
if it shares a released manifest, that is recorded for it too. If the process ends between records
and sweep, the next gc or prune frees the rest.

What a remote has need not be recorded as released: it goes here, and reads fetch it back. That it has it
is looked up when the plan is made and again when it is carried out; what it cannot give stays.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from mvc.errors import ConflictError, NotFoundError, UnsupportedError
from mvc.history.names import HEADS, TAGS
from mvc.operations.gc import GcPlan, plan_sweeping, sweep_garbage
from mvc.remotes.history import list_chunks
from mvc.remotes.pushed import Pushed, look_up
from mvc.states.document import STATE_FILE
from mvc.upkeep.retention import (
    DIVERGED,
    Candidate,
    Landmarks,
    RetentionPolicy,
    choose,
    find_protected,
    fits_diverged,
    state_paths,
)
from mvc.upkeep.sweep import NO_IDS, upkeep_lock
from mvc.upkeep.versions import Versions, commits_of, walk_all
from mvc.workspace.manifests import find_manifest
from mvc.workspace.recovery import recover
from mvc.workspace.releases import Release, add_releases, read_releases
from mvc.workspace.state_files import find_state_files
from mvc.workspace.trailers import read_annotations

if TYPE_CHECKING:
    from mvc.chunkstore.copies import Ids
    from mvc.history.values import CommitInfo
    from mvc.ids import ChunkId, GitId
    from mvc.workspace.context import Context


@dataclass(frozen=True, slots=True)
class CommitPlan:
    """What happens to the content of one commit.

    Attributes:
        commit: its id.
        subject: first line of its message.
        step: training step, or None.
        time_s: when it was recorded, seconds since 1970.
        reasons: why its content is kept; empty if no rule keeps it.
        paths: files whose content is released now.
        kept_paths: files whose content stays, by a reason or because other versions share it.
        size_bytes: stored bytes that go with it; chunks of several commits count for the newest.
        was_released: whether nothing was left of it before.
    """

    commit: GitId
    subject: str
    step: int | None
    time_s: int
    reasons: tuple[str, ...]
    paths: tuple[str, ...] = ()
    kept_paths: tuple[str, ...] = ()
    size_bytes: int = 0
    was_released: bool = False


@dataclass(frozen=True, slots=True)
class PrunePlan:
    """What a prune would do.

    Attributes:
        policy: what is kept.
        commits: every commit that refs reach, newest first.
        releases: what would be recorded.
        freed_bytes: bytes on disk that gc would free, including garbage that is old enough.
        landmarks: where the refs stood.
        pushed_to: the remote that keeps what goes here; None: it goes for good, and is recorded.
        sweep: how it goes, if a remote keeps it.
    """

    policy: RetentionPolicy
    commits: tuple[CommitPlan, ...]
    releases: tuple[Release, ...]
    freed_bytes: int
    landmarks: Landmarks = field(repr=False)
    pushed_to: str | None = None
    sweep: GcPlan | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class PruneResult:
    """The ``plan`` that was carried out, and ``freed_bytes``: bytes on disk that gc freed."""

    plan: PrunePlan
    freed_bytes: int


def plan_prune(
    context: Context,
    *,
    keep_last: int | None = None,
    keep_every: int | None = None,
    keep_best: int | None = None,
    metric: str | None = None,
    maximise: bool = False,
    keep_tagged: bool = False,
    keep_branch_tips: bool = False,
    keep_within_s: int | None = None,
    weights_only: bool = False,
    also_diverged: Iterable[str] = (),
    pushed: bool | str = False,
    now_s: int | None = None,
) -> PrunePlan:
    """Return which commits keep their content and which would release it; nothing is changed.

    One rule is enough to keep a commit. HEAD, branch tips, tagged commits and every
    ``diverged/`` branch that is not named are always kept.

    Args:
        keep_last: this many newest commits of each branch, along first parents.
        keep_every: commits whose step is a multiple of this.
        keep_best: this many commits with the best value of ``metric``.
        metric: name of a metric; the smallest value is the best.
        maximise: the largest value is the best.
        keep_tagged: keep only what is always kept.
        keep_branch_tips: also keep the tips of the ``diverged/`` branches that are named.
        keep_within_s: commits that are at most this many seconds old.
        weights_only: of the other commits, release everything but the model.
        also_diverged: names or wildcards of ``diverged/`` branches to release from as well.
        pushed: release only what a remote has (the default one, or that of the name given), and
            only here: reads fetch it back. No other rule is needed then.
        now_s: the present, in seconds since 1970; defaults to the clock's.

    Raises:
        UsageError: no rule, a number below 1, or ``keep_best`` and no ``metric``.
        NotFoundError: a name that matches no ``diverged/`` branch, or no remote.
    """
    rules = (keep_last, keep_every, keep_best, keep_within_s)
    policy = RetentionPolicy(
        keep_last=keep_last,
        keep_every=keep_every,
        keep_best=keep_best,
        metric=metric,
        maximise=maximise,
        keep_tagged=keep_tagged or (bool(pushed) and rules.count(None) == len(rules)),
        keep_branch_tips=keep_branch_tips,
        keep_within_s=keep_within_s,
        weights_only=weights_only,
        also_diverged=tuple(also_diverged),
    )
    policy.check()
    source = look_up(context, pushed if isinstance(pushed, str) else None) if pushed else None
    return _plan(context, policy, source, now_s)


def _plan(
    context: Context, policy: RetentionPolicy, pushed: Pushed | None, now_s: int | None = None
) -> PrunePlan:
    landmarks = read_landmarks(context)
    _check_names(policy, landmarks)
    there = None if pushed is None else pushed.commits
    now_s = int(time.time()) if now_s is None else now_s
    draft = _Draft(context, policy, landmarks, now_s, there)
    releases = draft.releases()
    keep = NO_IDS
    if pushed is not None:
        blobs = ((blob, "blob") for release in releases for blob in release.blobs)
        keep = pushed.find_lacking(list_chunks(context, dict.fromkeys(blobs)))
    elif not releases and not draft.has_released:
        return PrunePlan(policy, draft.commits({}), (), 0, landmarks)
    swept = plan_sweeping(context, releasing=releases, keep=keep)
    commits = draft.commits(draft.measure(np.union1d(swept.marks.needed, keep)))
    plan = PrunePlan(policy, commits, releases, swept.freed_bytes, landmarks)
    if pushed is None:
        return plan
    return replace(plan, pushed_to=pushed.remote.settings.name, sweep=swept)


def _run_pushed(context: Context, plan: PrunePlan) -> PruneResult:
    """Look the remote up once more, let it promise what it has, and free that here."""
    with upkeep_lock(context):
        pushed = look_up(context, plan.pushed_to)
        now = _plan(context, plan.policy, pushed)
        if not now.releases or now.sweep is None:
            return PruneResult(now, 0)
        pushed.let_promise(context)
        return PruneResult(now, sweep_garbage(context, now.sweep).freed_bytes)


def run_prune(context: Context, plan: PrunePlan) -> PruneResult:
    """Release the content that a plan of ``plan_prune`` names; commits and metrics stay.

    Raises:
        ConflictError: a ref moved meanwhile and protects what would be released.
        StorageError: the machine failed; the next gc frees what was recorded as released.
    """
    if plan.pushed_to is not None:
        return _run_pushed(context, plan)
    if not plan.releases and plan.freed_bytes <= 0:
        return PruneResult(plan, 0)
    with upkeep_lock(context):
        with context.history.no_sweep(), context.history.lock():
            recover(context)  # it may move a branch back to what would be released
            _check_unmoved(context, plan)
            add_releases(context, plan.releases)
        return PruneResult(plan, sweep_garbage(context, plan_sweeping(context)).freed_bytes)


def read_landmarks(context: Context) -> Landmarks:
    """Return where HEAD, branches, tags and other refs stand, tags followed to their commits."""
    refs = context.ref_commits()
    branches = {name[len(HEADS) :]: refs[name] for name in refs if name.startswith(HEADS)}
    tags = {name[len(TAGS) :]: refs[name] for name in refs if name.startswith(TAGS)}
    others = {name: refs[name] for name in refs if not name.startswith((HEADS, TAGS))}
    return Landmarks(context.history.head().commit, branches, tags, others)


def _check_names(policy: RetentionPolicy, landmarks: Landmarks) -> None:
    diverged = [name for name in landmarks.branches if name.startswith(DIVERGED)]
    for pattern in policy.also_diverged:
        if not any(fits_diverged(pattern, name) for name in diverged):
            raise NotFoundError(
                f"no branch below {DIVERGED} matches {pattern!r}", hint='"mvc branch" lists them'
            )


def _check_unmoved(context: Context, plan: PrunePlan) -> None:
    current = read_landmarks(context)
    if current == plan.landmarks:
        return
    infos = context.history.walk(commits_of(context, current.tips()))
    commits = (Candidate(info.id, info.parents, info.commit_time_s) for info in infos)
    protected = find_protected(commits, current, plan.policy)
    for release in plan.releases:
        if release.commit in protected:
            fact = f"a ref moved and now protects commit {release.commit}"
            raise ConflictError(fact, hint="plan it again")


def _without(chunks: list[ChunkId], needed: Ids) -> list[ChunkId]:
    """Return those of some chunks that are not needed; ``needed`` is sorted."""
    if not chunks or not len(needed):
        return chunks
    wanted = np.frombuffer(b"".join(chunks), "S32")
    places = np.minimum(np.searchsorted(needed, wanted), len(needed) - 1)
    is_needed = needed[places] == wanted
    return [chunk for chunk, stays in zip(chunks, is_needed.tolist(), strict=True) if not stays]


class _Draft:
    """A plan in the making: what no rule keeps, what of it nothing else needs, and its size."""

    def __init__(
        self,
        context: Context,
        policy: RetentionPolicy,
        landmarks: Landmarks,
        now_s: int,
        pushed: Collection[GitId] | None = None,
    ) -> None:
        self._context = context
        self._policy = policy
        self._now_s = now_s
        self._versions = Versions(context)
        self._past = read_releases(context)
        self.has_released = bool(self._past)  # an earlier prune may not have finished
        self._infos = list(context.history.walk(commits_of(context, landmarks.tips())))
        self._left = {info.id: self._versions.left(info, self._past) for info in self._infos}
        self._facts = {info.id: read_annotations(info) for info in self._infos}
        candidates = [self._candidate(info) for info in self._infos]
        self._reasons = choose(candidates, landmarks, policy, now_s)
        for commit in self._left.keys() - (self._left.keys() if pushed is None else pushed):
            self._reasons[commit] = (*self._reasons[commit], "not pushed")
        self._released = self._find_released()

    def _is_empty(self, info: CommitInfo) -> bool:
        return bool(self._versions.of(info)) and not self._left[info.id]

    def _candidate(self, info: CommitInfo) -> Candidate:
        facts = self._facts[info.id]
        return Candidate(
            info.id,
            info.parents,
            info.commit_time_s,
            facts.step,
            facts.metrics or {},
            has_content=not self._is_empty(info),
        )

    def _find_released(self) -> dict[GitId, tuple[str, ...]]:
        """Return commit → its files that may go and share no manifest with one that stays."""
        chosen = {info.id: self._choose_files(info) for info in self._infos}
        live = {blob for _, blob in self._context.history.read_index().blobs()}
        for commit, left in self._left.items():
            away = set(chosen[commit])
            live.update(blob for path, blob in left.items() if path not in away)
        return {
            commit: tuple(path for path in chosen[commit] if left[path] not in live)
            for commit, left in self._left.items()
        }

    def _choose_files(self, info: CommitInfo) -> tuple[str, ...]:
        left = self._left[info.id]
        if self._reasons[info.id]:
            return ()
        if not self._policy.weights_only:
            return tuple(left)
        tree, state_files = self._context.history.read_tree(info.tree), set[str]()
        with suppress(UnsupportedError):  # a newer mvc's: names alone decide
            state_files = find_state_files(self._context, tree)
        paths = [path for path in left if path != STATE_FILE]
        return state_paths(paths, state_files.intersection(paths))

    def measure(self, needed: Ids) -> dict[GitId, int]:
        """Return commit → stored bytes of the chunks that go with it and not with a newer one."""
        seen: set[ChunkId] = set()
        sizes: dict[GitId, int] = {}
        for commit, paths in self._released.items():
            sizes[commit] = 0
            for path in paths:
                manifest = find_manifest(self._context, self._left[commit][path])
                ids = set() if manifest is None else set(manifest.chunk_ids()) - seen
                seen |= ids
                places = map(self._context.here.find, _without(list(ids), needed))
                sizes[commit] += sum(place.stored_size_bytes for place in places if place)
        return sizes

    def releases(self) -> tuple[Release, ...]:
        chosen = ((commit, paths) for commit, paths in self._released.items() if paths)
        releases = [self._release(commit, self._left[commit], paths) for commit, paths in chosen]
        blobs = {blob for release in releases for blob in release.blobs}
        # Commits that only a reflog knows protect nothing: what they share goes for them too.
        for info in walk_all(self._context) if blobs else ():
            if info.id not in self._left:
                left = self._versions.left(info, self._past)
                paths = tuple(path for path, blob in left.items() if blob in blobs)
                if paths:
                    releases.append(self._release(info.id, left, paths))
        return tuple(releases)

    def _release(
        self, commit: GitId, files: Mapping[str, GitId], paths: tuple[str, ...]
    ) -> Release:
        blobs = tuple(files[path] for path in paths)
        return Release(commit, paths, self._policy.text(), self._now_s, blobs)

    def commits(self, sizes: Mapping[GitId, int]) -> tuple[CommitPlan, ...]:
        return tuple(
            CommitPlan(
                info.id,
                info.subject,
                self._facts[info.id].step,
                info.commit_time_s,
                self._reasons[info.id],
                self._released[info.id],
                tuple(path for path in self._left[info.id] if path not in self._released[info.id]),
                sizes.get(info.id, 0),
                self._is_empty(info),
            )
            for info in self._infos
        )
