"""Merges by recipe into a branch, made again from their commits, and previews, which write nothing."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from mvc import ConflictError, NotFoundError, UsageError
from mvc.checkpoints.safetensors import encode_header
from mvc.history.messages import parse_trailers
from mvc.workspace.tensors import ModelTensor

RECIPE = """
merge_method: dare_ties
base_model: base
models:
  - {model: main, parameters: {weight: 0.5, density: 0.5}}
  - {model: "side:model.safetensors", parameters: {weight: 0.7, density: 0.6}}
"""


def _model(seed):
    random = np.random.default_rng(seed)
    names = ["embed.weight", "layers.0.w", "layers.1.w"]
    tensors = {name: random.normal(size=(6, 5)).astype("f4") for name in names}
    return {**tensors, "frozen": np.ones(100, "f4")}


@pytest.fixture
def branches(repo):
    """A base with two branches over it: main, which is checked out, and side."""
    base = _model(0)
    for branch, seed in [("main", None), ("side", 1), ("main", 2)]:
        if seed is None:
            tensors = base
        else:
            repo.switch(branch, create=branch == "side")
            moved = _model(seed)
            tensors = {name: base[name] + 0.1 * moved[name] for name in base} | {
                "frozen": base["frozen"]
            }
        save_file(tensors, repo.worktree / "model.safetensors")
        (repo.worktree / "config.json").write_text('{"dtype": "float32"}')
        repo.add(["model.safetensors", "config.json"])
        repo.commit(branch)
        if seed is None:
            repo.tags.create("base")
    return repo


def _objects(repo):
    return sorted(
        (str(path.relative_to(repo.worktree)), path.stat().st_size)
        for path in repo.worktree.rglob("*")
        if path.is_file() and not path.name.endswith((".lock", ".gate"))
    )


def test_a_recipe_is_committed_with_all_it_takes_to_repeat_it(branches):
    main, side = branches.resolve("main"), branches.resolve("side")
    result = branches.commit_recipe(RECIPE, seed=5)
    assert (result.kind, result.heads, result.branch) == ("merged", (side,), "main")
    assert result.tensors == {"merged": 3, "kept": 1}
    info = branches.show().info
    assert info.parents == (main, side)
    assert parse_trailers(info.message)[:5] == (
        ("Merge-Recipe", "mergekit_config.yml"),
        ("Merge-Input", f"base={branches.resolve('base')}"),
        ("Merge-Input", f"main={main}"),
        ("Merge-Input", f"side:model.safetensors={side}"),
        ("Merge-Seed", "5"),
    )
    assert (branches.worktree / "mergekit_config.yml").read_text() == RECIPE
    merged = load_file(branches.worktree / "model.safetensors")
    assert np.array_equal(merged["frozen"], np.ones(100, "f4"))
    assert branches.status().is_clean


def test_a_recipe_made_again_is_the_same_to_the_bit_whatever_the_names_mean_by_then(branches):
    branches.commit_recipe(RECIPE, seed=5)
    first = branches.resolve("main")
    save_file(_model(9), branches.worktree / "model.safetensors")
    branches.add("model.safetensors")
    branches.commit("main moved on")
    branches.branches.create("side", "main", force=True)
    replay = branches.replay_merge(first)
    assert (replay.commit, replay.is_same, replay.files) == (first, True, 3)


def test_a_merge_of_branches_is_made_again_from_its_trailers(branches):
    branches.merge("side", strategy="dare_linear", parameters={"density": [0.5, 0.25]}, seed=3)
    replay = branches.replay_merge()
    assert (replay.is_same, replay.different) == (True, ())


@pytest.mark.parametrize("how", ["recipe", "branches"])
def test_a_merge_that_was_changed_by_hand_is_found_out(branches, how):
    if how == "recipe":
        branches.commit_recipe(RECIPE)
    else:
        branches.merge("side", strategy="linear")
    merged = load_file(branches.worktree / "model.safetensors")
    merged["layers.1.w"][0, 0] += 1e-6
    save_file(merged, branches.worktree / "model.safetensors", metadata={"format": "pt"})
    branches.add("model.safetensors")
    branches.commit(branches.show().info.message, amend=True)
    replay = branches.replay_merge()
    assert (replay.is_same, replay.different) == (False, ("model.safetensors",))


def test_files_that_a_recipe_named_have_to_be_there(branches, tmp_path):
    save_file(_model(7), tmp_path / "other.safetensors")
    text = RECIPE.replace("side:model.safetensors", str(tmp_path / "other.safetensors"))
    branches.commit_recipe(text)
    assert branches.replay_merge().is_same
    (tmp_path / "other.safetensors").unlink()
    with pytest.raises(NotFoundError, match=r"other\.safetensors"):
        branches.replay_merge()


def test_shards_become_one_file(branches):
    tensors = _model(0)
    branches.remove("model.safetensors")
    names = list(tensors)
    for number, some in enumerate([names[:2], names[2:]], 1):
        save_file(
            {name: tensors[name] for name in some},
            branches.worktree / f"model-{number}-of-2.safetensors",
        )
    weights = {name: f"model-{1 if name in names[:2] else 2}-of-2.safetensors" for name in names}
    (branches.worktree / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": weights})
    )
    branches.add(".")
    branches.commit("shards")
    branches.tags.create("sharded")
    branches.commit_recipe(RECIPE.replace("base_model: base", "base_model: sharded"))
    assert sorted(one.path for one in branches.ls("HEAD")) == [
        "config.json", "mergekit_config.yml", "model.safetensors",
    ]  # fmt: skip


def test_nothing_moves_if_local_changes_would_be_lost(branches):
    head = branches.resolve("HEAD")
    (branches.worktree / "model.safetensors").write_bytes(encode_header([]))
    with pytest.raises(ConflictError):
        branches.commit_recipe(RECIPE)
    assert branches.resolve("HEAD") == head


def test_a_preview_measures_interference_and_writes_nothing(branches):
    before = _objects(branches)
    base, ours, theirs = (dict(branches.tensors(one)) for one in ("base", "main", "side"))
    seen = branches.preview_merge("side", strategy="ties")
    assert _objects(branches) == before
    assert seen.outcomes == {"merged": 3, "kept": 1}
    assert {one.name for one in seen.tensors} == {"embed.weight", "layers.0.w", "layers.1.w"}
    one = next(one.found for one in seen.tensors if one.name == "layers.0.w")
    a, b = (side["layers.0.w"].astype(float) - base["layers.0.w"] for side in (ours, theirs))
    assert one.changed == (np.count_nonzero(a), np.count_nonzero(b))
    assert one.opposed == np.count_nonzero(a * b < 0)
    assert one.shared == np.count_nonzero((a != 0) & (b != 0))
    assert one.cosine == pytest.approx(np.sum(a * b) / np.sqrt(np.sum(a * a) * np.sum(b * b)))
    assert list(seen.by_layer()) == ["embed", "layers.0", "layers.1"]
    assert seen.total.elements == 90


def test_a_preview_says_what_becomes_of_every_file(branches):
    def put(**texts):
        for name, text in texts.items():
            (branches.worktree / name).write_text(text)
        branches.add(".")
        branches.commit("texts")

    lines = [f"{number}\n" for number in range(9)]
    put(both="".join(lines), gone="g\n", torn="t\n", kept="k\n")
    branches.branches.create("apart", "HEAD")
    put(both="".join(["first\n", *lines]), torn="ours\n", mine="m\n", same="s\n")
    branches.switch("apart")
    branches.remove("gone")
    put(both="".join([*lines, "last\n"]), torn="theirs\n", yours="y\n", same="s\n")
    assert branches.preview_merge("main~1").kind == "up-to-date"
    branches.switch("main")
    seen = branches.preview_merge("apart")
    assert (seen.kind, seen.base, seen.files) == ("merge", "the merge base", {
        "both": "merged", "gone": "removed", "torn": "conflict", "mine": "ours", "yours": "theirs",
        "same": "both",
    })  # fmt: skip
    branches.switch("behind", create=True, start="apart~1")
    seen = branches.preview_merge("apart")
    assert (seen.kind, set(seen.files.values())) == ("fast-forward", {"theirs", "removed"})


def test_planning_reads_no_weight(branches, monkeypatch):
    monkeypatch.setattr(ModelTensor, "open", lambda tensor: pytest.fail(f"{tensor.name} was read"))
    with pytest.raises(UsageError, match="must be a number above 0"):
        branches.commit_recipe(RECIPE.replace("density: 0.6", "density: 0"))
    with pytest.raises(UsageError, match="give no revisions"):
        branches.preview_merge("side", recipe=RECIPE)


def test_what_merges_nothing_cannot_be_made_again(branches):
    with pytest.raises(UsageError, match="main~1 merges nothing"):
        branches.replay_merge("main~1")
    seen = branches.preview_merge(recipe=RECIPE)
    assert seen.outcomes == {"dare_ties": 3, "taken as they are": 1}
    assert (seen.sides, seen.base) == (("main", "side:model.safetensors"), "base")
    seen = branches.preview_merge("side")
    assert len(seen.conflicts) == len(seen.tensors) == 3
