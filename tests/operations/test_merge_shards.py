"""Models in several files, whose tensors are in other files on one side."""

import json
import os
from collections import Counter

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from mvc import ConflictError

INDEX = "model.safetensors.index.json"
NAMES = [f"layers.{n}.{part}" for n in range(4) for part in ("norm", "proj")] + ["lm_head"]


def model(**changes):
    found = {name: np.full((4, 3), n, np.float32) for n, name in enumerate(NAMES)}
    given = {name.replace("__", "."): value for name, value in changes.items()}
    found |= {n: np.full((4, 3), value, np.float32) for n, value in given.items() if value}
    return {name: one for name, one in found.items() if given.get(name, 1) is not None}


@pytest.fixture
def save(root):
    """Write a model as transformers does, with so many tensors in a file."""

    def write(tensors, per_file=3):
        for old in root.glob("model*"):
            old.unlink()
        names = list(tensors)
        parts = [names[n : n + per_file] for n in range(0, len(names), per_file)]
        if len(parts) == 1:
            return save_file(tensors, root / "model.safetensors", {"format": "pt"})
        weight_map = {}
        for number, part in enumerate(parts, 1):
            file = f"model-{number:05}-of-{len(parts):05}.safetensors"
            save_file({name: tensors[name] for name in part}, root / file, {"format": "pt"})
            weight_map |= dict.fromkeys(part, file)
        elements = sum(one.size for one in tensors.values())
        index = {
            "metadata": {"total_size": 4 * elements, "total_parameters": elements},
            "weight_map": weight_map,
        }
        (root / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")
        return None

    return write


@pytest.fixture
def branches(parted, save):
    """Part two branches, with a model and the number of tensors in a file for each version."""

    def make(*versions):
        return parted(*(lambda one=one: save(*one) for one in versions))

    return make


def files(root):
    return {one.name: one.read_bytes() for one in root.glob("model*")}


def check(root, save, tensors, per_file=3):
    """The worktree is what transformers would have written."""
    found = files(root)
    save(tensors, per_file)
    assert found == files(root)


def load(root):
    """Read through the index, as transformers does, and check that it tells all."""
    index = json.loads((root / INDEX).read_text())
    found = {path.name: load_file(path) for path in root.glob("model-*.safetensors")}
    assert index["weight_map"] == {name: file for file, one in found.items() for name in one}
    merged = {name: value for one in found.values() for name, value in one.items()}
    assert index["metadata"]["total_size"] == sum(one.nbytes for one in merged.values())
    return {name: float(one[0, 0]) for name, one in merged.items()}


@pytest.mark.parametrize("ours_moved", [False, True])
@pytest.mark.parametrize("per_file", [2, 5, 100])
def test_one_side_has_other_files(branches, root, save, per_file, ours_moved, reads):
    ours, theirs = (model(layers__0__norm=50, lm_head=51), 3), (model(layers__2__proj=60), per_file)
    if ours_moved:
        ours, theirs = theirs, ours
    repo = branches((model(),), ours, theirs)
    reads.clear()
    result = repo.merge("side", commit=False)
    assert max(Counter(reads).values()) == 1  # for the worktree alone
    assert (result.kind, result.conflicts) == ("staged", ())
    check(root, save, model(layers__0__norm=50, lm_head=51, layers__2__proj=60), per_file)
    repo.conclude()
    assert repo.status().is_clean
    assert repo.upkeep.fsck(data=True).ok


def test_tensors_that_both_added_to_one_index(branches, root):
    repo = branches((model(),), (model(new_a=1, lm_head=None),), (model(layers__1__bias=2),))
    assert repo.merge("side").conflicts == ()
    wanted = model(new_a=1, lm_head=None, layers__1__bias=2)
    assert load(root) == {name: float(one[0, 0]) for name, one in wanted.items()}
    with safe_open(root / "model-00002-of-00004.safetensors", "np") as file:
        assert file.metadata() == {"format": "pt"}


def test_a_conflict_leaves_the_whole_model_to_be_decided(branches, root, save):
    repo = branches((model(),), (model(lm_head=50),), (model(lm_head=60, layers__0__norm=7), 2))
    result = repo.merge("side")
    assert [(one.path, one.tensor) for one in result.conflicts] == [
        ("model-00005-of-00005.safetensors", "lm_head")
    ]
    check(root, save, model(lm_head=50, layers__0__norm=7), 2)
    assert repo.status().conflicts == result.conflicts
    repo.abort()
    assert repo.status().is_clean
    check(root, save, model(lm_head=50))
    repo.merge("side")
    repo.conclude(rules=[("lm_head", "theirs")])
    check(root, save, model(lm_head=60, layers__0__norm=7), 2)
    assert repo.status().is_clean


def test_a_shard_put_in_place_by_hand_never_costs_a_tensor_of_another(branches, root):
    """The one that the tensor had moved to is as it was; that it left the other decides nothing."""
    repo = branches((model(), 5), (model(lm_head=50), 5), (model(lm_head=60), 6))
    before = files(root)
    assert [one.tensor for one in repo.merge("side").conflicts] == ["lm_head"]
    first = "model-00001-of-00002.safetensors"
    (root / first).write_bytes(before[first])
    repo.add(first)
    assert all("decide all of them" in one.reason for one in repo.status().conflicts)
    with pytest.raises(ConflictError, match="has changed since"):
        repo.conclude(rules=[("lm_head", "theirs")])
    for name, data in before.items():
        (root / name).write_bytes(data)
    repo.add(".")
    repo.conclude()
    assert set(load(root)) == set(NAMES)


def test_methods_blend_across_files(branches, root, save):
    repo = branches((model(),), (model(lm_head=50),), (model(lm_head=60), 2))
    repo.merge("side", strategy="linear")
    check(root, save, model(lm_head=55), 2)
    assert repo.replay_merge("HEAD").is_same


@pytest.mark.parametrize("index", [b"{", b"[]", b'{"weight_map": 1}', b"[" * 100_000])
def test_an_index_that_is_not_valid_is_merged_as_any_text(parted, root, save, index):
    def put(changes, line):
        save(model(**changes))
        (root / INDEX).write_bytes(index + line)

    repo = parted(
        lambda: put({}, b""),
        lambda: put({"lm_head": 5}, b"\nours"),
        lambda: put({"layers__0__norm": 6}, b"\ntheirs"),
    )
    assert [(one.path, one.tensor) for one in repo.merge("side").conflicts] == [(INDEX, None)]
    assert b"<<<<<<<" in (root / INDEX).read_bytes()
    assert load_file(root / "model-00003-of-00003.safetensors")["lm_head"][0, 0] == 5


@pytest.mark.slow
def test_an_index_beyond_the_length_of_plain_files(parted, root, save):
    names = [f"layers.{n:06}.{'x' * 200}" for n in range(4500)]

    def put(per_file, *more, **changes):
        values = {name: changes.get(f"n{n}", n) for n, name in enumerate(names)}
        tensors = {name: np.full((1, 1), one, np.float32) for name, one in values.items()}
        save(tensors | dict.fromkeys(more, np.ones((1, 1), np.float32)), per_file)

    repo = parted(lambda: put(2500), lambda: put(2500, "new", n1=7), lambda: put(4000, n2400=8))
    assert repo.merge("side").conflicts == ()
    assert (root / INDEX).stat().st_size > 2**20
    found = load(root)
    assert (found[names[1]], found[names[2400]], found["new"]) == (7, 8, 1)
    os.utime(root / INDEX, (1, 1))  # so that its content is looked at
    repo.add(".")
    assert repo.status().is_clean
