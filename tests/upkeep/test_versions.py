"""Versions of files: which commits have them, what was released, and what is live."""

import pytest

from mvc.errors import FormatError
from mvc.upkeep.versions import Versions, commits_of, find_live, reach, released_paths, walk_all
from mvc.workspace.releases import Release
from support.models import write_model

PARENTS = {"d": ("b", "c"), "b": ("a",), "c": ("a",), "a": ("gone",)}


@pytest.mark.parametrize(
    ("tips", "without", "found"),
    [
        ("d", "", "abcd"), ("b", "", "ab"), ("bc", "", "abc"), ("d", "b", "acd"),
        ("d", "bc", "d"), ("d", "d", ""), ("x", "", ""), ("", "", ""),
    ],
)  # fmt: skip
def test_what_tips_lead_to(tips, without, found):
    assert reach(PARENTS, tips, without) == set(found)


@pytest.fixture
def stored(repo, root):
    """Two commits: a plain file and a model; then another model beside it."""
    (root / "notes.txt").write_text("plain")
    write_model(root / "a.safetensors")
    first = repo.commit("one", paths=".").commit
    write_model(root / "b.safetensors", seed=1)
    return first, repo.commit("two", paths=".").commit


def release(commit, *paths):
    return {commit: [Release(commit, paths, "keep-last 1", 0)]}


def test_files_in_chunks_of_a_commit(context, stored):
    versions = Versions(context)
    first, second = (context.history.read_commit(commit) for commit in stored)
    assert set(versions.of(first)) == {"a.safetensors"}
    assert set(versions.of(second)) == {"a.safetensors", "b.safetensors"}
    assert versions.left(second, release(second.id, "a.safetensors", "gone")) == {
        "b.safetensors": versions.of(second)["b.safetensors"]
    }
    assert versions.left(first, release(second.id, "a.safetensors")) == versions.of(first)


def test_released_paths():
    (one,) = release("a" * 40, "x", "y").values()
    (two,) = release("a" * 40, "y", "z").values()
    assert released_paths([*one, *two]) == {"x", "y", "z"}
    assert released_paths([]) == set()


def test_a_manifest_lives_as_long_as_one_version_has_it(context, stored):
    first, second = stored
    files = Versions(context).of(context.history.read_commit(second))
    assert find_live(context, {})[files["a.safetensors"]] == (second, "a.safetensors")
    live = find_live(context, release(second, "a.safetensors"))
    assert live[files["a.safetensors"]] == (first, "a.safetensors")
    live = find_live(context, release(second, "b.safetensors"))
    assert live[files["b.safetensors"]] == (None, "b.safetensors")  # the index has it


def test_a_damaged_index_is_skipped_unless_it_is_trusted(context, repo, stored):
    (repo.git_dir / "index").write_bytes(b"garbage")
    with pytest.raises(FormatError):
        find_live(context, {})
    assert len(find_live(context, {}, trust_index=False)) == 2


def test_all_commits_and_what_stands_for_none(context, repo, stored):
    repo.tags.create("v1", message="annotated")
    blob = next(iter(Versions(context).of(context.history.read_commit(stored[0])).values()))
    tag = context.history.list_refs("refs/tags/")["refs/tags/v1"]
    assert commits_of(context, [tag, stored[1], stored[0], blob]) == [stored[1], stored[0]]
    repo.reset("HEAD~1", mode="soft")
    assert [info.id for info in walk_all(context)] == [stored[1], stored[0]]  # by the reflog
