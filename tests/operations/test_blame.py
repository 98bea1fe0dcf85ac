"""blame: who changed each tensor last, beside a search that knows no shortcut."""

import random
import shutil

import numpy as np
import pytest
from safetensors.numpy import save_file

from mvc.errors import NotFoundError, UsageError
from mvc.formats.layout import single_tensor
from mvc.formats.manifest import Manifest, StoredSegment
from mvc.formats.manifest_lines import encode_manifest
from mvc.history.values import TreeEntry

NAMES = ["embed", "layers.0.q", "layers.1.q", "head"]


def by_name(found):
    return {tensor.name: tensor for tensor in found.tensors}


def save(root, path="m.safetensors", **values):
    tensors = {
        name.replace("__", "."): np.full(4, value, np.float32) for name, value in values.items()
    }
    save_file(tensors, root / path)


@pytest.fixture
def forge(repo):
    """Make commits of one manifest each, of tensors that are numbers."""
    history = repo._context.history

    def make(values, parents, number):
        segments = tuple(
            StoredSegment(single_tensor(name, "F32", (4,), 16 + 16 * at), (bytes([value]) * 32,))
            for at, (name, value) in enumerate(values.items())
        )
        size = 16 + 16 * len(segments)
        manifest = Manifest("safetensors", size, 1 << 20, (bytes(32),), segments)
        blob = history.write_blob(encode_manifest(manifest))
        tree = history.write_tree({"m.safetensors": TreeEntry(0o100644, blob)})
        stamp = repo._context.stamp(time_s=1_700_000_000 + number)
        return history.write_commit(tree=tree, parents=parents, message=str(number), author=stamp)

    return make


@pytest.mark.parametrize("seed", range(15))
def test_any_history_gives_the_commits_that_a_plain_search_gives(repo, forge, seed):
    chooser = random.Random(seed)
    values, parents, commits = {}, {}, []
    for number in range(30):
        above = chooser.sample(commits[-4:], min(len(commits), chooser.choice([1, 1, 2, 3])))
        mine = dict(values[above[0]]) if above else dict.fromkeys(NAMES, 0)
        for name in NAMES:
            roll = chooser.random()
            if roll < 0.3:
                mine[name] = number + 1
            elif roll < 0.6 and above:
                mine[name] = values[above[-1]][name]
        new = forge(mine, above, number)
        values[new], parents[new] = mine, above
        commits.append(new)

    def search(commit, name):
        same = [one for one in parents[commit] if values[one][name] == values[commit][name]]
        return search(same[0], name) if same else commit

    found = by_name(repo.blame(commits[-1]))
    assert {name: found[name].commit for name in NAMES} == {
        name: search(commits[-1], name) for name in NAMES
    }
    line = [commits[-1]]
    while parents[line[-1]]:
        line.append(parents[line[-1]][0])
    for name in NAMES:
        assert found[name].since == line[-1]
        assert found[name].versions == len({values[one][name] for one in line})


def test_equal_files_are_read_once_and_no_tensor_at_all(repo, root, reads):
    for number in range(12):
        save(root, embed=number // 4, head=1)
        (root / "notes.txt").write_text(str(number))
        repo.commit(str(number), paths=".")
    reads.clear()
    found = repo.blame()
    assert found.manifests_read == 3
    assert reads == []
    subjects = {name: repo.show(one.commit).subject for name, one in by_name(found).items()}
    assert subjects == {"embed": "8", "head": "0"}


def test_tensors_are_followed_through_new_names_and_files(repo, root):
    save(root, embed=1, head=2)
    first = repo.commit("first", paths=".").id
    save(root, embed=5, head=2)
    second = repo.commit("embed changed", paths=".").id
    save(root, model__embed=5, head=2)
    repo.commit("renamed", paths=".")
    (root / "sub").mkdir()
    shutil.move(root / "m.safetensors", root / "sub/n.safetensors")
    repo.commit("moved", paths=".")
    save(root, "sub/o.safetensors", model__embed=5, head=7)
    (root / "sub/n.safetensors").unlink()
    fifth = repo.commit("moved and changed", paths=".").id
    found = by_name(repo.blame())
    assert (found["model.embed"].commit, found["model.embed"].since) == (second, first)
    assert (found["head"].commit, found["head"].since) == (fifth, first)
    assert (found["model.embed"].versions, found["head"].versions) == (2, 2)


def test_drift_is_the_relative_distance_from_the_first_version(repo, root, reads):
    rng, weights = np.random.default_rng(5), []
    frozen = rng.standard_normal(64).astype(np.float32)
    for number in range(7):
        weights.append((rng.standard_normal((16, 16)) * (number + 1)).astype(np.float32))
        save_file({"w": weights[-1], "frozen": frozen}, root / "m.safetensors")
        repo.commit(str(number), paths=".")
    before = by_name(repo.blame())
    assert [point.distance for point in before["w"].drift] == [0.0, *[None] * 6]
    assert [point.changed for point in before["w"].drift] == [False, *[True] * 6]
    assert [point.distance for point in before["frozen"].drift] == [0.0] * 7
    repo.blame(compute=True)
    assert reads
    reads.clear()
    drift = [point.distance for point in by_name(repo.blame())["w"].drift]
    assert reads == []
    exact = [one.astype(np.float64) for one in weights]
    expected = [np.linalg.norm(one - exact[0]) / np.linalg.norm(exact[0]) for one in exact]
    np.testing.assert_allclose(drift, expected, rtol=1e-12)
    reads.clear()
    repo.blame(compute=True)
    assert reads == []


def test_samples_lie_evenly_and_hold_both_ends(repo, forge):
    parents, line = [], []
    for number in range(50):
        parents = [forge({"w": number}, parents, number)]
        line += parents
    found = repo.blame(line[-1], samples=8)
    places = [line.index(one) for one in found.samples]
    assert (places[0], places[-1], len(places)) == (0, 49, 8)
    assert max(np.diff(places)) == min(np.diff(places)) == 7


def test_what_was_asked_for(repo, root):
    save(root, layers__0__q=1, layers__1__q=2, layers__10__q=3)
    save(root, "other.safetensors", embed=1)
    repo.commit("first", paths=".")
    assert set(by_name(repo.blame(tensors="layers.1"))) == {"layers.1.q"}
    assert set(by_name(repo.blame(tensors="layers.1*"))) == {"layers.1.q", "layers.10.q"}
    assert set(by_name(repo.blame(paths=["other.safetensors"]))) == {"embed"}
    with pytest.raises(NotFoundError, match="no tensor that matches 'nothing'"):
        repo.blame(tensors="nothing")
    with pytest.raises(NotFoundError, match="'nowhere' matches no file"):
        repo.blame(paths=["nowhere"])
    with pytest.raises(UsageError):
        repo.blame(samples=1)


def test_what_is_not_finite_has_no_distance(repo, root):
    for number, value in enumerate([1.0, 2.0, np.nan, np.inf, 3.0]):
        save(root, w=value)
        repo.commit(str(number), paths=".")
    points = by_name(repo.blame(compute=True))["w"].drift
    np.testing.assert_equal([point.distance for point in points], [0.0, 1.0, np.nan, np.nan, 2.0])


def test_what_was_released_is_not_compared(repo, root):
    for number in range(6):
        save(root, w=number + 1)
        repo.commit(str(number), paths=".", step=number)
    repo.tags.create("first", "HEAD~5")
    repo.upkeep.prune(repo.upkeep.plan_prune(keep_every=2))
    points = by_name(repo.blame(compute=True))["w"].drift
    assert [point.distance for point in points] == [0.0, None, 2.0, None, 4.0, 5.0]
    assert all(point.changed for point in points[1:])
