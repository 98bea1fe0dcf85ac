"""Partners: by path and name, by name in other files, by bytes under another name."""

import numpy as np
import torch
from safetensors.numpy import save_file

import mvc
from mvc.comparison.pairs import pair_models
from mvc.operations.verify_models import verify_models
from mvc.workspace.models import open_model

VALUES = np.arange(3000, dtype="f4")


def _pairs(old, new):
    with open_model(None, old) as before, open_model(None, new) as after:
        return [
            (pair.old and pair.old.name, pair.new and pair.new.name)
            for pair in pair_models(before, after)
        ]


def test_by_name_whatever_the_file(tmp_path):
    save_file({"a": VALUES, "b": VALUES + 1}, tmp_path / "x.safetensors")
    np.savez(tmp_path / "y.npz", b=VALUES + 2, a=VALUES)
    assert _pairs(tmp_path / "x.safetensors", tmp_path / "y.npz") == [("b", "b"), ("a", "a")]


def test_by_bytes_under_another_name_and_what_came_and_went(tmp_path):
    save_file({"old": VALUES, "gone": VALUES * 3, "s": VALUES[:1]}, tmp_path / "x.safetensors")
    save_file({"new": VALUES, "came": VALUES * 2, "s": VALUES[:2]}, tmp_path / "y.safetensors")
    found = _pairs(tmp_path / "x.safetensors", tmp_path / "y.safetensors")
    assert sorted(found, key=str) == [
        ("gone", None), ("old", "new"), ("s", "s"), (None, "came"),
    ]  # fmt: skip


def test_ids_tell_what_is_the_same(tmp_path, monkeypatch):
    from mvc.repo import Repo
    from mvc.workspace.context import open_at

    repo = Repo.init(tmp_path)
    for scale in (1, 2):
        save_file({"a": VALUES, "b": VALUES * scale}, tmp_path / "m.safetensors")
        repo.add("m.safetensors")
        repo.commit(f"{scale}")
    context = open_at(tmp_path)
    with open_model(context, "HEAD~1") as old, open_model(context, None) as new:
        same = {pair.shown.name: pair.is_same for pair in pair_models(old, new)}
    assert same == {"a": True, "b": False}


def test_a_prefix_of_a_wrapper_hides_no_partner(tmp_path):
    save_file({"layers.0.w": VALUES, "module.layers.1.w": VALUES * 2}, tmp_path / "x.safetensors")
    wrapped = {"model._orig_mod.layers.0.w": VALUES + 1, "model.layers.1.w": VALUES + 2}
    save_file(wrapped, tmp_path / "y.safetensors")
    found = _pairs(tmp_path / "x.safetensors", tmp_path / "y.safetensors")
    assert found == [
        ("layers.0.w", "model._orig_mod.layers.0.w"), ("module.layers.1.w", "model.layers.1.w"),
    ]  # fmt: skip


def test_a_name_itself_comes_before_what_follows_a_prefix(tmp_path):
    save_file({"w": VALUES, "model.w": VALUES * 2}, tmp_path / "x.safetensors")
    save_file({"model.w": VALUES * 3, "w": VALUES * 4}, tmp_path / "y.safetensors")
    found = _pairs(tmp_path / "x.safetensors", tmp_path / "y.safetensors")
    assert sorted(found) == [("model.w", "model.w"), ("w", "w")]


def test_a_name_that_only_ties_a_live_tensor_is_no_other_tensor(tmp_path):
    values = torch.arange(12.0).reshape(4, 3)
    save_file({"embed": values.numpy(), "w": VALUES}, tmp_path / "x.safetensors")
    live = {
        "head": values,
        "embed": values,
        "w": VALUES,
        "turned": values.clone().T,
        "equal": values.clone(),
    }
    with open_model(None, live) as model:
        assert {one.name for one in model.tensors} == set(live)
        assert model.ties == (
            frozenset({("model.safetensors", "head"), ("model.safetensors", "embed")}),
        )
    expected = {("embed", "embed"), ("w", "w"), (None, "turned"), (None, "equal")}
    assert set(_pairs(tmp_path / "x.safetensors", live)) == expected
    assert set(_pairs(live, tmp_path / "x.safetensors")) == {(new, old) for old, new in expected}
    assert set(_pairs({"w": VALUES}, live)) >= {(None, "head"), (None, "embed")}


def test_a_tied_model_is_the_one_in_its_file(tmp_path):
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = torch.nn.Embedding(8, 4), torch.nn.Linear(4, 8, bias=False)
            self.head.weight = self.embed.weight

    model = Tied()
    save_file({"embed.weight": model.embed.weight.detach().numpy()}, tmp_path / "x.safetensors")
    assert verify_models(None, str(tmp_path / "x.safetensors"), model).passed
    assert [one.status for one in mvc.compare(tmp_path / "x.safetensors", model).changes] == [
        "unchanged"
    ]
    with torch.no_grad():
        model.head.weight[3, 2] += 1
    assert not verify_models(None, model, str(tmp_path / "x.safetensors")).passed
