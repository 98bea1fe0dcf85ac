"""Writers of several ranks: what they get from each other, and that a turn ends alike for all."""

import contextlib
import shutil
import socket
import struct
import threading
from functools import partial
from pathlib import Path

import msgspec
import pytest

from mvc import StorageError
from mvc_hooks.writer import mesh
from mvc_hooks.writer.dialing import Dialer, tell
from mvc_hooks.writer.messages import Answer, RankCrew
from mvc_hooks.writer.turns import TurnError
from mvc_hooks.writer.wire import Counts, Stored
from support.meshes import GRACE_S, open_ranks, run_all

pytestmark = pytest.mark.torch  # the training's side imports it


def _take_part(rank, turn, work=None, **offer):
    """Take part in a turn as a writer does; return what became of it."""
    mesh = rank.mesh
    try:
        with rank.turn(turn, **offer) as peers:
            if work is not None:
                work(peers)
            if mesh.leader is None:
                return mesh.follower.finish(turn, b"share %d" % rank.crew.rank)
            shares = mesh.leader.collect(turn)
            assert shares == [b"share %d" % one for one in range(1, rank.crew.ranks)]
            return mesh.leader.settle(Answer(turn, commit=f"c{turn}"), is_final=True)
    except TurnError as error:
        return error.answer


def _all_take_part(ranks, turn, **offer):
    return run_all(*(lambda rank=rank: _take_part(rank, turn, **offer) for rank in ranks))


def test_all_hear_of_the_commit():
    with open_ranks(4) as ranks:
        for turn in (1, 2, 3):
            answers = _all_take_part(ranks, turn)
            assert [answer.commit for answer in answers] == [f"c{turn}"] * 4


@pytest.mark.parametrize("nodes", [None, "ab"])
def test_each_reads_the_others(nodes):
    """Through memory on one machine; part by part between two."""

    def read(peers, me, turn):
        other = 1 - me
        expected = bytes([other * 16 + turn])
        image = peers.find_image(other)
        assert (image is None) == (nodes is not None)
        if image is not None:
            assert bytes(image) == expected * 400
            assert image.readonly
            assert peers.find_image(other) is image
        wanted = [(array, chunk) for array in range(4) for chunk in range(10)]
        run_all(*(lambda at=at: _check_part(peers, other, at, expected) for at in wanted))

    def take_part(rank, turn):
        return _take_part(rank, turn, lambda peers: read(peers, rank.crew.rank, turn))

    with open_ranks(2, nodes=nodes) as ranks:
        for turn in (1, 2):
            answers = run_all(*(partial(take_part, rank, turn) for rank in ranks))
            assert [answer.commit for answer in answers] == [f"c{turn}"] * 2


def _check_part(peers, rank, at, expected):
    assert peers.fetch_part(rank, *at) == expected * 10


def test_a_unix_socket_that_cannot_be_reached_is_no_obstacle():
    """As in two containers of one machine."""
    with open_ranks(2) as ranks:
        shutil.rmtree(Path(ranks[1].crew.addresses[1].path).parent)

        def read(peers):
            assert peers.find_image(1) is None
            assert peers.fetch_part(1, 0, 0) == bytes([17]) * 10

        answers = run_all(lambda: _take_part(ranks[0], 1, read), lambda: _take_part(ranks[1], 1))
        assert [answer.commit for answer in answers] == ["c1", "c1"]


@pytest.mark.parametrize("nodes", [None, "ab"])
def test_a_turn_that_has_not_come_is_waited_for(nodes):
    with open_ranks(2, nodes=nodes) as ranks:
        asked = threading.Event()

        def read(peers):
            asked.set()
            if nodes is None:
                assert bytes(peers.find_image(1)) == bytes([17]) * 400
            assert peers.fetch_part(1, 1, 1) == bytes([17]) * 10

        def come_late():
            asked.wait()
            ranks[1].mesh.turns.pause(GRACE_S / 4)  # signs of life keep the connection
            return _take_part(ranks[1], 1)

        answers = run_all(lambda: _take_part(ranks[0], 1, read), come_late)
        assert [answer.commit for answer in answers] == ["c1", "c1"]


def test_a_writer_that_is_not_there_yet_is_waited_for():
    with open_ranks(3, start=False) as ranks:
        ranks[2].start()

        def start(rank):
            ranks[2].mesh.turns.pause(0.3)
            rank.start()
            return _take_part(rank, 1)

        def read(peers):
            assert peers.find_image(1)[0] == 17
            assert peers.fetch_part(0, 0, 0)[0] == 1

        answers = run_all(
            lambda: start(ranks[0]),
            lambda: start(ranks[1]),
            lambda: _take_part(ranks[2], 1, read),
        )
        assert [answer.commit for answer in answers] == ["c1"] * 3


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"step": 9}, "its state is of step 9, that of rank 0 of step 1"),
        ({"branch": "x"}, "its state is for branch x, that of rank 0 for main"),
        ({"digest": b"?"}, "its state has another form than that of rank 0"),
    ],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_ranks_that_differ_make_no_commit(other, why, is_first):
    with open_ranks(3) as ranks:
        joined = threading.Event()

        def come(rank, is_early, **offer):
            if not is_early:
                joined.wait()
            answer = _take_part(rank, 1, lambda _: joined.set(), **offer)
            joined.set()
            return answer

        answers = run_all(
            lambda: come(ranks[0], is_early=not is_first),
            lambda: come(ranks[1], is_early=True),
            lambda: come(ranks[2], is_early=is_first, **other),
        )
        assert {answer.message for answer in answers} == {f"rank 2: {why}"}
        assert [answer.commit for answer in _all_take_part(ranks, 2)] == ["c2"] * 3


def test_another_form_is_not_read():
    with open_ranks(3, nodes="abc") as ranks:
        with (
            ranks[2].turn(1, digest=b"2"),
            ranks[1].turn(1) as peers,
            pytest.raises(StorageError, match="rank 2: its state has another form"),
        ):
            peers.fetch_part(2, 0, 0)


def test_a_part_that_is_not_there_is_refused():
    with open_ranks(2) as ranks:

        def read(peers):
            with pytest.raises(StorageError, match="rank 1: it has no such part"):
                peers.fetch_part(1, 99, 0)
            assert peers.fetch_part(1, 0, 0) == bytes([17]) * 10

        run_all(lambda: _take_part(ranks[0], 1, read), lambda: _take_part(ranks[1], 1))


def test_a_failure_of_one_is_that_of_all():
    with open_ranks(3) as ranks:

        def fail(rank, turn):
            with rank.turn(turn):
                me = rank.crew.rank
                answer = Answer(turn, error="storage", message=f"rank {me}: no space left")
                return (rank.mesh.leader.settle if me == 0 else rank.mesh.follower.fail)(answer)

        for culprit in (0, 1, 2):
            turn = 2 * culprit + 1
            does = [fail if rank.crew.rank == culprit else _take_part for rank in ranks]
            answers = run_all(
                *(partial(do, rank, turn) for do, rank in zip(does, ranks, strict=True))
            )
            assert {answer.message for answer in answers} == {f"rank {culprit}: no space left"}
            assert [one.commit for one in _all_take_part(ranks, turn + 1)] == [f"c{turn + 1}"] * 3


def test_who_waits_for_a_part_hears_of_a_failure():
    with open_ranks(3, nodes="abc") as ranks:
        asking = threading.Event()

        def read(peers):
            asking.set()
            peers.fetch_part(2, 0, 0)  # which never comes to the turn

        def fail():
            asking.wait()
            with ranks[1].turn(1):
                answer = Answer(1, error="storage", message="rank 1: torn")
                return ranks[1].mesh.follower.fail(answer)

        answers = run_all(lambda: _take_part(ranks[0], 1, read), fail)
        assert {answer.message for answer in answers} == {"rank 1: torn"}
        assert _take_part(ranks[2], 1).message == "rank 1: torn"


def test_failures_come_too_late_for_what_is_decided():
    with open_ranks(2) as ranks:
        told = threading.Event()

        def lead():
            mesh = ranks[0].mesh
            with ranks[0].turn(1):
                mesh.leader.collect(1)
                told.set()
                mesh.turns.pause(0.2)
                return mesh.leader.settle(Answer(1, commit="c1"), is_final=True)

        def tell_late():
            told.wait()
            tell(ranks[1].crew, [0], Answer(1, error="gone", message="rank 1: lost"))

        answers = run_all(lead, lambda: _take_part(ranks[1], 1), tell_late)
        assert [answer.commit for answer in answers[:2]] == ["c1", "c1"]


# Ranks that are gone, away, or silent.


def _leave(rank):
    rank.stop()
    rank.place.close()


@pytest.mark.parametrize("has_come", [True, False])
def test_a_rank_that_is_gone_fails_the_turn(has_come):
    with open_ranks(3, nodes="abc") as ranks:
        read, gone = threading.Event(), threading.Event()

        def go():
            with ranks[2].turn(1) if has_come else contextlib.nullcontext():
                read.wait()
                _leave(ranks[2])
            gone.set()

        def work(peers):
            if has_come:
                peers.fetch_part(2, 0, 0)
            read.set()
            gone.wait()
            peers.fetch_part(2, 0, 1)

        answers = run_all(
            lambda: _take_part(ranks[0], 1), lambda: _take_part(ranks[1], 1, work), go
        )
        why = "rank 2: its training and its writer have ended"
        assert [answer.message for answer in answers[:2]] == [why] * 2


def test_who_has_stored_all_may_go():
    with open_ranks(2) as ranks:
        first, second = ranks[0].mesh, ranks[1].mesh

        def go(_):
            with ranks[1].turn(1):
                second.follower._say(Stored(1), b"share 1")
                with first.turns.changed:
                    first.turns.changed.wait_for(lambda: not any(first.leader._find_unstored()))
                _leave(ranks[1])

        assert _take_part(ranks[0], 1, go).commit == "c1"


def test_a_writer_that_ended_is_told_by_its_training():
    with open_ranks(3, grace_s=20.0) as ranks:
        inside = threading.Event()

        def end():
            with contextlib.suppress(TurnError), ranks[2].turn(1):
                inside.wait()
                ranks[2].stop()
            tell(ranks[2].crew, [0], Answer(1, error="gone", message="rank 2: killed"))

        answers = run_all(
            lambda: _take_part(ranks[0], 1, lambda _: inside.set()),
            lambda: _take_part(ranks[1], 1),
            end,
        )[:2]
        assert [answer.message for answer in answers] == ["rank 2: killed"] * 2
        ranks[2].start()
        assert [answer.commit for answer in _all_take_part(ranks, 2)] == ["c2"] * 3


def test_a_writer_that_ended_is_not_waited_for_long():
    with open_ranks(2, grace_s=0.5) as ranks:
        inside = threading.Event()

        def end():
            with ranks[1].turn(1):
                inside.wait()
            ranks[1].stop()  # its training still listens

        answer, _ = run_all(
            lambda: _take_part(ranks[0], 1, lambda peers: (peers.find_image(1), inside.set())), end
        )
        assert answer.message == "rank 1: its writer ended"


def test_a_rank_that_never_comes_is_not_waited_for_for_ever():
    with open_ranks(2, patience_s=0.5) as ranks:
        answer = _take_part(ranks[0], 1)
        assert answer.message == "rank 1: it has not come to this commit for 0 s"
        assert _take_part(ranks[1], 1) == answer


def test_a_rank_0_that_is_gone_is_not_waited_for():
    with open_ranks(2, nodes="ab") as ranks:
        mesh = ranks[1].mesh
        _leave(ranks[0])
        with (
            pytest.raises(TurnError, match="rank 0: its training and its writer have ended"),
            ranks[1].turn(1) as peers,
        ):
            peers.fetch_part(0, 0, 0)
        with ranks[1].turn(2):
            assert mesh.follower.finish(2, b"share 1") is None
            assert mesh.turns.lost.message.startswith("rank 0: its training")


def test_a_rank_that_resets_a_connection_at_once_is_unreachable(monkeypatch):
    """As a process that ends between the handshake and the first look at the connection."""
    with open_ranks(2, start=False) as ranks, socket.create_server(("127.0.0.1", 0)) as server:
        address = msgspec.structs.replace(
            ranks[0].place.address, hosts=("127.0.0.1",), port=server.getsockname()[1]
        )
        dialer = Dialer(RankCrew(1, (address, ranks[1].place.address)), Counts())
        connect = socket.create_connection

        def connect_and_be_reset(*args):
            channel = connect(*args)
            accepted, _ = server.accept()
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            accepted.close()
            return channel

        monkeypatch.setattr(socket, "create_connection", connect_and_be_reset)
        assert dialer.knock(0).is_gone is False


def test_what_became_of_a_turn_is_told_to_who_was_away():
    with open_ranks(3) as ranks:
        for turn in (1, 2):
            answer = Answer(turn, error="torn", message=f"rank 0: torn {turn}")
            ranks[0].mesh.leader.settle(answer)
        ranks[1].stop()
        ranks[1].start()
        assert _take_part(ranks[1], 1).message == "rank 0: torn 1"
        assert _take_part(ranks[1], 2).message == "rank 0: torn 2"


# Strangers.


def _connect(place):
    return socket.create_connection(("127.0.0.1", place.address.port), 10)


def test_strangers_are_dropped(monkeypatch):
    monkeypatch.setattr(mesh, "_PROOF_S", 0.2)
    with open_ranks(2) as ranks, open_ranks(2, start=False) as others:
        place = ranks[0].place
        silent, loud = _connect(place), _connect(place)
        loud.sendall(b"GET / HTTP/1.1\r\n\r\n" * 100)
        for channel in (silent, loud):
            with channel:
                received = b""
                with contextlib.suppress(ConnectionError):
                    while data := channel.recv(4096):
                        received += data
                assert received.startswith(b"mvcmesh1")
                assert len(received) == 40
        forged = RankCrew(1, (place.address, others[1].place.address))
        with pytest.raises(OSError):
            Dialer(forged, Counts()).dial(0, lambda: None)
        assert [answer.commit for answer in _all_take_part(ranks, 1)] == ["c1"] * 2


def test_who_only_pretends_to_be_a_writer_is_told_nothing():
    with open_ranks(2, start=False) as ranks, socket.create_server(("127.0.0.1", 0)) as fake:
        port = fake.getsockname()[1]
        address = msgspec.structs.replace(ranks[0].place.address, port=port)
        crew = RankCrew(1, (address, ranks[1].place.address))

        def pretend():
            channel, _ = fake.accept()
            with channel:
                channel.sendall(b"mvcmesh1" + bytes(32))
                proof = channel.recv(4096)
                channel.sendall(proof[-32:])
                return proof

        def dial():
            with pytest.raises(ConnectionError):
                Dialer(crew, Counts()).dial(0, lambda: None)

        proof, _ = run_all(pretend, dial)
        assert len(proof) == 8 + 32 + 32


def test_many_strangers_do_not_keep_the_others_out():
    with open_ranks(2, start=False) as ranks, contextlib.ExitStack() as crowd:
        ranks[0].start()
        for _ in range(mesh._MOST_STRANGERS + 10):
            crowd.enter_context(_connect(ranks[0].place))
        ranks[1].start()
        assert [answer.commit for answer in _all_take_part(ranks, 1)] == ["c1"] * 2


# What it costs.


@pytest.mark.parametrize("count", [2, 4])
def test_frames_of_a_steady_turn(count):
    with open_ranks(count) as ranks:

        def read(peers, me):
            for other in range(count):
                if other != me:
                    assert peers.find_image(other) is not None

        def turn(number):
            run_all(
                *(
                    lambda rank=rank: _take_part(
                        rank, number, lambda peers: read(peers, rank.crew.rank)
                    )
                    for rank in ranks
                )
            )
            return [(rank.mesh.counts.frames, rank.mesh.counts.sent_bytes) for rank in ranks]

        before, after = turn(1), turn(2)
        pairs = 2 * (count - 1)  # a question and an answer for each that shares chunks
        expected = [pairs + 2 * (count - 1)] + [pairs + 2] * (count - 1)
        for (frames, sent), (more, sent_more), wanted in zip(before, after, expected, strict=True):
            assert more - frames == wanted
            assert sent_more - sent < 100 * wanted
