"""What is kept and what it costs; whether all is well."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc import operations, upkeep
from mvc.errors import UsageError
from mvc.repo.opening import OpenRepo

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mvc.operations import fsck_remote, mend  # noqa: F401
    from mvc.operations.doctor import DoctorReport
    from mvc.operations.du import DuReport
    from mvc.operations.fsck import FsckReport
    from mvc.operations.gc import GcPlan, GcResult
    from mvc.operations.gc_remote import RemoteGcPlan, RemoteGcResult
    from mvc.operations.prune import PrunePlan, PruneResult
    from mvc.operations.repack import RepackPlan, RepackResult
    from mvc.operations.sharing import SharingReport
    from mvc.repo.opening import Progress


class Upkeep(OpenRepo):
    """What is kept and what it costs; whether all is well."""

    def plan_prune(
        self,
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
        policy = upkeep.retention.RetentionPolicy(
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
        if pushed:
            name = pushed if isinstance(pushed, str) else None
            return operations.prune.plan_prune_pushed(self._context, policy, name, now_s=now_s)
        return operations.prune.plan_prune(self._context, policy, now_s=now_s)

    def prune(self, plan: PrunePlan) -> PruneResult:
        """Release the content that a plan of ``plan_prune`` names; commits and metrics stay.

        Raises:
            ConflictError: a ref moved meanwhile and protects what would be released.
            StorageError: the machine failed; the next gc frees what was recorded as released.
        """
        return operations.prune.run_prune(self._context, plan)

    def plan_gc(
        self, *, grace_s: float | None = None, expire_reflogs_s: float | None = None
    ) -> GcPlan:
        """Return what is unreachable and how many bytes that is; nothing is removed.

        Args:
            grace_s: garbage younger than this stays; defaults to two weeks.
            expire_reflogs_s: drop reflog entries older than this; defaults to 90 days, and 30 for
                entries that their ref no longer reaches. 0 drops everything that no ref reaches.

        Raises:
            FormatError: the history is damaged.
            CorruptionError: something that is needed is missing.
        """
        expiry = operations.gc.reflog_expiry(expire_reflogs_s)
        return operations.gc.plan_gc(self._context, grace_s=grace_s, expiry=expiry)

    def gc(
        self, plan: GcPlan | None = None, *, grace_s: float | None = None, progress: Progress = None
    ) -> GcResult:
        """Remove what is unreachable; safe alongside commits and readers.

        Args:
            plan: from ``plan_gc``; by default it is made now.
            grace_s: as for ``plan_gc``, if there is no plan.
            progress: called with bytes of packs rewritten.

        Raises:
            CorruptionError: the repository is damaged; nothing more is removed.
        """
        return operations.gc.run_gc(self._context, plan or self.plan_gc(grace_s=grace_s), progress)

    def plan_gc_remote(
        self, remote: str | None = None, *, grace_s: float | None = None
    ) -> RemoteGcPlan:
        """Return what ``gc_remote`` would do; nothing changes there.

        Raises:
            MvcError: as of ``gc_remote``.
        """
        return operations.gc_remote.plan_gc_remote(self._context, remote, grace_s=grace_s)

    def gc_remote(
        self,
        remote: str | None = None,
        *,
        grace_s: float | None = None,
        progress: Progress = None,
    ) -> RemoteGcResult:
        """Remove from a remote what its refs and channels do not reach.

        That leaves the root of the remote at once, and the store after a grace period. Packs that are
        mostly garbage are written again, many short ones are joined. Others may push and fetch
        meanwhile, and it may be killed at any time.

        Args:
            remote: name or URL; as for ``push`` by default.
            grace_s: what is not named any more, or was sent and never named, stays for so long; two
                weeks by default.
            progress: called with bytes of packs that are written again.

        Raises:
            NotFoundError: there is no such remote, or nothing was pushed to it.
            CorruptionError: it lacks what its refs need, or is damaged; nothing was removed.
            UnsupportedError: its history is on a Git host.
            ConflictError: it changed again and again.
            StorageError: it cannot be reached.
        """
        return operations.gc_remote.gc_remote(
            self._context, remote, grace_s=grace_s, progress=progress
        )

    def plan_repack(self, *, everything: bool = False, grace_s: float | None = None) -> RepackPlan:
        """Return how to store the repository in less space; nothing is changed.

        Args:
            everything: include commits that an earlier repack has already looked at.
            grace_s: garbage younger than this stays; defaults to two weeks.

        Raises:
            FormatError: the history is damaged.
            CorruptionError: something that is needed is missing.
        """
        return operations.repack.plan_repack(self._context, everything=everything, grace_s=grace_s)

    def repack(self, plan: RepackPlan | None = None, *, progress: Progress = None) -> RepackResult:
        """Store chunks as differences across history and merge small packs.

        Args:
            plan: from ``plan_repack``; by default it is made now.
            progress: called with bytes of packs rewritten.

        Raises:
            ConflictError: another gc, prune or repack is running.
            CorruptionError: the repository is damaged; nothing more is removed.
        """
        return operations.repack.run_repack(self._context, plan or self.plan_repack(), progress)

    def is_repack_due(self) -> bool:
        """Return whether many packs are small, or many commits were never repacked.

        Raises:
            StorageError: the machine failed.
        """
        return operations.repack.is_due(self._context)

    def du(
        self,
        *revisions: str,
        by: Iterable[str] = ("branch", "tag", "commit", "file"),
    ) -> DuReport:
        """Return what is stored and for what: alone, shared, and its size as plain files.

        Args:
            revisions: only these commits: ``A`` is that one, ``A..B`` are those of B that A lacks;
                defaults to all that branches and tags reach.
            by: which lists to make, of ``branch``, ``tag``, ``commit``, ``file``, ``tensor``.

        Raises:
            UsageError: no such kind of list.
        """
        return operations.du.du(self._context, revisions, by=tuple(by))

    def fsck(
        self,
        *,
        data: bool = False,
        repair: bool = False,
        sources: Sequence[str] = (),
        remote: str | None = None,
        progress: Progress = None,
    ) -> FsckReport:
        """Check the repository, or a remote; what is wrong is in the report, not raised.

        Args:
            data: read, decode and hash every byte.
            repair: first rebuild pack indexes that are missing or damaged.
            sources: names or URLs of remotes; with ``repair`` all is read, and chunks and Git
                objects that are damaged or missing come from there, in this order.
            remote: check this one in place of the repository; nothing changes, there or here.
            progress: called with bytes checked.

        Raises:
            UsageError: these arguments do not go together.
            NotFoundError: there is no such remote, or nothing was pushed to it.
            ConflictError: ``repair`` while a gc, prune or repack is running.
            StorageError: the machine failed, or the remote cannot be reached.
        """
        if sources and not repair:
            raise UsageError(
                "remotes to bring content from are for a repair", hint="give `repair` too"
            )
        if remote is not None and repair:
            raise UsageError(
                "a remote cannot be repaired from here", hint="push what it lacks to it"
            )
        if remote is not None:
            return operations.fsck_remote.fsck_remote(
                self._context, remote, data=data, progress=progress
            )
        if sources:
            return operations.fsck_remote.repair_from(self._context, sources, progress=progress)
        return operations.fsck.fsck(self._context, data=data, repair=repair, progress=progress)

    def mend_commit(self, revision: str) -> tuple[str, ...]:
        """Mend the content of a commit as far as possible; return what was done, a line each.

        Every pack that it needs is read. Damaged ones are set aside, so that what is lost of them is
        stored again when it comes again, and remotes are asked for it at once.

        Raises:
            NotFoundError: no such revision.
            ConflictError: a gc, prune or repack is running.
            StorageError: the machine failed.
        """
        return operations.mend.mend_commit(self._context, revision)

    def probe_sharing(self, *, wait_s: float = 3.0) -> SharingReport:
        """Test whether the repository's folder does for several processes and machines what mvc needs.

        Whoever calls it within ``wait_s`` seconds, here or on other machines that see the folder, takes
        part; a second process of this machine always does.

        Raises:
            StorageError: nothing can be written there.
            UsageError: that is no time to wait, or more than ten minutes.
        """
        return operations.sharing.probe_sharing(self._context, wait_s)

    def doctor(self) -> DoctorReport:
        """Look at versions, file system and speed of the machine under the repository.

        Raises:
            StorageError: the machine failed.
        """
        return operations.doctor.doctor(self._context)
