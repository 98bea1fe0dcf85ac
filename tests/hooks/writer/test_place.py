"""Where the writers of a rank listen: reachable as said, refused once everybody is gone."""

import os
import socket
import stat
import tempfile
from pathlib import Path

import msgspec
import pytest

from mvc_hooks.writer.messages import Address, RankCrew
from mvc_hooks.writer.place import open_listeners

pytestmark = pytest.mark.torch


def _connect(address, host):
    with socket.create_connection((host, address.port), 10):
        return True


@pytest.mark.parametrize("master", [None, "localhost", "127.0.0.1", "::1"])
def test_on_one_machine_nobody_else_can_connect(master, monkeypatch):
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    place = open_listeners(master)
    assert place.address.hosts == ("127.0.0.1",)
    with socket.socket(fileno=os.dup(place.descriptors[0])) as listening:
        assert listening.getsockname()[0] == "127.0.0.1"
    assert _connect(place.address, "127.0.0.1")
    place.close()


def test_between_machines_all_addresses_lead_there(monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", socket.gethostname())
    place = open_listeners()
    assert place.address.hosts
    for host in place.address.hosts:
        assert _connect(place.address, host)
    place.close()
    for host in place.address.hosts:
        with pytest.raises(OSError):
            _connect(place.address, host)


def test_an_unknown_master_is_no_obstacle():
    place = open_listeners("no.such.host.invalid")
    assert place.address.hosts
    place.close()


def test_only_this_user_can_open_the_unix_socket():
    place = open_listeners("127.0.0.1")
    folder = Path(place.address.path).parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as channel:
        channel.connect(place.address.path)
    place.close()
    assert not folder.exists()


def test_a_path_that_is_too_long_leaves_tcp(tmp_path, monkeypatch):
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    place = open_listeners("127.0.0.1")
    assert place.address.path == ""
    assert _connect(place.address, "127.0.0.1")
    assert not RankCrew(0, (place.address,) * 2).is_near(1)
    place.close()
    assert list(deep.iterdir()) == []


def test_forked_children_do_not_listen():
    place = open_listeners("127.0.0.1")
    (told, tell), (ended, end) = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        os.close(end)
        os.write(tell, b"%d" % len(place.descriptors))
        os.read(ended, 1)
        os._exit(0)
    os.close(tell)
    try:
        assert os.read(told, 1) == b"0"
        place.close()
        with pytest.raises(ConnectionRefusedError):
            _connect(place.address, "127.0.0.1")
    finally:
        os.close(end)
        os.waitpid(child, 0)
        os.close(told)
        os.close(ended)


def test_the_secret_is_of_all_and_travels():
    one, two = (Address(("h",), port, "", "n", token) for port, token in ((1, "a"), (2, "b")))
    crew = RankCrew(1, (one, two))
    assert msgspec.json.decode(msgspec.json.encode(crew), type=RankCrew) == crew
    assert crew.make_key() == RankCrew(0, (one, two)).make_key()
    other = msgspec.structs.replace(two, token="c")
    assert crew.make_key() != RankCrew(1, (one, other)).make_key()
