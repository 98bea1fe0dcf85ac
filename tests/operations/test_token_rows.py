"""Embeddings by token: rows that moved with their tokens count as the same."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

import mvc
from mvc.chunkstore.store import ChunkStore

RNG = np.random.default_rng(2)
TABLE = RNG.standard_normal((12, 8)).astype("f4")
OLD = [f"t{number}" for number in range(10)]


def _write(folder, tokens, rows, **others):
    """Write a model of which row i of the embedding stands for token i."""
    folder.mkdir(exist_ok=True, parents=True)
    (folder / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}))
    tables = {"model.embed_tokens.weight": rows, "lm_head.weight": rows * 2, **others}
    save_file(tables, folder / "model.safetensors")
    return folder


def _texts(diff):
    return [verdict.text for verdict in diff.verdicts]


@pytest.fixture
def old(tmp_path):
    return _write(tmp_path / "old", OLD, TABLE[:10])


def test_rows_that_moved_with_their_tokens_are_the_same(old, tmp_path):
    order = RNG.permutation(10)
    new = _write(tmp_path / "new", [OLD[place] for place in order], TABLE[order])
    diff = mvc.compare(old, new)
    moved = int((order != np.arange(10)).sum())
    tokens = diff.tokens
    assert (tokens.common, tokens.added, tokens.removed, tokens.moved) == (10, 0, 0, moved)
    assert tokens.statistics == {"model.embed_tokens.weight": None, "lm_head.weight": None}
    assert f"the tokenizer changed: {moved} tokens at other ids" in _texts(diff)
    assert any(text.startswith("by token, every row is the same: ") for text in _texts(diff))


def test_what_changed_is_measured_by_token(old, tmp_path):
    """Two tokens put in front, one gone, and one row that moved and changed."""
    names = ["new1", "new2", *OLD[1:]]
    rows = np.concatenate([TABLE[10:], TABLE[1:10]])
    rows[5] += 1
    diff = mvc.compare(old, _write(tmp_path / "new", names, rows))
    tokens = diff.tokens
    assert (tokens.common, tokens.added, tokens.removed, tokens.moved) == (9, 2, 1, 9)
    found = tokens.statistics["model.embed_tokens.weight"]
    assert (found.elements, found.changed) == (9 * 8, 8)
    assert found.sum_abs_difference == pytest.approx(8, rel=1e-5)
    assert any(
        "the tokenizer changed: 2 tokens added, 1 token removed" in one for one in _texts(diff)
    )


def test_a_token_without_a_row_is_an_alarm(old, tmp_path):
    new = _write(tmp_path / "new", [*OLD, "a", "b", "c"], TABLE[:11])
    diff = mvc.compare(old, new)
    assert diff.verdicts[0].level == "bad"
    assert "has ids up to 12, and its embedding 11 rows" in diff.verdicts[0].text


def test_revisions_and_the_worktree_have_tokenizers_too(repo, root):
    _write(root, OLD, TABLE[:10])
    repo.add(".")
    repo.commit("old")
    order = [9, *range(9)]
    _write(root, [OLD[place] for place in order], TABLE[order])
    assert repo.compare("HEAD").tokens.moved == 10
    assert repo.compare().tokens.moved == 10
    repo.add(".")
    repo.commit("new")
    assert repo.compare("HEAD~1", "HEAD").tokens.moved == 10
    assert repo.compare("HEAD").tokens is None


def test_without_a_readable_tokenizer_nothing_is_said(old, tmp_path, monkeypatch):
    new = _write(tmp_path / "new", OLD[::-1], TABLE[9::-1])
    (new / "vocab.json").write_text("{nonsense")
    assert mvc.compare(old, new).tokens is None
    (new / "vocab.json").unlink()
    assert mvc.compare(old, new).tokens is None
    # A live state has no folder: what is in the current one is not its tokenizer.
    monkeypatch.chdir(old)
    assert mvc.compare({"embed_tokens": TABLE}, {"embed_tokens": TABLE[:9]}).tokens is None


def test_equal_tokenizers_are_not_even_parsed(old, tmp_path, monkeypatch):
    from mvc.operations import token_rows

    def refuse(files):
        raise AssertionError("parsed")

    monkeypatch.setattr(token_rows, "read_vocabulary", refuse)
    new = _write(tmp_path / "new", OLD, TABLE[:10] * 2)
    assert mvc.compare(old, new).tokens is None


def test_what_was_computed_is_kept_by_tensors_and_tokens(repo, root, monkeypatch):
    order = [9, *range(9)]
    moved = [OLD[place] for place in order]
    rows = TABLE[order].copy()
    rows[3] += 1
    for text, tokens, table in (
        ("old", OLD, TABLE[:10]),
        ("new", moved, rows),
        ("odd", moved[::-1], rows),
    ):
        _write(root, tokens, table)
        repo.add(".")
        repo.commit(text)
    first = repo.compare("HEAD~2", "HEAD~1").tokens.statistics
    other = repo.compare("HEAD~2", "HEAD").tokens.statistics
    assert first["lm_head.weight"].changed == 8
    assert other["lm_head.weight"].changed > 8  # the same tensors, of other tokens
    read = []
    real = ChunkStore.read_each
    monkeypatch.setattr(
        ChunkStore,
        "read_each",
        lambda self, *args, **more: read.append(args) or real(self, *args, **more),
    )
    assert repo.compare("HEAD~2", "HEAD~1").tokens.statistics == first
    assert repo.compare("HEAD~2", "HEAD").tokens.statistics == other
    assert read == []
    repo.upkeep.gc(repo.upkeep.plan_gc(grace_s=0))
    assert repo.compare("HEAD~2", "HEAD").tokens.statistics == other
    assert read == []
    (repo.git_dir / "statistics.db").unlink()
    assert repo.compare("HEAD~2", "HEAD").tokens.statistics == other
    assert read != []
