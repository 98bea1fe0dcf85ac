"""The image of each commit goes to the memory of the next machine, behind everything else."""

from __future__ import annotations

import os

import pytest

from mvc_hooks.lingering import Held
from mvc_hooks.snapshot.stamp import STAMP_BYTES, renew_stamp
from mvc_hooks.writer import holding
from mvc_hooks.writer.holding import Holding, Replicator, open_image
from mvc_hooks.writer.mesh import Mesh
from mvc_hooks.writer.messages import Address, RankCrew
from support.meshes import open_ranks

_SIZE_BYTES = 1000


class Pair:
    """Rank 0, which sends its image to rank 1."""

    def __init__(self, ranks):
        self.holding = Holding()
        self.sender, receiver = ranks
        self.sender.start()
        receiver.mesh = Mesh(receiver.crew, receiver.place.descriptors, self.holding)
        self.replicator = Replicator(self.sender.mesh.dialer, 1)
        self.memory = os.memfd_create("image")
        self.data = bytearray(os.urandom(_SIZE_BYTES + STAMP_BYTES))
        self.write()

    def write(self):
        os.pwrite(self.memory, self.data, 0)

    def open_image(self, commit="c" * 40, rank=0):
        size_bytes = len(self.data)
        held = Held("/a/.mvc", "main", commit, rank, size_bytes, (900, _SIZE_BYTES - 900), {})
        return open_image(held, self.memory)

    def send(self, image):
        self.replicator.send(image)
        self.replicator.wait()
        return self.replicator.failure


@pytest.fixture
def pair(monkeypatch):
    monkeypatch.setattr(holding, "_PIECE_BYTES", 300)
    with open_ranks(2, nodes="ab", start=False) as ranks:
        pair = Pair(ranks)
        yield pair
        pair.replicator.close()
        os.close(pair.memory)


def test_the_image_gets_there(pair):
    assert pair.send(pair.open_image()) is None
    ((held, descriptor),) = pair.holding.find_intact("/b/.mvc")
    assert (held.commit, held.rank, held.size_bytes) == ("c" * 40, 0, _SIZE_BYTES)
    assert os.pread(descriptor, 2 * _SIZE_BYTES, 0) == pair.data[:_SIZE_BYTES]


def test_what_the_training_writes_over_is_given_up(pair):
    image = pair.open_image()
    renew_stamp(memoryview(pair.data))
    pair.write()
    assert pair.send(image) == "the next snapshot came before the copy was there"
    assert pair.holding.find_intact("/b/.mvc") == []
    assert pair.send(pair.open_image("d" * 40)) is None, "the next one is another matter"
    ((held, _),) = pair.holding.find_intact("/b/.mvc")
    assert held.commit == "d" * 40


def test_no_rank_sends_what_is_another_ones(pair):
    assert pair.send(pair.open_image(rank=1)) == "rank 1: it is another rank's"
    assert pair.holding.find_intact("/b/.mvc") == []


def test_a_machine_without_memory_says_so(pair, monkeypatch):
    monkeypatch.setattr(holding, "has_room", lambda _: False)
    assert pair.send(pair.open_image()) == "rank 1: its machine has no memory to spare"


def test_a_machine_that_is_gone_costs_the_copy_only(monkeypatch):
    with open_ranks(2, nodes="ab", start=False, grace_s=0.2) as ranks:
        pair = Pair(ranks)
        ranks[1].stop()
        ranks[1].place.close()
        assert pair.send(pair.open_image()) is not None
        pair.replicator.close()
        os.close(pair.memory)


@pytest.mark.parametrize(
    ("nodes", "neighbours"),
    [
        ("aabb", [2, 3, 0, 1]),
        ("abab", [1, 0, 3, 2]),
        ("aaab", [3, 3, 3, 0]),
        ("abc", [1, 2, 0]),
        ("aa", [None, None]),
    ],
)
def test_each_rank_has_a_neighbour_on_another_machine(nodes, neighbours):
    addresses = tuple(Address(("localhost",), 1, "", node, "") for node in nodes)
    found = [RankCrew(rank, addresses).find_neighbour() for rank in range(len(nodes))]
    assert found == neighbours
