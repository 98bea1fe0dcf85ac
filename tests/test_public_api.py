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

METHODS = """
Bisect.log(self)
Bisect.mark(self, term, *revisions)
Bisect.metric(self, metric, *, above=None, below=None, bad='HEAD', good=())
Bisect.next(self)
Bisect.replay(self, log)
Bisect.reset(self, revision=None)
Bisect.run(self, test, *, before_test=None)
Bisect.skip(self, *revisions)
Bisect.start(self, bad=None, *good, paths=(), tensors=None, terms=None, checkout=True, first_parent=False)
Bisect.step(self)
Branches.create(self, name, start='HEAD', *, force=False)
Branches.delete(self, name, *, force=False)
Branches.list(self, *, remote=False)
Branches.rename(self, old, new, *, force=False)
Data.add(self, source, *, name=None, store=False, dtype=None, folder=None)
Data.check(self, shard_map, place, *, level='normal', threads=1, share=(0, 1))
Data.diff(self, old=None, new=None, *, name=None)
Data.list(self, revision=None, name=None)
Data.names(self, revision=None, name=None)
Data.remove(self, name, shards=())
Data.seen(self, revision='HEAD', since=None, *, prove=False)
Data.verify(self, name=None, *, level='normal')
Data.who_saw(self, sample=None, *, shard=None, revision='HEAD', everything=False)
Remotes.add(self, name, url, content_url=None)
Remotes.check(self, remote=None)
Remotes.gc(self, remote=None, *, grace_s=None)
Remotes.list(self)
Remotes.plan_gc(self, remote=None, *, grace_s=None)
Remotes.prune(self, remote=None)
Remotes.refs(self, remote=None)
Remotes.remove(self, name)
Remotes.rename(self, old, new)
Remotes.set_upstream(self, branch, remote, target=None)
Remotes.set_url(self, name, url, content_url=None)
Remotes.show(self, remote=None)
Remotes.upstream(self, branch=None)
RunStore.bring_commit(self, commit)
RunStore.catch_up(self, branch)
RunStore.commit_image(self, files, request)
RunStore.commit_shares(self, share, stored, request)
RunStore.find_held(self, files, revision='HEAD', *, share=None, peers=None)
RunStore.leave_mark(self)
RunStore.look_for_mark(self, mark)
RunStore.open_feed(self, branch)
RunStore.open_share(self, image, form, previous=None)
RunStore.outline_state(self, revision='HEAD', *, folder=None, with_content=False)
RunStore.reading_nearby(self, *nearby)
RunStore.store_share(self, share, peers, *, branch=None, delta=None, send=False)
Runs.follow(self, branch=None, *, losses=2000, events=20)
Runs.healthy(self, branch=None)
Runs.mark_healthy(self, revision, *, note='')
Runs.plan_rollback(self, revision=None, *, step=None, steps_back=None, healthy=False, branch=None, at_step=None)
Runs.plan_scale(self, first, last, *, keep=True)
Runs.read(self, branch=None, *, losses=2000, events=20)
Runs.record_scale(self, measured, revision='HEAD', *, ranks=None, limits=None, waive=())
Runs.rollback(self, plan, *, reason='', force=False)
Runs.scale_status(self, revision='HEAD')
Tags.create(self, name, revision='HEAD', *, message=None, force=False)
Tags.delete(self, name)
Tags.list(self)
Tags.message(self, name)
Upkeep.doctor(self)
Upkeep.du(self, *revisions, by=('branch', 'tag', 'commit', 'file'))
Upkeep.fsck(self, *, data=False, repair=False, sources=(), remote=None)
Upkeep.gc(self, plan=None, *, grace_s=None)
Upkeep.is_repack_due(self)
Upkeep.mend(self, revision)
Upkeep.plan_gc(self, *, grace_s=None, expire_reflogs_s=None)
Upkeep.plan_prune(self, *, keep_last=None, keep_every=None, keep_best=None, metric=None, maximise=False, keep_tagged=False, keep_branch_tips=False, \
keep_within_s=None, weights_only=False, also_diverged=(), pushed=False, now_s=None)
Upkeep.plan_repack(self, *, everything=False, grace_s=None)
Upkeep.probe_sharing(self, *, wait_s=3.0)
Upkeep.prune(self, plan)
Upkeep.repack(self, plan=None)
abort(self, kind='merge')
add(self, paths, *, force=False, tracked_only=False, delta=None)
best(self, metric, *revisions, maximise=False)
blame(self, revision='HEAD', *, tensors=None, paths=(), samples=24, compute=False)
changes(self, revision='HEAD', *, paths=(), tensors=None, with_tensors=True)
check_gates(self, old=None, new=None, *, staged=False)
check_identity(self)
check_ignore(self, paths)
checkout(self, revision, *, paths=(), force=False, detach=False)
cherry_pick(self, *revisions, strategy=None, rules=(), parameters=None, seed=0, mainline=None, record_origin=False, commit=True, no_gate=False)
close(self)
commit(self, message=None, *, paths=(), everything=False, amend=False, allow_empty=False, step=None, metrics=None, meta=None, author=None, \
time_s=None, delta=None, no_gate=False)
commit_recipe(self, recipe, *, seed=0, message=None, no_gate=False)
commit_state(self, state, *, message, step=None, metrics=None, meta=None, branch=None, author=None, time_s=None, delta=None, previous=None, \
parent=None, files=None, no_gate=False)
compare(self, old=None, new=None, *, staged=False, paths=(), tensors=None, spectral=False)
compare_commit(self, revision='HEAD', *, paths=(), tensors=None, spectral=False)
conclude(self, kind='merge', *, strategy=None, rules=(), parameters=None, seed=0, message=None, no_gate=False)
config(self)
diff(self, old=None, new=None, *, staged=False, paths=(), tensors=None, with_tensors=True)
export(self, revision, output, *, path=None, tensors=None, format=None, force=False)
fetch(self, remote=None, refspecs=(), *, prune=False, tags=None, content=None, content_of=(), depth=None, unshallow=False, limit_bytes_s=None)
init(cls, path='.', *, branch='main', store=None)
load_state(self, revision='HEAD', *, framework='torch', into=None, folder=None)
log(self, *revisions, everything=False, limit=None, first_parent=False)
ls(self, revision='HEAD', *, paths=(), tensors=None)
merge(self, *revisions, strategy=None, rules=(), parameters=None, seed=0, tokenizer=None, message=None, fast_forward='allowed', allow_unrelated=False, \
commit=True, no_gate=False)
merge_base(self, left, right)
merge_recipe(self, recipe, output, *, seed=0, force=False)
move(self, sources, target, *, force=False)
open(cls, path='.', *, identity=None, threads=None, niceness=None)
open_state(self, revision='HEAD', *, folder=None, paths=())
plan_add(self, paths, *, force=False, tracked_only=False)
preview_merge(self, *revisions, strategy=None, rules=(), parameters=None, recipe=None, seed=0, tokenizer=None)
publish(self, channel, revision='HEAD', *, remote=None, limit_bytes_s=None)
pull(self, remote=None, branch=None, *, fast_forward='allowed', limit_bytes_s=None)
push(self, remote=None, refspecs=(), *, force=False, all_branches=False, tags=False, lease=False, set_upstream=False, dry_run=False, \
limit_bytes_s=None)
read_file(self, revision, path)
reflog(self, ref='HEAD')
remove(self, paths, *, cached=False, force=False, recursive=False)
replay_merge(self, revision='HEAD')
reset(self, revision='HEAD', *, mode='mixed', paths=())
resolve(self, revision)
restore(self, paths, *, source=None, staged=False, worktree=True)
revert(self, *revisions, strategy=None, rules=(), arithmetic=False, mainline=None, commit=True, no_gate=False)
set_config(self, key, value)
show(self, revision='HEAD')
skip(self, kind)
stash(self, message=None, *, paths=(), untracked=False, keep_index=False)
stash_apply(self, number=0, *, pop=False, index=False, strategy=None, rules=())
stash_clear(self)
stash_drop(self, number=0)
stashes(self)
status(self, *, untracked=True, ignored=False)
switch(self, branch, *, create=False, start=None, force=False)
tensor(self, revision, path, name, *, framework='numpy')
tensors(self, revision='HEAD', *, paths=(), tensors=None, framework='numpy')
undo(self, *, redo=False, force=False, dry_run=False)
verify_models(self, old, new=None, *, atol=None, rtol=None)
verify_state(self, state, revision='HEAD', *, folder=None)
verify_worktree(self, revision='HEAD', *, paths=())
"""
PROPERTIES = {
    "bisect",
    "branches",
    "data",
    "remotes",
    "runs",
    "tags",
    "upkeep",
    "worktree",
    "git_dir",
    "chunk_bytes",
    "head",
    "identity",
    "is_interrupted",
}

RESULTS = {
    "operations.add.AddResult": "added removed unchanged counts gaps",
    "operations.add.AddPlan": "read drop unchanged size_bytes",
    "workspace.trailers.Annotations": "step metrics meta",
    "operations.best.BestCommit": "metric commit value step maximise compared left_out is_released",
    "operations.bisect.BisectStep": "status commit left steps terms bad good doubtful is_merge_base "
    "released",
    "operations.bisect_metric.MetricBreak": "metric commit value before before_value unknown others "
    "earlier tested",
    "operations.blame.Blame": "commit tensors commits samples manifests_read",
    "operations.blame.DriftPoint": "changed statistics is_first",
    "operations.blame.TensorBlame": "path name dtype shape id commit since versions drift",
    "operations.branch.RefInfo": "name commit is_current subject is_alias",
    "workspace.checkout_plan.CheckoutResult": "commit branch written removed",
    "workspace.commits.CommitResult": "commit branch subject parents tensors_total tensors_new plain_bytes "
    "written_bytes reused_bytes seconds warnings files_total files_changed identical_to "
    "failed_gates unsent agreement",
    "workspace.trailers.Agreement": "agreed chunks differed disputes",
    "workspace.trailers.Dispute": "path tensor chunk stored checked",
    "operations.du.DuEntry": "kind name raw_bytes alone_bytes shared_bytes commit subject path versions",
    "operations.du.DuTotals": "raw_bytes versions commits packs pack_bytes index_bytes object_bytes "
    "needed_bytes base_bytes reflog_bytes unneeded_bytes statistics_bytes",
    "operations.file_diff.FileDiff": "path status old_path format tensors tensors_total other_changed "
    "mode_changed size_bytes lines moved_from moved_to shards nodes",
    "operations.data_add.DataAddResult": "path shard_map changes read read_bytes warnings stored",
    "operations.data_maps.MapInfo": "path shard_map fault",
    "operations.data_maps.MapDiff": "path old new changes fault",
    "shards.checking.MapReport": "root faults read read_bytes proven left",
    "shards.checking.ShardFault": "kind path detail",
    "shards.shard_map.Shard": "path size_bytes sha256 records tag",
    "shards.shard_map.ShardMap": "root shards tree pattern",
    "shards.shard_map.MapChanges": "added removed changed moved",
    "operations.pipeline_diff.NodeDiff": "name status old_version new_version params libraries inputs code is_own "
    "is_declared",
    "operations.tensor_diff.TensorDiff": "name status dtype shape old_name old_dtype old_shape chunks_changed "
    "chunks_total size_bytes old_path",
    "operations.doctor.DoctorReport": "versions python system cores filesystem free_bytes write_bytes_per_s "
    "sync_s hash_bytes_per_s advice under_way",
    "operations.du.DuReport": "totals selection branches tags commits files tensors",
    "operations.export.ExportResult": "path tensors size_bytes files format left_out",
    "workspace.files.StoredFile": "path mode blob stat size_bytes manifest warning",
    "operations.fsck.FsckReport": "problems commits files chunks data notices repaired released promised promised_bytes",
    "operations.fsck.Problem": "kind detail commit path tensor pack offset chunk hint commits",
    "operations.log.LogEntry": "info annotations refs released is_healthy diverged",
    "workspace.verdicts.Divergence": "reason branch target target_step at_step time_s",
    "operations.gc.GcPlan": "grace_s sweep objects object_bytes leftovers leftover_bytes "
    "reflog_entries expiry marks unnamed statistics releasing",
    "operations.gc_remote.RemoteGcPlan": "url grace_s sweep history_packs delete_objects delete_bytes "
    "waiting_objects waiting_bytes",
    "operations.gc_remote.RemoteGcResult": "plan left_packs new_packs_bytes deleted_objects freed_bytes "
    "waiting_objects waiting_bytes",
    "operations.gc.GcResult": "freed_bytes removed_packs new_packs_bytes removed_objects "
    "removed_leftovers kept_packs removed_statistics",
    "operations.scale.ScaleStatus": "steps results next_ranks",
    "scaling.results.ScaleResult": "commit ranks verdicts time_s number",
    "scaling.limits.GateVerdict": "gate status value limit text",
    "operations.repack.RepackPlan": "sweep chunks gain_bytes small_packs git_files grace_s marks unnamed everything only dtypes tips",
    "operations.repack.RepackResult": "freed_bytes removed_packs new_packs new_packs_bytes deltas kept_packs pack_bytes",
    "operations.prune.CommitPlan": "commit subject step time_s reasons paths kept_paths size_bytes "
    "was_released",
    "operations.prune.PrunePlan": "policy commits releases freed_bytes landmarks pushed_to sweep",
    "operations.prune.PruneResult": "plan freed_bytes",
    "workspace.releases.Release": "commit paths policy time_s blobs",
    "workspace.released.ReleasedTwin": "commit step subject paths",
    "operations.rollback.RollbackPlan": "branch tip target tip_step target_step choice abandoned "
    "diverged_branch at_step",
    "operations.rollback.RollbackResult": "branch commit left diverged_branch abandoned written removed",
    "runs.records.RunAlarm": "step time_s cause reason",
    "runs.records.RunCommit": "step time_s commit subject stall_s write_s written_bytes plain_bytes "
    "queue_depth is_healthy is_abandoned",
    "runs.records.RunEvent": "kind step time_s text",
    "runs.records.RunRollback": "step to_step time_s to_commit diverged_branch skipped_batches "
    "seconds reason",
    "runs.records.RunView": "branch alive stopped pid host started_s updated_s step total every "
    "steps_per_s loss grad_norm lr scale overflows losses scales queue_depth stall_s commits alarms rollbacks events "
    "errors damaged_lines",
    "operations.merge_recipe.RecipeResult": "path method tensors merged size_bytes seed notes",
    "operations.preview_merge.MergePreview": "sides base outcomes conflicts tensors notes kind files",
    "operations.replay_merge.MergeReplay": "commit files different",
    "operations.merge.MergeResult": "kind commit branch heads written removed conflicts tensors "
    "bytes_computed",
    "merging.files.Conflict": "path tensor reason",
    "operations.stash.StashEntry": "number commit message time_s",
    "operations.status.FileStatus": "path staged worktree old_path stages",
    "operations.status.Status": "branch commit files recovered untracked pending conflicts bisecting left_out",
    "operations.ls.FileInfo": "path mode blob format size_bytes tensors",
    "operations.ls.TensorInfo": "name dtype shape size_bytes chunks id",
    "operations.undo.UndoResult": "action kind branch commit left_branch left written removed diverged_branch tags",
    "operations.verify.StateCheck": "commit tensors size_bytes differences",
    "operations.verify.FileCheck": "path status format tensors tensors_total size_bytes found_in reason",
    "operations.verify.WorktreeCheck": "commit files",
    "operations.verify_models.ModelCheck": "old new old_commit new_commit tolerance tensors_total "
    "size_bytes tensors",
    "comparison.checks.TensorCheck": "name status dtype shape old_dtype old_shape elements_total "
    "elements_changed bytes_changed largest_difference path old_name deviation is_within",
    "numbers.deviation.Deviation": "elements changed bytes_changed beyond first largest largest_index "
    "relative",
    "numbers.deviation.FirstDifference": "index old new ulps",
}


def _methods():
    """Return dotted name → function of every method of a repository, its parts and RunStore."""
    found = {}
    assert issubclass(mvc.training.RunStore, Namespace)
    for kind in (Repo, *Namespace.__subclasses__()):
        prefix = "" if kind is Repo else f"{kind.__name__}."
        for name, member in inspect.getmembers(kind, callable):
            if not name.startswith("_"):
                found[prefix + name] = getattr(member, "__func__", member)
    return found


def _spelling(name, function):
    """Return a signature without its annotations."""
    signature = inspect.signature(function)
    plain = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in signature.parameters.values()
    ]
    bare = signature.replace(parameters=plain, return_annotation=inspect.Signature.empty)
    return f"{name}{bare}"


def test_names_of_mvc():
    assert mvc.__all__ == [
        "ConflictError", "CorruptionError", "FormatError", "GateError", "Identity", "Model", "ModelTensor", "MvcError", "NotFoundError",
        "ReleasedError", "Repo", "RepositoryNotFoundError", "StorageError", "UnsupportedError", "UsageError", "clone", "compare", "follow",
        "merge_recipe", "open_model", "reporting", "verify_models",
    ]  # fmt: skip
    for name in mvc.__all__:
        assert getattr(mvc, name)
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
    for package in (mvc.training, mvc.sampling, mvc.shards):
        assert package.__all__ == sorted(package.__all__)
        assert set(package.__all__) <= set(dir(package)), "completion offers them"
        assert all(getattr(package, name).__doc__ for name in package.__all__)


@pytest.mark.parametrize("package", [mvc, mvc.training, mvc.sampling, mvc.shards])
def test_every_promised_name_is_seen_by_type_checkers(package):
    source = inspect.getsource(package)
    assert (
        sorted(re.findall(r"^    from \S+ import (\w+) as \1$", source, re.MULTILINE))
        == package.__all__
    )


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
        assert set(package.__all__) <= set(dir(package)), "completion offers them"
        source = inspect.getsource(package)
        seen = re.findall(r"^    from \S+ import (\w+) as \1$", source, re.MULTILINE)
        assert sorted(seen) == package.__all__
        for name in package.__all__:
            assert getattr(package, name).__doc__


def test_methods_and_their_signatures():
    methods = _methods()
    assert sum("." not in name for name in methods) <= 60
    for name, function in methods.items():
        assert function.__name__ == name.rpartition(".")[2]
        assert function.__module__.startswith("mvc.repo")
    found = sorted(_spelling(*method) for method in methods.items())
    assert found == sorted(METHODS.strip().splitlines())
    properties = {name for name, member in inspect.getmembers(Repo) if isinstance(member, property)}
    assert properties == PROPERTIES


@pytest.mark.parametrize("name", sorted(_methods()))
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
        "close",
        "stash_clear",
        "stashes",
    ):  # there is nothing that a caller could do wrong
        assert "Raises:" in text
    arguments = text.partition("Args:")[2].partition("\n\n")[0]
    if arguments:
        for parameter in list(inspect.signature(function).parameters)[1:]:
            assert re.search(rf"^\s+{parameter}: ", arguments, re.MULTILINE), parameter


def test_errors_that_docstrings_name_exist():
    for name, function in _methods().items():
        raises = (inspect.getdoc(function) or "").partition("Raises:")[2].partition("\n\n")[0]
        for kind in re.findall(r"^\s*(\w+): ", raises, re.MULTILINE):
            assert issubclass(getattr(mvc, kind), mvc.MvcError), f"{name}: {kind}"


@pytest.mark.parametrize("place", sorted(RESULTS))
def test_what_comes_back(place):
    module, _, name = place.rpartition(".")
    kind = getattr(importlib.import_module(f"mvc.{module}"), name)
    assert [field.name for field in dataclasses.fields(kind)] == RESULTS[place].split()
    assert kind.__dataclass_params__.frozen
    assert hasattr(kind, "__slots__")
    text = inspect.getdoc(kind)
    for field in dataclasses.fields(kind):
        assert re.search(rf"`?\b{field.name}\b`?", text), f"{place} does not explain {field.name}"


@pytest.mark.parametrize("room", ["operations", "workspace", "upkeep", "runs"])
def test_everything_below_is_documented(room):
    """Every module that Repo's methods and results come from, and every public name in it."""
    package = importlib.import_module(f"mvc.{room}")
    for found in pkgutil.walk_packages(package.__path__, f"mvc.{room}."):
        module = importlib.import_module(found.name)
        assert module.__doc__, found.name
        for name, value in vars(module).items():
            if getattr(value, "__module__", None) == module.__name__ and not name.startswith("_"):
                assert inspect.getdoc(value) or not callable(value), f"{found.name}.{name}"
