"""The parts of ``Repo`` that have a name of their own: ``repo.data``, ``repo.bisect`` and others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc import operations, workspace
from mvc.lazy import verb

if TYPE_CHECKING:
    from mvc.operations import (  # noqa: F401
        bisect,
        bisect_metric,
        branch,
        data_add,
        data_maps,
        data_places,
        data_seen,
        data_who,
        doctor,
        du,
        fsck_remote,
        gc,
        gc_remote,
        mend,
        prune,
        remotes,
        repack,
        rollback,
        scale,
        sharing,
        upstream,
        watch,
    )
    from mvc.workspace import verdicts  # noqa: F401
    from mvc.workspace.context import Context


class Namespace:
    """A part of an open repository."""

    def __init__(self, context: Context) -> None:
        self._context = context


class Data(Namespace):
    """The maps of shards: which files a data set has, and what is in them.

    A map is named by its path, with or without ``.shards``, or by the last part of that.
    """

    add = verb(lambda: operations.data_add.add_data)
    names = verb(lambda: operations.data_maps.name_maps)
    list = verb(lambda: operations.data_maps.list_maps)
    diff = verb(lambda: operations.data_maps.diff_maps)
    verify = verb(lambda: operations.data_maps.verify_maps)
    check = verb(lambda: operations.data_places.check_known)
    remove = verb(lambda: operations.data_maps.remove_data)
    seen = verb(lambda: operations.data_seen.list_seen)
    who_saw = verb(lambda: operations.data_who.find_who)


class Bisect(Namespace):
    """A search for the commit that broke something."""

    start = verb(lambda: operations.bisect.start)
    mark = verb(lambda: operations.bisect.mark)
    skip = verb(lambda: operations.bisect.skip)
    next = verb(lambda: operations.bisect.advance)
    run = verb(lambda: operations.bisect.run)
    step = verb(lambda: operations.bisect.read_step)
    log = verb(lambda: operations.bisect.read_log)
    replay = verb(lambda: operations.bisect.replay)
    reset = verb(lambda: operations.bisect.reset)
    metric = verb(lambda: operations.bisect_metric.bisect_metric)


class Runs(Namespace):
    """Training runs: how one is going, back to a healthy commit, growing to more ranks."""

    read = verb(lambda: operations.watch.read_run)
    follow = verb(lambda: operations.watch.follow_run)
    plan_rollback = verb(lambda: operations.rollback.plan_rollback)
    rollback = verb(lambda: operations.rollback.run_rollback)
    mark_healthy = verb(lambda: workspace.verdicts.mark_healthy)
    healthy = verb(lambda: workspace.verdicts.healthy_commits)
    plan_scale = verb(lambda: operations.scale.plan_scale)
    scale_status = verb(lambda: operations.scale.scale_status)
    record_scale = verb(lambda: operations.scale.record_scale)


class Remotes(Namespace):
    """Where else the repository is.

    ``remote`` is the name of a remote, or a URL or path; by default ``origin``, or the only one.
    """

    list = verb(lambda: operations.upstream.list_remotes)
    add = verb(lambda: operations.remotes.add)
    rename = verb(lambda: operations.remotes.rename)
    remove = verb(lambda: operations.remotes.remove)
    set_url = verb(lambda: operations.remotes.set_url)
    check = verb(lambda: operations.remotes.check)
    refs = verb(lambda: operations.remotes.list_refs_there)
    show = verb(lambda: operations.remotes.show)
    prune = verb(lambda: operations.remotes.prune)
    upstream = verb(lambda: operations.upstream.upstream)
    set_upstream = verb(lambda: operations.upstream.set_upstream)
    plan_gc = verb(lambda: operations.gc_remote.plan_gc_remote)
    gc = verb(lambda: operations.gc_remote.gc_remote)


class Branches(Namespace):
    """The branches of a repository."""

    list = verb(lambda: operations.branch.list_branches)
    create = verb(lambda: operations.branch.create_branch)
    rename = verb(lambda: operations.branch.rename_branch)
    delete = verb(lambda: operations.branch.delete_branch)


class Tags(Namespace):
    """The tags of a repository."""

    list = verb(lambda: operations.branch.list_tags)
    create = verb(lambda: operations.branch.create_tag)
    delete = verb(lambda: operations.branch.delete_tag)
    message = verb(lambda: operations.branch.tag_message)


class Upkeep(Namespace):
    """What is kept and what it costs; whether all is well."""

    plan_prune = verb(lambda: operations.prune.plan_prune)
    prune = verb(lambda: operations.prune.run_prune)
    plan_gc = verb(lambda: operations.gc.plan_gc)
    gc = verb(lambda: operations.gc.gc)
    plan_repack = verb(lambda: operations.repack.plan_repack)
    repack = verb(lambda: operations.repack.repack)
    is_repack_due = verb(lambda: operations.repack.is_due)
    du = verb(lambda: operations.du.du)
    fsck = verb(lambda: operations.fsck_remote.fsck_any)
    mend = verb(lambda: operations.mend.mend_commit)
    doctor = verb(lambda: operations.doctor.doctor)
    probe_sharing = verb(lambda: operations.sharing.probe_sharing)
