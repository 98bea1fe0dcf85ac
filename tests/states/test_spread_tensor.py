"""Tensors given as boxes: the same commit as of whole ones, whoever has which box."""

import pytest
import torch

from mvc import Repo, UnsupportedError
from mvc.training import SpreadTensor
from support.sharded import commit_frozen, freeze

WHOLE = {"w": torch.arange(60.0).reshape(10, 6), "b": torch.arange(7).bfloat16()}


def spread(name, boxes, rank):
    """Return a tensor of WHOLE of which ``boxes`` are (rank, offsets, sizes)."""
    tensor = WHOLE[name]
    mine = {}
    for number, (owner, offsets, sizes) in enumerate(boxes):
        if owner == rank:
            ends = zip(offsets, sizes, strict=True)
            mine[number] = tensor[tuple(slice(at, at + size) for at, size in ends)]
    return SpreadTensor(str(tensor.dtype).removeprefix("torch."), tensor.shape, boxes, mine)


ROWS = [(0, (0, 0), (4, 6)), (1, (4, 0), (6, 6))]
COLUMNS = [(1, (0, 0), (10, 1)), (0, (0, 1), (10, 5))]
SEVERAL = [(0, (0, 0), (3, 2)), (1, (0, 2), (3, 4)), (1, (3, 0), (4, 6)), (0, (7, 0), (3, 6))]
TWICE = [(0, (0, 0), (10, 6)), (1, (0, 0), (10, 6))]
EMPTY = [(0, (0, 0), (10, 6)), (1, (10, 0), (0, 6))]


@pytest.mark.parametrize("boxes", [ROWS, COLUMNS, SEVERAL, TWICE, EMPTY])
@pytest.mark.parametrize("is_seen", [True, False])
def test_any_boxes_are_the_whole(tmp_path, boxes, is_seen):
    repo = Repo.init(tmp_path)
    frozen = []
    for rank in range(2):
        model = {"w": spread("w", boxes, rank), "b": spread("b", [(1, (0,), (7,))], rank)}
        frozen.append(freeze({"model": model, "step": 3}, rank, 2))
    commit_frozen([repo, repo], frozen, is_seen=is_seen, message="spread")
    (sharded,) = repo.ls(paths="model.safetensors")
    assert torch.equal(repo.load_state()["model"]["w"], WHOLE["w"])
    repo.commit_state({"model": WHOLE, "step": 3}, message="whole")
    (whole,) = repo.ls(paths="model.safetensors")
    assert sharded.blob == whole.blob


def test_a_flat_state_is_one_file(tmp_path):
    repo = Repo.init(tmp_path)
    frozen = [freeze({"w": spread("w", ROWS, rank)}, rank, 2) for rank in range(2)]
    commit_frozen([repo, repo], frozen, message="flat")
    assert [info.path for info in repo.ls()] == ["model.safetensors", "state.json"]


def test_what_is_here_is_not_what_was_said():
    wrong = SpreadTensor("float32", (4,), [(0, (0,), (4,))], {0: torch.zeros(4, dtype=torch.half)})
    with pytest.raises(UnsupportedError, match=r"is float32 \[4\] by its plan, and a float16"):
        freeze({"model": {"w": wrong}}, 0, 2)


def test_a_hole_is_refused():
    boxes = [(0, (0, 0), (4, 6))]
    with pytest.raises(UnsupportedError, match="spread over other processes"):
        freeze({"model": {"w": spread("w", boxes, 0)}}, 0, 2)
