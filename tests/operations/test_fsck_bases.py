"""Damage under deltas: everything that is based on a lost chunk is lost, and all of it is named."""

import numpy as np
import pytest
from safetensors.numpy import save_file

from mvc import Repo
from support.damage import flip

STEPS = 4


@pytest.fixture
def chain(repo, root):
    """Four versions of one tensor, each a delta to the one before; the last one twice."""
    for number in range(STEPS):
        write_step(root, number)
        repo.commit(f"step {number}", paths=".", step=number, delta=True)
    (root / "notes.txt").write_text("x")
    repo.commit("with notes", paths=".")
    return repo


def write_step(root, number, name="m.safetensors"):
    rng = np.random.default_rng(7)
    weights = rng.standard_normal(40_000).astype(np.float32)
    for size in (1e-3, 1e-5, 1e-5)[:number]:  # so the second version resembles later ones most
        weights = weights + np.float32(size) * rng.standard_normal(40_000).astype(np.float32)
    save_file({"w": weights}, root / name)


def tensor_chunk(repo, revision):
    blob = repo._context.history.read_tree(repo.resolve(revision))["m.safetensors"].blob
    (stored,) = repo._context.manifests.read(blob).segments
    (chunk,) = stored.chunks
    return chunk


def place(repo, revision):
    location = repo._context.store.find(tensor_chunk(repo, revision))
    assert location is not None
    return location


def pack_of(root, location):
    return root / f".mvc/chunks/packs/{location.pack}.pack"


def damage(root, location):
    """Flip one byte in the middle of a body."""
    pack = pack_of(root, location)
    flip(pack, location.offset + 48 + location.stored_size_bytes // 2, 4)


def remove(root, location):
    for path in (pack_of(root, location), pack_of(root, location).with_suffix(".idx")):
        path.unlink()


def way_down(repo, revision):
    """Return the chunks that a version's tensor is based on, the nearest first."""
    way, bases = [], place(repo, revision).bases
    while bases:
        way.append(bases[0])
        bases = repo._context.store.find(bases[0]).bases
    return way


def tensor_problems(report):
    return {item.commit: item for item in report.problems if item.tensor == "w"}


def ids(repo):
    """Return commits, oldest first; the last two hold the same file."""
    return [entry.info.id for entry in repo.log()][::-1]


def expected(repo, lost):
    """Return commit → how many chunks lie between its tensor and a lost chunk; 0 and 1 for none."""
    found = {}
    for commit in (one for number, one in enumerate(ids(repo)) if number != 3):
        if tensor_chunk(repo, commit) == lost:
            found[commit] = 0
        elif lost in way_down(repo, commit):
            found[commit] = way_down(repo, commit).index(lost) + 1
    return found


@pytest.mark.parametrize("back", [4, 3])
def test_one_byte_in_a_base_is_reported_for_all_that_is_built_on_it(chain, root, back):
    commits, location = ids(chain), place(chain, f"HEAD~{back}")
    base = tensor_chunk(chain, f"HEAD~{back}")
    links = expected(chain, base)
    assert len(links) >= 2
    damage(root, location)
    assert Repo.open(root).upkeep.fsck().ok  # nobody has read a body
    report = Repo.open(root).upkeep.fsck(data=True)
    found = tensor_problems(report)
    assert found.keys() == links.keys()
    for commit, lost in found.items():
        assert (lost.pack, lost.offset) == (location.pack, location.offset)
        assert "fsck --data --repair" in lost.hint
        if not links[commit]:
            assert lost.kind == "damaged-chunk"
            continue
        assert lost.kind == "lost-base"
        way = "" if links[commit] == 1 else f" ({links[commit] - 1} more between them)"
        assert (
            f"is lost: it is based on chunk {base.hex()[:12]}{way}, which is damaged in pack "
            f"{location.pack[:12]} at offset {location.offset:,}"
        ) in lost.detail
    for commit, lost in found.items():  # the newest two commits hold one file
        assert lost.commits == ((commits[4], commits[3]) if commit == commits[4] else (commit,))
    kinds = {item.kind for item in report.problems}
    assert kinds == {"bad-chunk", "bad-pack-hash", "damaged-chunk", "lost-base"}


def test_a_missing_base_is_found_whether_data_is_read_or_not(chain, root):
    commits = ids(chain)
    base = tensor_chunk(chain, "HEAD~4")
    links = expected(chain, base)
    remove(root, place(chain, "HEAD~4"))
    for data in (False, True):
        report = Repo.open(root).upkeep.fsck(data=data)
        found = tensor_problems(report)
        assert found.keys() == links.keys()
        assert found.pop(commits[0]).kind == "missing-chunk"
        for commit, lost in found.items():
            assert (lost.kind, lost.pack, lost.offset) == ("lost-base", None, None)
            way = "" if links[commit] == 1 else f" ({links[commit] - 1} more between them)"
            assert f"on chunk {base.hex()[:12]}{way}, which is missing" in lost.detail
            assert lost.hint.startswith("add again the file version")
        assert {item.kind for item in report.problems} == {"missing-chunk", "lost-base"}


@pytest.mark.parametrize("how", [damage, remove])
def test_the_lost_base_added_again_heals_everything(chain, root, how):
    location = place(chain, "HEAD~3")
    packs = {path.name for path in pack_of(root, location).parent.iterdir()}
    how(root, location)
    opened = Repo.open(root)
    repaired = opened.upkeep.fsck(data=True, repair=True)
    assert not repaired.ok
    aside = list((root / ".mvc/chunks").glob("damaged/*"))
    assert [path.stem for path in aside] == ([location.pack] if how is damage else [])
    left = {path.name for path in pack_of(root, location).parent.iterdir()}
    assert {name for name in packs - left if location.pack not in name} == set()
    write_step(root, 1, "again.safetensors")
    opened.add("again.safetensors")
    assert Repo.open(root).upkeep.fsck(data=True).problems == ()
    for number, commit in enumerate(ids(opened)[:4]):
        write_step(root, number, "want.safetensors")
        want = (root / "want.safetensors").read_bytes()
        opened.checkout(commit, paths=["m.safetensors"])
        assert (root / "m.safetensors").read_bytes() == want


def test_what_nothing_needs_is_only_a_notice(chain, root):
    """A copy that is in no use may outlive its base: gc leaves packs with little waste alone."""
    from mvc.workspace.releases import Release, add_releases

    commits = ids(chain)
    remove(root, place(chain, "HEAD~4"))
    records = [Release(commit, ("m.safetensors",), "--keep-tagged", 0) for commit in commits]
    chain.remove(["m.safetensors"], cached=True)
    add_releases(chain._context, records)
    report = Repo.open(root).upkeep.fsck(data=True)
    assert report.problems == ()
    assert report.released == 4
    assert len([text for text in report.notices if "a base is gone" in text]) == 3
