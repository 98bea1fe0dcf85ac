"""The public names are a promise. A change here is a change for everybody who uses mvc."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import re

import pytest

import mvc
import mvc.sampling
import mvc.shards
import mvc.training
from mvc import Repo
from mvc.repo.namespaces import Namespace
from support.cases import for_each

METHODS = {
    "Bisect": "log mark metric next replay reset run skip start step",
    "Branches": "create delete list rename",
    "Data": "add check diff list names remove seen verify who_saw",
    "Remotes": """
        add check gc list plan_gc prune refs remove rename set_upstream set_url show upstream
    """,
    "RunStore": """
        bring_commit catch_up commit_image commit_shares find_held leave_mark look_for_mark open_feed open_share
        outline_state reading_nearby store_share
    """,
    "Runs": """
        follow healthy mark_healthy plan_rollback plan_scale read record_scale rollback scale_status
    """,
    "Tags": "create delete list message",
    "Upkeep": """
        doctor du fsck gc is_repack_due mend plan_gc plan_prune plan_repack probe_sharing prune repack
    """,
    "Repo": """
        abort add best blame changes check_gates check_identity check_ignore checkout cherry_pick close commit
        commit_recipe commit_state compare compare_commit conclude config diff export fetch init load_state log ls
        merge merge_base merge_recipe move open open_state plan_add preview_merge publish pull push read_file reflog
        remove replay_merge reset resolve restore revert set_config show skip stash stash_apply stash_clear stash_drop
        stashes status switch tensor tensors undo verify_models verify_state verify_worktree
    """,
}
PROPERTIES = """
    bisect branches data remotes runs tags upkeep worktree git_dir chunk_bytes head identity is_interrupted
"""
RESULTS = """
    AddPlan AddResult Agreement Annotations BestCommit BisectStep Blame CheckoutResult CommitPlan CommitResult
    Conflict DataAddResult Deviation Dispute Divergence DoctorReport DriftPoint DuEntry DuReport DuTotals
    ExportResult FileCheck FileDiff FileInfo FileStatus FirstDifference FsckReport GateVerdict GcPlan GcResult
    LogEntry MapChanges MapDiff MapInfo MapReport MergePreview MergeReplay MergeResult MetricBreak ModelCheck
    NodeDiff Problem PrunePlan PruneResult RecipeResult RefInfo Release ReleasedTwin RemoteGcPlan RemoteGcResult
    RepackPlan RepackResult RollbackPlan RollbackResult RunAlarm RunCommit RunEvent RunRollback RunView ScaleResult
    ScaleStatus Shard ShardFault ShardMap StashEntry StateCheck Status StoredFile TensorBlame TensorCheck TensorDiff
    TensorInfo UndoResult WorktreeCheck
"""
ROOMS = (
    "comparison",
    "merging",
    "numbers",
    "operations",
    "runs",
    "scaling",
    "shards",
    "upkeep",
    "workspace",
)


def _methods():
    """Return dotted name → function of every method of a repository, its parts and RunStore."""
    found = {}
    assert issubclass(mvc.training.RunStore, Namespace)
    for kind in (Repo, *Namespace.__subclasses__()):
        for name, member in inspect.getmembers(kind, callable):
            if not name.startswith("_"):
                found[f"{kind.__name__}.{name}"] = getattr(member, "__func__", member)
    return found


def _public(room):
    """Yield (module, name, value) of all that the modules of a package define."""
    package = importlib.import_module(f"mvc.{room}")
    for found in pkgutil.walk_packages(package.__path__, f"mvc.{room}."):
        module = importlib.import_module(found.name)
        for name, value in vars(module).items():
            if getattr(value, "__module__", None) == module.__name__ and not name.startswith("_"):
                yield module, name, value


def _check_package(package):
    """Check that type checkers see every name, and completion offers it, explained."""
    found = re.findall(
        r"^    from \S+ import (\w+) as \1$", inspect.getsource(package), re.MULTILINE
    )
    assert sorted(found) == sorted(package.__all__)
    assert set(package.__all__) <= set(dir(package))
    assert all(getattr(package, name).__doc__ for name in package.__all__)


def test_names_of_mvc():
    assert mvc.__all__ == [
        "ConflictError", "CorruptionError", "FormatError", "GateError", "Identity", "Model", "ModelTensor", "MvcError", "NotFoundError",
        "ReleasedError", "Repo", "RepositoryNotFoundError", "StorageError", "UnsupportedError", "UsageError", "clone", "compare", "follow",
        "merge_recipe", "open_model", "reporting", "verify_models",
    ]  # fmt: skip
    assert re.fullmatch(r"\d+\.\d+\.\d+", mvc.__version__)
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        mvc.nope  # noqa: B018  the access is the test
    with pytest.raises(ImportError):
        from mvc import nope  # noqa: F401


def test_names_for_training():
    assert set(mvc.training.__all__) == {
        "Agreement", "ArrayOutline", "CommitRequest", "Dispute", "HeldChunks", "LayoutPlan", "Nearby", "NodeDiff", "Peers", "RunFeed", "Share", "RunStore", "SpreadTensor",
        "StateLayout", "StoredShare", "StoredState", "Whereabouts", "WriteCounts", "choose_senders", "compare_image", "compare_pipelines",
        "is_process_alive", "layout_state", "outline_image", "parse_stored_share", "read_image", "this_process",
    }  # fmt: skip


def test_names_for_training_data():
    assert set(mvc.sampling.__all__) == {
        "Ahead", "BlockOrder", "DrawnEntry", "GlobalBatch", "IdList", "Located", "PlanEntry", "SampleDigest", "SamplePlan", "Skips", "Source", "Stage", "draw_batch", "join_ledgers", "parse_ledger", "pick_drawn",
    }  # fmt: skip
    assert set(mvc.shards.__all__) == {
        "EMPTY_LINES", "FileStream", "MapChanges", "MapReport", "Shard", "ShardFault", "ShardMap", "TarSample", "check_shards",
        "compare_maps", "count_numbers", "list_tar_samples", "open_place", "parse_number_dtype", "read_mds_head", "unpack_file",
    }  # fmt: skip
    for package in (mvc, mvc.training, mvc.sampling, mvc.shards):
        assert package.__all__ == sorted(package.__all__)
        _check_package(package)


@pytest.mark.torch
def test_names_of_the_hooks():
    import mvc_data
    import mvc_hooks
    import mvc_lab

    promised = {
        mvc_hooks: """
            Audit Checkpointer CommitFailedError CommitReport DivergedError Extension History InexactRestoreError
            NotFinite Reading Ring RollbackReport ScaleCollapse Spike StepRun Training Trend Verdict both capture
            lr_scale restore rollback skip_step stop
        """,
        mvc_data: """
            ConsistentDataLoader DataError Finding IterableSource NodeRecord PackedDataset ShardCheck ShardedStream
            cumulative_lengths file node read_pipeline
        """,
        mvc_lab: """
            Consistency ConsistencyReport Deviation InconsistentError ModuleDifference ModuleReport Monitor OutputReport
            ReplayReport Thresholds compare_modules compare_outputs load_weights replay_steps
        """,
    }
    for package, names in promised.items():
        assert package.__all__ == names.split()
        _check_package(package)


def test_methods():
    methods = _methods()
    assert sum(name.startswith("Repo.") for name in methods) <= 60
    for name, function in methods.items():
        assert function.__name__ == name.rpartition(".")[2]
        assert function.__module__.startswith("mvc.repo")
    promised = {f"{kind}.{name}" for kind, names in METHODS.items() for name in names.split()}
    assert set(methods) == promised
    properties = {name for name, member in inspect.getmembers(Repo) if isinstance(member, property)}
    assert properties == set(PROPERTIES.split())


@for_each("name", sorted(_methods()))
def test_a_method_says_what_it_does_and_how_it_fails(name):
    function = _methods()[name]
    text = inspect.getdoc(function)
    assert text
    first = text.splitlines()[0]
    assert first[0].isupper()
    assert first.endswith((".", ";"))
    if name not in (
        "Branches.list",
        "RunStore.reading_nearby",
        "Tags.list",
        "Repo.close",
        "Repo.stash_clear",
        "Repo.stashes",
    ):  # there is nothing that a caller could do wrong
        assert "Raises:" in text
    raises = text.partition("Raises:")[2].partition("\n\n")[0]
    for kind in re.findall(r"^\s*(\w+): ", raises, re.MULTILINE):
        assert issubclass(getattr(mvc, kind), mvc.MvcError), kind
    arguments = text.partition("Args:")[2].partition("\n\n")[0]
    if arguments:
        for parameter in list(inspect.signature(function).parameters)[1:]:
            assert re.search(rf"^\s+{parameter}: ", arguments, re.MULTILINE), parameter


def test_what_comes_back_is_frozen_and_explained():
    promised = set(RESULTS.split())
    for room in ROOMS:
        for module, name, kind in _public(room):
            if name in RESULTS.split() and dataclasses.is_dataclass(kind):
                promised.discard(name)
                where = f"{module.__name__}.{name}"
                assert kind.__dataclass_params__.frozen, where
                assert hasattr(kind, "__slots__"), where
                for field in dataclasses.fields(kind):
                    assert re.search(rf"\b{field.name}\b", inspect.getdoc(kind)), (
                        where,
                        field.name,
                    )
    assert promised == set()


@pytest.mark.parametrize("room", ["operations", "workspace", "upkeep", "runs"])
def test_everything_below_is_documented(room):
    """Every module that Repo's methods and results come from, and every public name in it."""
    for module, name, value in _public(room):
        assert module.__doc__, module.__name__
        assert inspect.getdoc(value) or not callable(value), f"{module.__name__}.{name}"
