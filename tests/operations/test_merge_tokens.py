"""Merging branches whose tokenizers went apart: rows aligned by token, or refused."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from mvc import NotFoundError, UnsupportedError, UsageError
from mvc.workspace.tensors import ModelTensor
from support.opened_repo import message

EMBED, HEAD, BODY = "model.embed_tokens.weight", "lm_head.weight", "model.layers.0.mlp.weight"
BASE = ["a", "b", "c", "d"]


def rows_of(tokens, shift):
    """Return an embedding whose rows tell the token, and whose they are."""
    return np.array([[ord(one[0]) * 10 + shift, shift] for one in tokens], np.float32)


def save(root, tokens, shift, *, body=0.0, padding=0, folder=".", **config):
    """Write a model with its tokenizer; ``shift`` is what training did to it."""
    (root / folder).mkdir(exist_ok=True)
    embed = np.concatenate([rows_of(tokens, shift), np.full((padding, 2), 7 + shift, np.float32)])
    tensors = {EMBED: embed, HEAD: -embed, BODY: np.full((2, 2), body, np.float32)}
    save_file(tensors, root / folder / "model.safetensors")
    vocabulary = {token: row for row, token in enumerate(tokens[:4])}
    more = [
        {"id": 4 + row, "content": token, "special": True} for row, token in enumerate(tokens[4:])
    ]
    top = {"model": {"type": "BPE", "vocab": vocabulary, "merges": []}, "added_tokens": more}
    (root / folder / "tokenizer.json").write_text(json.dumps(top, indent=1))
    names = {"added_tokens_decoder": {str(one["id"]): one["content"] for one in more}}
    (root / folder / "tokenizer_config.json").write_text(json.dumps(names, indent=1))
    config = {"vocab_size": len(embed), "hidden_size": 2, **config}
    (root / folder / "config.json").write_text(json.dumps(config, indent=2))


def commit(repo, text):
    repo.add(".")
    return repo.commit(text).commit


def part(repo, root, ours, theirs, **told):
    """Make two branches; main is the current one, side the other."""
    save(root, BASE, 0, **told)
    commit(repo, "base")
    repo.switch("side", create=True)
    save(root, theirs, 4, body=1.0, dropout=1, **told)
    commit(repo, "theirs")
    repo.switch("main")
    save(root, ours, 2, **told)
    commit(repo, "ours")


def grow(repo, put):
    """Let ``put`` write the base, and what side and main have: a token more, each its own."""
    for branch, tokens, shift in (
        ("main", BASE, 0),
        ("side", [*BASE, "yours"], 4),
        ("main", [*BASE, "mine"], 2),
    ):
        if shift:
            repo.switch(branch, create=branch == "side")
        put(tokens, shift)
        commit(repo, branch)


@pytest.fixture
def apart(repo, root):
    """Each side has added a token of its own, in the same row."""
    part(repo, root, [*BASE, "mine"], [*BASE, "yours", "zeta"])
    return repo


def tokens_in(root):
    top = json.loads((root / "tokenizer.json").read_text())
    ids = top["model"]["vocab"] | {one["content"]: one["id"] for one in top["added_tokens"]}
    return [token for token, _ in sorted(ids.items(), key=lambda pair: pair[1])]


def test_a_union_has_every_token_with_its_row(apart, root):
    result = apart.merge("side", strategy="linear", tokenizer="union")
    assert (result.kind, result.conflicts) == ("merged", ())
    assert tokens_in(root) == [*BASE, "mine", "yours", "zeta"]
    found = load_file(root / "model.safetensors")
    expected = np.concatenate(
        [rows_of(BASE, 3), rows_of(["mine"], 2), rows_of(["yours", "zeta"], 4)]
    )  # both have the old ones; what one side adds is as it has it
    np.testing.assert_array_equal(found[EMBED], expected)
    np.testing.assert_array_equal(found[HEAD], -expected)
    assert (found[BODY] == 1).all()  # changed on one side only
    config = json.loads((root / "config.json").read_text())
    assert config == {"vocab_size": 7, "hidden_size": 2, "dropout": 1}
    assert "Merge-Tokenizer: union" in message(apart)
    assert apart.replay_merge("HEAD").is_same
    assert apart.status().files == ()


@pytest.mark.parametrize(
    ("choice", "tokens", "shifts"),
    [
        ("base", BASE, [3] * 4),
        ("ours", [*BASE, "mine"], [3, 3, 3, 3, 2]),
        ("theirs", [*BASE, "yours", "zeta"], [3, 3, 3, 3, 4, 4]),
        ("side", [*BASE, "yours", "zeta"], [3, 3, 3, 3, 4, 4]),
        ("HEAD", [*BASE, "mine"], [3, 3, 3, 3, 2]),
    ],
)
def test_one_sides_tokens(apart, root, choice, tokens, shifts):
    apart.merge("side", strategy="linear", tokenizer=choice)
    assert tokens_in(root) == tokens
    expected = [
        row for token, shift in zip(tokens, shifts, strict=True) for row in rows_of([token], shift)
    ]
    np.testing.assert_array_equal(load_file(root / "model.safetensors")[EMBED], expected)
    assert json.loads((root / "config.json").read_text())["vocab_size"] == len(tokens)
    assert apart.replay_merge("HEAD").is_same


def test_rows_of_other_tokens_are_never_averaged(apart, root, monkeypatch):
    reads = []
    monkeypatch.setattr(ModelTensor, "open", lambda self: reads.append(self.name))
    before = (root / "model.safetensors").read_bytes()
    with pytest.raises(
        UsageError, match="row 4 is 'mine' in one and 'yours' in the other"
    ) as error:
        apart.merge("side", strategy="linear", rules=[("tokenizer*", "ours"), ("config*", "ours")])
    assert "`tokenizer` aligns the rows" in error.value.hint
    assert reads == []
    assert (root / "model.safetensors").read_bytes() == before
    assert apart.status().pending is None


def test_a_grown_vocabulary_against_a_trained_one(repo, root):
    part(repo, root, BASE, [*BASE, "yours"])
    with pytest.raises(
        UsageError, match="rows for different tokens: 4 in base, 4 in ours, 5 in theirs"
    ):
        repo.merge("side", strategy="linear")
    repo.merge("side", strategy="task_arithmetic", tokenizer="union")
    expected = np.concatenate([rows_of(BASE, 6), rows_of(["yours"], 4)])
    np.testing.assert_array_equal(load_file(root / "model.safetensors")[EMBED], expected)


def test_what_is_left_to_decide_is_aligned_when_it_is_decided(apart, root):
    waiting = apart.merge("side", tokenizer="union")
    assert {(one.path, one.tensor) for one in waiting.conflicts} == {
        ("model.safetensors", EMBED), ("model.safetensors", HEAD),
    }  # fmt: skip
    assert tokens_in(root) == [*BASE, "mine", "yours", "zeta"]
    assert len(apart.status().conflicts) == 2
    apart.conclude(rules=[("*weight", "linear")])
    expected = np.concatenate(
        [rows_of(BASE, 3), rows_of(["mine"], 2), rows_of(["yours", "zeta"], 4)]
    )
    np.testing.assert_array_equal(load_file(root / "model.safetensors")[EMBED], expected)
    assert apart.replay_merge("HEAD").is_same


def test_a_merge_that_waits_is_checked_too(apart):
    apart.merge("side", rules=[("*.json", "ours")])
    with pytest.raises(UsageError, match="row 4 is 'mine'"):
        apart.conclude(strategy="linear")
    apart.abort()


def test_untouched_files_of_the_model_follow(repo, root):
    """A shard that neither side changed has to get the rows, too."""

    def put(tokens, _):
        save(root, tokens, 0)
        save_file({HEAD: -rows_of(tokens, 0)}, root / "head.safetensors")
        save_file({EMBED: rows_of(tokens, 0)}, root / "model.safetensors")

    grow(repo, put)
    repo.merge("side", strategy="linear", tokenizer="union")
    expected = rows_of([*BASE, "mine", "yours"], 0)
    np.testing.assert_array_equal(load_file(root / "model.safetensors")[EMBED], expected)
    np.testing.assert_array_equal(load_file(root / "head.safetensors")[HEAD], -expected)


def test_without_tokenizer_json_the_new_tokens_are_added_ones(repo, root):
    def put(tokens, shift):
        save(root, tokens, shift)
        (root / "tokenizer.json").unlink()
        vocabulary = {token: row for row, token in enumerate(tokens)}
        (root / "vocab.json").write_text(json.dumps(vocabulary))

    grow(repo, put)
    repo.merge("side", strategy="linear", tokenizer="union")
    assert json.loads((root / "added_tokens.json").read_text()) == {"yours": 5}
    assert len(load_file(root / "model.safetensors")[EMBED]) == 6
    assert repo.replay_merge("HEAD").is_same


def test_preview_aligns_and_writes_nothing(apart, root):
    before = {path.name: path.read_bytes() for path in root.iterdir() if path.is_file()}
    assert {one.name for one in apart.preview_merge("side", tokenizer="union").tensors} == {
        EMBED,
        HEAD,
    }
    with pytest.raises(UsageError, match="row 4"):
        apart.preview_merge("side", strategy="linear")
    assert apart.preview_merge("side").conflicts
    with pytest.raises(UsageError, match="a recipe names its own tokenizer"):
        apart.preview_merge(recipe="merge_method: linear", tokenizer="union")
    assert {path.name: path.read_bytes() for path in root.iterdir() if path.is_file()} == before


@pytest.mark.parametrize("name", ["onion", "side~1", ""])
def test_a_mistyped_name_is_an_error_before_anything(apart, name):
    with pytest.raises(
        UsageError, match=f"'{name}' does not name a tokenizer of this merge"
    ) as error:
        apart.merge("side", strategy="linear", tokenizer=name)
    assert error.value.hint == "choose union, base, ours, theirs, or a branch that is merged"
    assert apart.status().pending is None


def test_no_tokenizer_at_all(repo, root):
    def put(_, shift):
        save(root, BASE, shift)
        (root / "tokenizer.json").unlink()

    grow(repo, put)
    with pytest.raises(NotFoundError, match="no checkpoint of the merge has a tokenizer beside it"):
        repo.merge("side", strategy="linear", tokenizer="union")


def test_only_safetensors_can_grow(repo, root):
    def put(tokens, shift):
        save(root, tokens, shift)
        (root / "model.safetensors").unlink()
        np.savez(root / "model.npz", **{EMBED: rows_of(tokens, shift)})

    grow(repo, put)
    with pytest.raises(UnsupportedError, match=f"{EMBED}' of model.npz cannot get new rows"):
        repo.merge("side", strategy="linear", tokenizer="union")
    repo.merge("side", strategy="linear", tokenizer="theirs")
    with np.load(root / "model.npz") as found:
        expected = np.concatenate([rows_of(BASE, 3), rows_of(["yours"], 4)])
        np.testing.assert_array_equal(found[EMBED], expected)


def test_shards_whose_embedding_grows_have_an_index_that_says_so(repo, root):
    def put(tokens, shift):
        save(root, tokens, shift)
        tensors = load_file(root / "model.safetensors")
        (root / "model.safetensors").unlink()
        weight_map = {}
        for number, name in enumerate(sorted(tensors), 1):
            weight_map[name] = f"model-{number:05}-of-00003.safetensors"
            save_file({name: tensors[name]}, root / weight_map[name])
        size = sum(one.nbytes for one in tensors.values())
        index = {"metadata": {"total_size": size}, "weight_map": weight_map}
        (root / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")

    grow(repo, put)
    assert repo.merge("side", strategy="linear", tokenizer="union").conflicts == ()
    assert tokens_in(root) == [*BASE, "mine", "yours"]
    files = [load_file(path) for path in root.glob("model-*.safetensors")]
    merged = {name: one for file in files for name, one in file.items()}
    assert merged[EMBED].shape == (6, 2)
    index = json.loads((root / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(one.nbytes for one in merged.values())
    assert repo.status().is_clean


def test_padding_stays_what_it_was(repo, root):
    part(repo, root, [*BASE, "mine"], [*BASE, "yours"], padding=3)
    repo.merge("side", strategy="linear", tokenizer="union")
    old = np.concatenate([rows_of(BASE, 3), rows_of(["mine"], 2), rows_of(["yours"], 4)])
    embed = load_file(root / "model.safetensors")[EMBED]
    np.testing.assert_array_equal(embed, np.concatenate([old, np.full((2, 2), 10)]))


def test_several_branches(apart, root):
    apart.switch("third", create=True, start="main~1")
    save(root, [*BASE, "third"], 6)
    commit(apart, "third")
    apart.switch("main")
    with pytest.raises(UsageError, match="'side' does not name a tokenizer of this merge"):
        apart.merge("side", "third", strategy="linear", tokenizer="side")
    apart.merge("side", "third", strategy="linear", tokenizer="union")
    assert tokens_in(root) == [*BASE, "mine", "yours", "zeta", "third"]
    embed = load_file(root / "model.safetensors")[EMBED]
    np.testing.assert_array_equal(embed[:4], rows_of(BASE, 4))
