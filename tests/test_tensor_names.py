"""Names of tensors: what a pattern takes, the same for every verb, and natural order."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import save_file

from mvc.tensor_names import in_layer_order, natural_key, takes

NAMES = ("h.1.mlp.up", "h.1.mlp.down", "h.10.mlp.up", "h.1", "h[1].w", "head")
TAKEN = [
    ("h.1.mlp.up", {"h.1.mlp.up"}),
    ("h.1", {"h.1", "h.1.mlp.up", "h.1.mlp.down"}),
    ("h", {"h.1", "h.1.mlp.up", "h.1.mlp.down", "h.10.mlp.up"}),
    ("*.up", {"h.1.mlp.up", "h.10.mlp.up"}),
    ("h.[0-9].*", {"h.1.mlp.up", "h.1.mlp.down"}),
    ("h[1].w", {"h[1].w"}),
]


@pytest.mark.parametrize(("pattern", "taken"), TAKEN)
def test_a_pattern_is_a_name_a_module_or_a_wildcard(pattern, taken):
    assert {name for name in NAMES if takes(pattern, name)} == taken


@pytest.fixture(scope="module")
def repo(tmp_path_factory):
    from mvc import Identity, Repo

    made = Repo.init(tmp_path_factory.mktemp("names"))
    made.identity = Identity("A", "a@b")
    for start in (0, 1):
        tensors = {name: np.arange(3.0) + at + start for at, name in enumerate(NAMES)}
        save_file(tensors, made.worktree / "h.safetensors")
        made.commit("one", paths=".", step=start)
    return made


@pytest.mark.parametrize(("pattern", "taken"), TAKEN)
def test_every_verb_takes_the_same(repo, pattern, taken, tmp_path):
    def names(found):
        return {one.name for one in found}

    assert names(repo.ls(tensors=pattern)[0].tensors) == taken
    assert names(repo.diff("HEAD~1", "HEAD", tensors=pattern)[0].tensors) == taken
    assert names(repo.changes(tensors=pattern)[0].tensors) == taken
    assert names(repo.compare("HEAD~1", "HEAD", tensors=pattern).changes) == taken
    assert {name for name, _ in repo.tensors(tensors=pattern)} == taken
    assert names(repo.blame(tensors=pattern).tensors) == taken
    output = tmp_path / "x.safetensors"
    assert repo.export("HEAD", output, tensors=pattern).tensors == len(taken)


@pytest.mark.parametrize(("pattern", "taken"), TAKEN)
def test_rules_of_a_merge_take_the_same_in_one_file_or_all(pattern, taken):
    from mvc.merging.rules import MergeRule

    for written in (pattern, f"h.safetensors:{pattern}", f"*:{pattern}"):
        rule = MergeRule(written, "ours")
        assert {name for name in NAMES if rule.fits("h.safetensors", name)} == taken
    assert not MergeRule(f"g*:{pattern}", "ours").fits("h.safetensors", NAMES[0])


@pytest.mark.parametrize(
    ("names", "ordered"),
    [
        ("head l.1.v l.1.q l.10.v l.2.v l.2.q norm", "head l.1.v l.1.q l.2.v l.2.q l.10.v norm"),
        ("b.0.e.10.w b.0.e.2.w b.0.n a", "b.0.e.2.w b.0.e.10.w b.0.n a"),
        ("z y 10 9 x", "z y 9 10 x"),
    ],
)
def test_layers_are_ordered_as_people_count_and_the_rest_stays(names, ordered):
    assert in_layer_order(names.split(), str) == ordered.split()


def test_natural_order():
    names = ["a.10.b", "a.9", "a.9.b", "a.b", "a10", "a9", "", "9", "10"]
    assert sorted(names, key=natural_key) == [
        "", "9", "10", "a.9", "a.9.b", "a.10.b", "a.b", "a9", "a10",
    ]  # fmt: skip
