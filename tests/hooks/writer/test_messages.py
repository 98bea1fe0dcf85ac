"""Messages between training and writer: each is one line, and comes back as it was."""

from __future__ import annotations

import msgspec
import pytest

from mvc_hooks.writer.messages import Answer, Commit, Hurry, MarkHealthy, Open, Request, encode_line

COMMIT = Commit(
    number=3, size_bytes=4096, places={"model.safetensors": (0, 100), "state.json": (4096, 9)},
    branch="täglich", parent="", message="two\nlines", step=5, metrics={"loss": "nan", "acc": 0.5},
    meta={"by": "hand"}, delta=None,
)  # fmt: skip


@pytest.mark.parametrize(
    "message",
    [Open("/work"), Open("/work", "Ada", "a@b", 2), COMMIT, MarkHealthy(4, "ab", "calm"), Hurry(5)],
)
def test_requests_come_back(message):
    line = encode_line(message)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert msgspec.json.decode(line, type=Request) == message


def test_answers_come_back():
    for answer in (
        Answer(1),
        Answer(2, commit="ab", write_s=0.5),
        Answer(3, error="storage", hint="x"),
    ):
        line = encode_line(answer)
        assert line.count(b"\n") == 1
        assert msgspec.json.decode(line, type=Answer) == answer


@pytest.mark.parametrize(
    "line", [b"{}", b'{"type":"other"}', b'{"type":"commit","number":1}', b"["]
)
def test_garbage_is_no_request(line):
    with pytest.raises(msgspec.MsgspecError):
        msgspec.json.decode(line, type=Request)
