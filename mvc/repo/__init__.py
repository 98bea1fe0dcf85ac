"""The front door: ``Repo`` forwards to one operation per verb and decides nothing itself.

Parameters and errors are documented here, once, and not again on the operations.

Paths are repository paths (relative to the worktree, ``/``-separated) or absolute ones inside it.
Revisions follow Git's grammar, and ``main@12000`` is the commit of training step 12000.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from mvc.lazy import lazy_class, lazy_names
from mvc.repo.opening import OpenRepo

if TYPE_CHECKING:
    from mvc.repo.committing import Committing
    from mvc.repo.comparing import Comparing
    from mvc.repo.content import Content
    from mvc.repo.data import Data
    from mvc.repo.history import History
    from mvc.repo.merging import Merging
    from mvc.repo.moving import Moving
    from mvc.repo.outside import clone, compare, follow, merge_recipe, open_model, verify_models
    from mvc.repo.remotes import Remotes
    from mvc.repo.runs import TrainingRuns
    from mvc.repo.searching import Searching
    from mvc.repo.states import TrainingStates
    from mvc.repo.upkeep import Upkeep
else:  # their names here, their modules on first use: a command loads only what it runs
    _room = partial(lazy_class, OpenRepo)
    Committing = _room(
        "mvc.repo.committing.Committing", "add plan_add remove move commit status check_ignore"
    )
    Moving = _room(
        "mvc.repo.moving.Moving",
        "checkout switch restore reset undo stash stashes stash_apply stash_drop stash_clear",
    )
    History = _room(
        "mvc.repo.history.History",
        "log show reflog branches tags tag_message create_branch delete_branch rename_branch create_tag delete_tag",
    )
    Searching = _room(
        "mvc.repo.searching.Searching",
        "blame bisect_start bisect_mark bisect_skip bisect_next bisect_run bisect_step bisect_log bisect_replay bisect_reset bisect_metric best",
    )
    Comparing = _room(
        "mvc.repo.comparing.Comparing",
        "diff changes compare compare_commit check_gates verify_models verify_worktree",
    )
    Merging = _room(
        "mvc.repo.merging.Merging",
        "merge preview_merge conclude abort skip cherry_pick revert merge_recipe commit_recipe replay_merge",
    )
    Remotes = _room(
        "mvc.repo.remotes.Remotes",
        "remotes add_remote rename_remote remove_remote set_remote_url check_remote list_remote show_remote prune_remote upstream set_upstream push fetch bring_commit catch_up leave_mark look_for_mark pull publish",
    )
    Content = _room("mvc.repo.content.Content", "ls read_file tensor tensors export")
    Data = _room(
        "mvc.repo.data.Data",
        "add_data name_data list_data diff_data verify_data check_shards remove_data seen_data who_saw",
    )
    TrainingStates = _room(
        "mvc.repo.states.TrainingStates",
        "commit_state commit_image open_share store_share commit_shares open_state outline_state load_state verify_state reading_nearby find_held",
    )
    TrainingRuns = _room(
        "mvc.repo.runs.TrainingRuns",
        "open_feed read_run follow_run plan_rollback rollback mark_healthy healthy plan_scale scale_status record_scale",
    )
    Upkeep = _room(
        "mvc.repo.upkeep.Upkeep",
        "plan_prune prune plan_gc gc plan_gc_remote gc_remote plan_repack repack is_repack_due du fsck mend_commit doctor probe_sharing",
    )

__getattr__, _ = lazy_names(
    __name__, {"mvc.repo.outside": "clone compare follow merge_recipe open_model verify_models"}
)

__all__ = ["Repo", "clone", "compare", "follow", "merge_recipe", "open_model", "verify_models"]


class Repo(
    Upkeep,  # the pages list the last one first
    TrainingRuns,
    TrainingStates,
    Data,
    Content,
    Remotes,
    Searching,
    Merging,
    Comparing,
    Moving,
    History,
    Committing,
):
    """An open repository: a worktree and the ``.mvc`` folder in it.

    Not shared between threads; open one per thread. Several processes may work on one repository
    at once: refs move by compare-and-swap, and the slower one gets a ConflictError.

    Where a method takes them, ``paths`` are files, folders or wildcards, ``tensors`` is the name of a
    tensor, that of a module, which takes all tensors below it, or a wildcard, ``progress`` is called
    with the bytes handled since the last call, and ``revision`` names a commit.

    Any method may raise what follows, even if its own list leaves it out.

    Raises:
        NotFoundError: a revision, ref, run, path or tensor that is named does not exist, or a
            commit that must hold a state has none.
        ConflictError: local changes would be lost without ``force``, or another gc, prune or
            repack is running.
        ReleasedError: content that is needed was released; nothing was changed.
        UsageError: a name or value that is missing or not valid.
        UnsupportedError: torch is asked for and not installed.
        FormatError, CorruptionError: the repository is damaged; what is at fault is named.
        StorageError: the machine failed.
    """
