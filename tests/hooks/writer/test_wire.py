"""Frames between writers: they come as they went, and what is no frame ends the connection."""

import os
import socket
import struct
import threading

import pytest

from mvc.training import Agreement, Dispute
from mvc_hooks.writer.messages import Answer
from mvc_hooks.writer.wire import (
    MAX_MESSAGE_BYTES,
    MAX_PAYLOAD_BYTES,
    Beat,
    Counts,
    Failed,
    GetImage,
    GetPart,
    Here,
    Join,
    Settled,
    Stored,
    fall_silent,
    open_link,
)
from support.committing import read_links

pytestmark = pytest.mark.torch


@pytest.fixture
def ends():
    """Give two ends of one connection."""
    channels = socket.socketpair()
    links = [open_link(channel, 1, Counts(), 5.0) for channel in channels]
    yield links
    for link in links:
        link.close()


MESSAGES = [
    GetImage(3, b"form"),
    GetPart(3, b"form", 2, 2**40),
    GetPart(3, b"form", 2, 2**40, is_checked=True),
    Here(0),
    Join(1, 7, "täglich", b""),
    Stored(2**60),
    Failed(Answer(4, error="storage", message="rank 1: no space left", hint="more")),
    Settled(Answer(4, commit="ab", failed_gates=("loss",))),
    Settled(
        Answer(4, commit="ab", agreement=Agreement(1, 9, 1, (Dispute("f", "w", 0, (0,), (1, 2)),)))
    ),
    Beat(0),
]


@pytest.mark.parametrize("message", MESSAGES)
@pytest.mark.parametrize("payload", [b"", b"x", b"long" * 2**14])
def test_frames_come_as_they_went(ends, message, payload):
    for _ in range(2):
        ends[0].send(message, payload)
        frame = ends[1].receive()
        assert frame.message == message
        assert frame.payload == payload
        assert frame.descriptor == -1


def test_descriptors_come_along(ends):
    before = len(read_links(os.getpid()))
    down, up = os.pipe()
    ends[0].send(Here(1), b"x", descriptor=up)
    os.close(up)
    frame = ends[1].receive()
    os.write(frame.descriptor, b"hello")
    os.close(frame.descriptor)
    assert os.read(down, 9) == b"hello"
    assert os.read(down, 9) == b""
    os.close(down)
    assert len(read_links(os.getpid())) == before


def test_only_what_says_something_is_counted():
    channels = socket.socketpair()
    counts = Counts()
    links = [open_link(channel, 1, counts, 5.0) for channel in channels]
    links[0].send(Beat(1))
    assert (counts.frames, counts.sent_bytes) == (0, 0)
    links[0].send(Stored(1), bytes(100))
    assert counts.frames == 1
    assert 100 < counts.sent_bytes < 140
    for link in links:
        link.close()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0\0\0",
        struct.pack("!II", 4, 0),
        struct.pack("!II", 4, 0) + b"\xff\xff\xff\xff",
        struct.pack("!II", 0, 0),
        struct.pack("!II", MAX_MESSAGE_BYTES + 1, 0) + bytes(100),
        struct.pack("!II", 1, MAX_PAYLOAD_BYTES + 1) + bytes(100),
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
def test_what_is_no_frame_ends_the_connection(ends, data):
    before = len(read_links(os.getpid()))
    down, up = os.pipe()
    if data:
        socket.send_fds(ends[0]._channel, [data], [up])
    ends[0].stop()
    with pytest.raises(OSError):
        ends[1].receive()
    os.close(down)
    os.close(up)
    assert len(read_links(os.getpid())) == before


def test_frames_that_are_too_long_are_not_sent(ends):
    with pytest.raises(OSError, match="Message too long"):
        ends[0].send(Failed(Answer(1, message="x" * MAX_MESSAGE_BYTES)))


def test_silence_ends_the_wait(ends):
    ends[1].listen(0.01, fall_silent)
    with pytest.raises(TimeoutError):
        ends[1].receive()


def test_a_stop_ends_the_wait(ends):
    threading.Thread(target=ends[1].stop).start()
    with pytest.raises(OSError):
        ends[1].receive()


def test_who_does_not_listen_ends_the_sending():
    channels = socket.socketpair()
    links = [open_link(channel, 1, Counts(), 0.05) for channel in channels]
    with pytest.raises(OSError):
        links[0].send(Stored(1), bytes(2**25))
    for link in links:
        link.close()
