"""Embeddings of models with different tokens: rows follow the tokens, and files say so."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import mvc
from mvc import FormatError, NotFoundError, UsageError
from mvc.merging import tokenizer

RECIPE = """
merge_method: linear
models:
  - {model: a, parameters: {weight: 1}}
  - {model: b, parameters: {weight: 1}}
tokenizer_source: union
"""
A_TOKENS = ["<s>", "the", "cat", "sat"]
B_TOKENS = ["the", "<s>", "cat", "dog", "<|im|>"]


def _write(folder, tokens, added=(), rows=None, seed=0, **more):
    """A model whose rows are known by their token, with the files beside it."""
    folder.mkdir(exist_ok=True)
    random = np.random.default_rng(seed)
    rows = rows or len(tokens)
    tensors = {
        "model.embed_tokens.weight": random.normal(size=(rows, 3)).astype("f4"),
        "model.norm.weight": random.normal(size=3).astype("f4"),
        "lm_head.weight": random.normal(size=(rows, 3)).astype("f4"),
        **more,
    }
    save_file(tensors, folder / "model.safetensors")
    ids = {token: row for row, token in enumerate(tokens)}
    top = {
        "model": {
            "type": "WordLevel",
            "vocab": {one: row for one, row in ids.items() if one not in added},
        },
        "added_tokens": [
            {"id": ids[one], "content": one, "special": True, "normalized": False} for one in added
        ],
    }
    (folder / "tokenizer.json").write_text(json.dumps(top))
    (folder / "config.json").write_text(json.dumps({"vocab_size": rows, "num_hidden_layers": 0}))
    return tensors


@pytest.fixture
def models(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    a = _write(tmp_path / "a", A_TOKENS, seed=0)
    b = _write(tmp_path / "b", B_TOKENS, added=["<|im|>"], seed=1)
    return a, b


def _merge(recipe=RECIPE):
    result = mvc.merge_recipe(recipe, "out/", force=True)
    out = load_file("out/model.safetensors")
    top = json.loads(Path("out/tokenizer.json").read_text())
    ids = {**top["model"]["vocab"], **{one["content"]: one["id"] for one in top["added_tokens"]}}
    return result, out, ids, top


def test_a_union_has_the_rows_of_all_tokens(models):
    a, b = models
    _, out, ids, top = _merge()
    assert ids == {"<s>": 0, "the": 1, "cat": 2, "sat": 3, "dog": 4, "<|im|>": 5}
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        assert out[name].shape == (6, 3)
        for token, row in ids.items():
            own = [
                one[name][tokens.index(token)]
                for one, tokens in ((a, A_TOKENS), (b, B_TOKENS))
                if token in tokens
            ]
            # What one model lacks is the other's row: their mean is that row.
            np.testing.assert_allclose(out[name][row], np.mean(own, axis=0), rtol=1e-6)
    added = {one["content"]: one for one in top["added_tokens"]}
    assert (added["<|im|>"]["special"], added["dog"]["special"]) == (True, False)
    assert json.loads(Path("out/config.json").read_text())["vocab_size"] == 6


def test_the_base_vocabulary_leaves_out_what_others_have_more(models):
    a, b = models
    _, out, ids, _ = _merge(RECIPE.replace("union", "base"))
    assert ids == {token: row for row, token in enumerate(A_TOKENS)}
    embedding = out["model.embed_tokens.weight"]
    np.testing.assert_allclose(
        embedding[0],
        (a["model.embed_tokens.weight"][0] + b["model.embed_tokens.weight"][1]) / 2,
        rtol=1e-6,
    )
    np.testing.assert_allclose(embedding[3], a["model.embed_tokens.weight"][3], rtol=1e-6)


def test_a_model_may_give_the_vocabulary(models):
    _, out, ids, _ = _merge(RECIPE.replace("union", "b"))
    assert ids == {token: row for row, token in enumerate(B_TOKENS)}
    assert out["lm_head.weight"].shape == (5, 3)


def test_rows_of_no_token_are_the_mean_of_those_that_have_one(models):
    a, _ = models
    recipe = RECIPE.replace(
        "tokenizer_source: union", "tokenizer: {source: base, pad_to_multiple_of: 8}"
    )
    result, out, _, _ = _merge(recipe.replace("- {model: b, parameters: {weight: 1}}", ""))
    embedding = out["model.embed_tokens.weight"]
    assert embedding.shape == (8, 3)
    assert np.array_equal(embedding[:4], a["model.embed_tokens.weight"])
    for row in embedding[4:]:
        np.testing.assert_allclose(row, a["model.embed_tokens.weight"].mean(axis=0), rtol=1e-5)
    assert json.loads(Path("out/config.json").read_text())["vocab_size"] == 8
    assert result.notes == ()


def test_with_a_base_missing_rows_are_the_bases(models, tmp_path):
    _write(tmp_path / "c", [*A_TOKENS, "dog"], seed=2)
    recipe = """
merge_method: task_arithmetic
base_model: a
models: [{model: b, parameters: {weight: 1}}, {model: c, parameters: {weight: 1}}]
tokenizer_source: union
"""
    _, out, ids, _ = _merge(recipe)
    # b lacks "sat": its row there is the base's, and its task vector nothing.
    c = load_file("c/model.safetensors")["model.embed_tokens.weight"]
    np.testing.assert_allclose(out["model.embed_tokens.weight"][ids["sat"]], c[3], rtol=1e-5)


def test_rows_are_the_same_however_many_blocks_they_are_in(models, monkeypatch):
    whole = _merge()[1]
    monkeypatch.setattr(tokenizer, "_BLOCK_BYTES", 8)
    monkeypatch.setattr(tokenizer, "_BLOCKS_KEPT", 2)
    small = _merge()[1]
    assert all(np.array_equal(whole[name], small[name]) for name in whole)


def test_equal_row_counts_with_other_tokens_are_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _write(tmp_path / "a", A_TOKENS)
    _write(tmp_path / "b", A_TOKENS[::-1])
    with pytest.raises(
        UsageError, match="row 0 is '<s>' in one and 'sat' in the other, and so are 3 more"
    ):
        mvc.merge_recipe(RECIPE.replace("tokenizer_source: union", ""), "x.safetensors")


def test_tokens_without_a_row_are_reported_and_left_out(models, tmp_path):
    _write(tmp_path / "b", [*B_TOKENS, "far", "out"], rows=5, seed=1)
    result, out, ids, _ = _merge()
    assert result.notes == (
        "the tokenizer of b has ids up to 6, and its embedding 5 rows: 2 tokens without one",
    )
    assert "far" not in ids
    assert out["model.embed_tokens.weight"].shape == (6, 3)


def test_a_model_without_tokenizer_is_taken_to_have_the_bases(models, tmp_path):
    (tmp_path / "b/tokenizer.json").unlink()
    _write(tmp_path / "b", A_TOKENS, seed=1)
    (tmp_path / "b/tokenizer.json").unlink()
    _, _, ids, _ = _merge()
    assert list(ids) == A_TOKENS
    (tmp_path / "a/tokenizer.json").unlink()
    with pytest.raises(NotFoundError, match="a has no tokenizer whose vocabulary can be read"):
        _merge()


def test_a_damaged_tokenizer_stops_only_who_needs_it(models, tmp_path):
    (tmp_path / "b/tokenizer.json").write_text("{")
    with pytest.raises(FormatError, match="tokenizer"):
        _merge()
    _write(tmp_path / "b", A_TOKENS, seed=1)
    (tmp_path / "b/tokenizer.json").write_text("{")
    result = mvc.merge_recipe(RECIPE.replace("tokenizer_source: union", ""), "x.safetensors")
    assert result.notes[0].startswith("the tokenizer of b is not checked")


def test_rows_are_compared_between_all_models(models, tmp_path):
    """The base has room for more tokens; two models have used it, each in its way."""
    for name, more in (("base", []), ("a", ["mine"]), ("b", ["yours"])):
        _write(tmp_path / name, A_TOKENS + more, rows=6)
    recipe = RECIPE.replace("linear", "task_arithmetic").replace("tokenizer_source: union", "")
    with pytest.raises(UsageError, match="of a and b differ: row 4 is 'mine' in one and 'yours'"):
        mvc.merge_recipe(f"{recipe}base_model: base\n", "x.safetensors")
