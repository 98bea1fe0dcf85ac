"""DTensors of every rank filled from a commit, and compared with it: each rank reads what it has."""

import pytest

torch = pytest.importorskip("torch")
from torch.distributed.tensor import DTensor, Replicate, Shard  # noqa: E402

from mvc import ConflictError, CorruptionError, FormatError, Repo  # noqa: E402
from mvc.states.state import open_image  # noqa: E402
from mvc.training import compare_image, layout_state, outline_image, read_image  # noqa: E402
from support.sharded import local, shard_one  # noqa: E402

pytestmark = pytest.mark.torch
ROWS, COLUMNS = 96, 64  # in chunks of 4096 bytes there are six of this shape
PLACED = {
    "row": ("tp", [Shard(0)]),
    "column": ("tp", [Shard(1)]),
    "both": (("dp", "tp"), [Shard(1), Shard(0)]),
    "twice": (("dp", "tp"), [Shard(0), Shard(0)]),
    "hybrid": (("rep", "tp"), [Replicate(), Shard(0)]),
    "copied": ("tp", [Replicate()]),
}


def make_whole():
    torch.manual_seed(0)
    state = {name: torch.randn(ROWS, COLUMNS) for name in PLACED}
    more = {
        "uneven": torch.randn(7, 3, dtype=torch.float64),
        "small": torch.randn(1, dtype=torch.bfloat16),
        "complex": torch.randn(5, 2, dtype=torch.complex64),
        "scalar": torch.tensor(3.5),
        "empty": torch.zeros(0, 4),
        "plain": torch.arange(10),
    }
    return state | more


def place(whole, mesh):
    """Return the tensors as a rank has them."""
    placed = PLACED | dict.fromkeys(("uneven", "small", "complex", "empty"), ("tp", [Shard(0)]))
    placed["scalar"] = ("tp", [Replicate()])
    return {
        name: shard_one(tensor, mesh[placed[name][0]], placed[name][1])
        if name in placed
        else tensor
        for name, tensor in whole.items()
    }


def blank(state):
    """Return tensors of the same places with other content."""
    return {
        name: DTensor.from_local(
            torch.full_like(one.to_local(), 7), one.device_mesh, one.placements,
            run_check=False, shape=one.shape, stride=one.stride(),
        ) if isinstance(one, DTensor) else torch.zeros_like(one)
        for name, one in state.items()
    }  # fmt: skip


def same(left, right):
    return left.keys() == right.keys() and all(
        local(left[name]).equal(local(right[name])) for name in left
    )


@pytest.fixture
def stored(chunked):
    chunked.commit_state({"model": make_whole(), "step": 3}, message="whole")
    return chunked


def test_every_rank_is_filled_and_compared(stored, on_rank):
    for rank in range(8):
        wanted = place(make_whole(), on_rank(rank))
        into = blank(wanted)
        places = {name: local(one).data_ptr() for name, one in into.items()}
        state = stored.load_state(into={"model": into})
        assert state["model"]["row"] is into["row"]
        assert state["step"] == 3
        assert {name: local(one).data_ptr() for name, one in into.items()} == places
        assert same(into, wanted)
        check = stored.verify_state({"model": into, "step": 3}, "HEAD")
        assert check.is_exact
        assert check.tensors == len(wanted)
        for name in ("row", "column", "both", "copied", "uneven", "complex"):
            if not local(into[name]).numel():
                continue
            local(into[name]).view(-1)[-1] += 1
            (line,) = stored.verify_state({"model": into, "step": 3}, "HEAD").differences
            assert f"tensor {name!r} of model.safetensors differs" in line
            local(into[name]).copy_(local(wanted[name]))


def test_only_the_chunks_of_a_rank_are_read(stored, on_rank, reads):
    mesh = on_rank(3)  # of tp 1
    wanted = place(make_whole(), mesh)
    counts = {}
    for name in ("row", "hybrid", "twice", "column", "copied"):
        reads.clear()
        stored.verify_state({"model": {name: wanted[name]}, "step": 3}, "HEAD")
        counts[name] = len(reads)
    # By hash nothing is read; what is read lies on the border of two ranks, or is cut by columns.
    assert counts == {"row": 0, "hybrid": 0, "twice": 1, "column": 6, "copied": 0}


def test_what_was_filled_is_compared_without_a_second_read(stored, on_rank, reads):
    wanted = place(make_whole(), on_rank(3))
    for changed in (None, "column", "twice"):
        into = blank(wanted)
        stored.load_state(into={"model": into})
        if changed is not None:
            local(into[changed]).view(-1)[0] += 1
        reads.clear()
        lines = stored.verify_state({"model": into, "step": 3}, "HEAD").differences
        assert [line.split("'")[1] for line in lines] == ([] if changed is None else [changed])
        assert not reads
    assert not stored.verify_state({"model": wanted, "step": 3}, "HEAD").differences
    assert reads, "what is known is used once"


def test_damage_is_found_by_the_ranks_that_have_it(chunked, root, on_rank):
    whole = torch.randint(256, (128, 256), dtype=torch.uint8)  # eight chunks
    chunked.commit_state({"whole": whole}, message="x")
    (pack,) = (root / ".mvc/chunks/packs").glob("*.pack")
    pack.chmod(0o644)
    data = bytearray(pack.read_bytes())
    at = data.index(whole[100].numpy().tobytes())  # random bytes are stored as they are
    data[at] ^= 1
    pack.write_bytes(data)
    damaged = Repo.open(root)
    for rank in range(4):
        mesh = on_rank(rank, (1, 1, 4))
        into = blank({"whole": shard_one(whole, mesh["tp"], [Shard(0)])})
        if rank == 3:
            with pytest.raises(CorruptionError, match=r"tensor 'whole' of model\.safetensors"):
                damaged.load_state(into=into)
        else:
            damaged.load_state(into=into)
            assert local(into["whole"]).equal(whole[rank * 32 : rank * 32 + 32])


def test_what_does_not_fit_is_refused_and_nothing_is_changed(stored, on_rank):
    mesh = on_rank(0)
    other = {
        "row": shard_one(torch.zeros(ROWS, COLUMNS), mesh["tp"], [Shard(0)]),
        "uneven": shard_one(torch.zeros(7, 4, dtype=torch.float64), mesh["tp"], [Shard(0)]),
    }
    with pytest.raises(ConflictError, match=r'"uneven"\] is float64 \[7, 4\]'):
        stored.load_state(into={"model": other})
    assert not local(other["row"]).any()
    with pytest.raises(ConflictError, match=r'"row"\] is float32'):
        half = shard_one(torch.zeros(ROWS // 2, COLUMNS), mesh["tp"], [Shard(0)])
        stored.load_state(into={"model": {"row": half}})
    lines = stored.verify_state({"model": other, "step": 3}, "HEAD").differences
    assert any("is float64 [7, 4]" in line for line in lines)


def test_ties_are_filled_once_and_seen(chunked, on_rank):
    whole = torch.randn(6, 4)
    chunked.commit_state({"model": {"wte": whole, "head": whole}}, message="tied")
    for rank in (0, 7):
        mesh = on_rank(rank)
        tensor = blank({"x": shard_one(whole, mesh["dp", "tp"], [Shard(0), Shard(0)])})["x"]
        tied = {"model": {"wte": tensor, "head": tensor.detach()}}
        chunked.load_state(into=tied)
        assert chunked.verify_state(tied, "HEAD").is_exact
        apart = {"model": {"wte": tensor, "head": blank({"x": tensor})["x"]}}
        chunked.load_state(into=apart)
        assert "shares its memory" in chunked.verify_state(apart, "HEAD").differences[0]
    chunked.commit_state({"model": {"wte": whole, "head": whole.clone()}}, message="apart")
    with pytest.raises(ConflictError, match="shares its memory"):
        chunked.load_state(into=tied)


def freeze(state, plan=None):
    layout = layout_state(state, plan, is_local=True)
    data = memoryview(bytearray(layout.size_bytes))
    for part in layout.parts:
        part.copy_into(data)
    files = {one.path: data[one.offset : one.offset + one.size_bytes] for one in layout.files}
    return files, layout.plan


def test_an_image_of_one_rank_has_its_parts(on_rank):
    whole = make_whole()
    for rank in range(8):
        wanted = {"model": place(whole, on_rank(rank)), "step": 3}
        other = {"model": blank(wanted["model"]), "step": 4}
        _, plan = freeze(other)
        assert plan is not None
        image, followed = freeze(wanted, plan)
        assert followed.root.children[0] is plan.root.children[0]  # only the step is encoded again
        assert compare_image(other, image)
        assert outline_image(image)["model"]["row"].shape == (ROWS, COLUMNS)
        assert sum(map(len, image.values())) < sum(one.nbytes for one in whole.values())
        into = {"model": blank(wanted["model"])}
        assert compare_image({**into, "step": 3}, image)
        read_image(image, into=into)
        assert same(into["model"], wanted["model"])
        assert compare_image({**into, "step": 3}, image) == ()
    other = place(whole, on_rank(6))
    with pytest.raises(ConflictError, match="not the part that is stored"):
        read_image(image, into={"model": other})
    with pytest.raises(ConflictError, match="only a part"):
        read_image(image)
    with pytest.raises(FormatError, match="not the whole"):
        open_image(image)  # as a commit does
