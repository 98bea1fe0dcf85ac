"""merge by a recipe: from files and revisions to a file or a folder, checked before a weight is read."""

import json
import re

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import mvc
from mvc import ConflictError, FormatError, NotFoundError, UnsupportedError, UsageError
from mvc.workspace.tensors import ModelTensor

LINEAR = """
merge_method: linear
models:
  - {model: a, parameters: {weight: 1}}
  - {model: b, parameters: {weight: 3}}
"""


def _model(seed, layers=3, **more):
    random = np.random.default_rng(seed)
    shapes = {
        "model.embed_tokens.weight": (8, 4),
        "model.norm.weight": (4,),
        "lm_head.weight": (8, 4),
    }
    for layer in range(layers):
        shapes[f"model.layers.{layer}.mlp.weight"] = (4, 4)
    tensors = {name: random.normal(size=shape).astype("f4") for name, shape in shapes.items()}
    return {**tensors, **more}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Two models in folders, as they are downloaded; the current folder is theirs."""
    for seed, name in enumerate("ab"):
        (tmp_path / name).mkdir()
        save_file(_model(seed), tmp_path / name / "model.safetensors")
        config = {
            "num_hidden_layers": 3,
            "vocab_size": 8,
            "dtype": "float32",
            "layer_types": list("xyz"),
        }
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def change(folder, **more):
    """Let b have these tensors, and lack those that are None."""
    tensors = {name: one for name, one in {**_model(1), **more}.items() if one is not None}
    save_file(tensors, folder / "b/model.safetensors")


def test_files_outside_a_repository_are_merged_into_a_file(folder):
    result = mvc.merge_recipe(LINEAR, "out.safetensors")
    assert (result.method, result.tensors, result.merged) == ("linear", 6, 6)
    a, b, out = (
        load_file(folder / one)
        for one in ("a/model.safetensors", "b/model.safetensors", "out.safetensors")
    )
    assert out.keys() == a.keys()
    for name, value in out.items():
        expected = (a[name].astype(float) + 3 * b[name]) / 4
        np.testing.assert_allclose(value, expected, rtol=1e-6)
    assert result.size_bytes == (folder / "out.safetensors").stat().st_size


def test_a_folder_gets_what_belongs_to_a_model(folder):
    (folder / "a" / "tokenizer.json").write_text("{}")
    (folder / "a" / "secret.txt").write_text("no")
    mvc.merge_recipe(LINEAR + "out_dtype: bfloat16\n", "out/")
    names = {one.name for one in (folder / "out").iterdir()}
    assert names == {"model.safetensors", "config.json", "tokenizer.json", "mergekit_config.yml"}
    assert json.loads((folder / "out/config.json").read_text())["dtype"] == "bfloat16"
    with mvc.workspace.models.open_model(None, folder / "out") as model:
        assert {one.view.dtype for one in model.tensors} == {"BF16"}


def test_layers_are_stacked_and_counted_anew(folder):
    recipe = """
slices:
  - sources: [{model: a, layer_range: [0, 2]}]
  - sources: [{model: b, layer_range: [1, 3], parameters: {scale: [2, 4]}}]
merge_method: passthrough
"""
    mvc.merge_recipe(recipe, "out/")
    a, b = (load_file(folder / one / "model.safetensors") for one in "ab")
    out = load_file(folder / "out/model.safetensors")
    layers = [out[f"model.layers.{number}.mlp.weight"] for number in range(4)]
    assert len(out) == 7
    for got, expected in zip(
        layers,
        [a["model.layers.0.mlp.weight"], a["model.layers.1.mlp.weight"],
         b["model.layers.1.mlp.weight"] * 2, b["model.layers.2.mlp.weight"] * 4],
        strict=True,
    ):  # fmt: skip
        assert np.array_equal(got, expected)
    # Before the layers the first slice counts, behind them the last, as in mergekit.
    assert np.array_equal(out["model.embed_tokens.weight"], a["model.embed_tokens.weight"])
    assert np.array_equal(out["lm_head.weight"], b["lm_head.weight"] * 2)
    config = json.loads((folder / "out/config.json").read_text())
    assert (config["num_hidden_layers"], config["layer_types"]) == (4, ["x", "y", "y", "z"])


@pytest.mark.parametrize(
    ("stacks", "message"),
    [
        (["encoder.block", "decoder.block"], "t5 counts 2 layers in 'decoder.block.' and in 'enc"),
        ([], "no names of t5 count layers from 0"),
    ],
)
def test_without_one_stack_of_layers_there_are_no_slices(folder, stacks, message):
    names = ["shared.weight", *(f"{stack}.{number}.w" for stack in stacks for number in (0, 1))]
    (folder / "t5").mkdir()
    save_file({name: np.ones(3, np.float32) for name in names}, folder / "t5/model.safetensors")
    recipe = "merge_method: passthrough\nslices: [{sources: [{model: t5, layer_range: [0, 1]}]}]"
    with pytest.raises(UsageError, match=re.escape(message)):
        mvc.merge_recipe(recipe, "out/")
    assert not (folder / "out").exists()


def test_revisions_are_merged_and_equal_tensors_are_not_read(repo, monkeypatch, tmp_path):
    for branch, seed in [("main", 0), ("other", 1)]:
        if branch != "main":
            repo.switch(branch, create=True)
        tensors = {**_model(seed), "same": np.ones((50, 50), "f4")}
        save_file(tensors, repo.worktree / "model.safetensors")
        repo.add(["model.safetensors"])
        repo.commit(branch)
    opened = []
    real = ModelTensor.open
    monkeypatch.setattr(
        ModelTensor, "open", lambda tensor: opened.append(tensor.name) or real(tensor)
    )
    recipe = LINEAR.replace("model: a", "model: main").replace("model: b", "model: other")
    result = repo.merge_recipe(recipe, tmp_path / "out.safetensors")
    assert result.merged == 6
    assert opened.count("same") == 1  # to copy it, once
    assert np.array_equal(load_file(tmp_path / "out.safetensors")["same"], np.ones((50, 50), "f4"))


def test_a_head_that_is_tied_to_the_embedding_is_found_there(folder):
    tied = {name: value for name, value in _model(1).items() if name != "lm_head.weight"}
    save_file(tied, folder / "b/model.safetensors")
    mvc.merge_recipe(LINEAR, "out.safetensors")
    a = load_file(folder / "a/model.safetensors")
    expected = (a["lm_head.weight"] + 3 * tied["model.embed_tokens.weight"]) / 4
    np.testing.assert_allclose(
        load_file(folder / "out.safetensors")["lm_head.weight"], expected, rtol=1e-6
    )


def test_what_the_host_lacks_is_left_out_and_said(folder):
    save_file(
        {**_model(1), "extra": np.ones(3, "f4"), "more": np.ones(3, "f4")},
        folder / "b/model.safetensors",
    )
    result = mvc.merge_recipe(LINEAR, "out.safetensors")
    assert result.notes == ("b has extra and 1 more, which a lacks",)


@pytest.mark.parametrize(
    ("more", "recipe", "error", "message"),
    [
        ({"model.norm.weight": None}, LINEAR, NotFoundError, "b has no tensor 'model.norm.weight'"),
        ({"lm_head.weight": np.ones((9, 4), "f4")}, LINEAR, UsageError, "tensor 'lm_head.weight' is [8, 4] in"),
        ({"model.norm.weight": np.ones(4, "i4")}, LINEAR, UnsupportedError, "'model.norm.weight' is I32"),
        ({}, LINEAR.replace("a,", "gone,"), NotFoundError, "model of the recipe: 'gone' does not exist"),
        ({}, LINEAR.replace("weight: 3", "weight: -1"), UsageError, "the weights sum to 0"),
        ({}, LINEAR.replace(", parameters: {weight: 3}", ""), UsageError, "linear needs the parameter `weight`"),
        ({}, LINEAR + "base_model: c\n", NotFoundError, "'c' does not exist"),
        ({}, LINEAR.replace("linear", "slerp"), UsageError, "slerp needs a base to merge into"),
        ({}, LINEAR.replace("linear", "karcher") + "base_model: ./a\n", UsageError, "karcher does not use a base model"),
        ({}, "slices: [{sources: [{model: a, layer_range: [2, 4]}]}]\nmerge_method: passthrough", NotFoundError, "a has no layer 3"),
        ({}, "slices: [{sources: [{model: a, layer_range: [0, 2]}]}]\nmerge_method: slerp\nbase_model: b", UsageError, "base model 'b' is not among the sources"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_an_error_before_a_weight_is_read(
    folder, monkeypatch, more, recipe, error, message
):
    change(folder, **more)
    monkeypatch.setattr(ModelTensor, "open", lambda tensor: pytest.fail(f"{tensor.name} was read"))
    with pytest.raises(error) as caught:
        mvc.merge_recipe(recipe, "out.safetensors")
    assert message in caught.value.message
    assert not (folder / "out.safetensors").exists()


def test_whole_numbers_have_to_be_equal(folder):
    for name, last in [("a", 3), ("b", 3)]:
        save_file({**_model(1), "ids": np.array([1, 2, last])}, folder / name / "model.safetensors")
    mvc.merge_recipe(LINEAR, "out.safetensors")
    assert load_file(folder / "out.safetensors")["ids"].tolist() == [1, 2, 3]
    change(folder, ids=np.array([1, 2, 4]))
    with pytest.raises(
        UnsupportedError, match="'ids' is I64, which cannot be averaged, and differs"
    ):
        mvc.merge_recipe(LINEAR, "other.safetensors")


def test_files_are_never_overwritten_unless_forced(folder):
    mvc.merge_recipe(LINEAR, "out.safetensors")
    with pytest.raises(ConflictError, match=r"out\.safetensors already exists"):
        mvc.merge_recipe(LINEAR, "out.safetensors")
    mvc.merge_recipe(LINEAR, "out.safetensors", force=True)
    with pytest.raises(UsageError, match="would hold a safetensors file"):
        mvc.merge_recipe(LINEAR, "out.bin")


def test_a_broken_model_leaves_nothing_behind(folder):
    data = (folder / "b/model.safetensors").read_bytes()
    (folder / "b/model.safetensors").write_bytes(data[:-100])
    with pytest.raises(FormatError):
        mvc.merge_recipe(LINEAR, "out.safetensors")
    bad = {**_model(1), "model.norm.weight": np.full(4, np.nan, "f4")}
    save_file(bad, folder / "b/model.safetensors")
    with pytest.raises(UnsupportedError, match="NaN"):
        mvc.merge_recipe(
            "{merge_method: slerp, base_model: a, models: [{model: b}], parameters: {t: 0.5}}",
            "out.safetensors",
        )
    assert sorted(one.name for one in folder.iterdir()) == ["a", "b"]
