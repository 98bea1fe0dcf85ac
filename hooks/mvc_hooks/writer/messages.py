"""What the training process and its writer say to each other: one JSON object per line.

Tensors never travel; they lie in shared memory, whose descriptor goes along with the ``commit``
that wants them stored.
"""

from __future__ import annotations

from typing import Any

import msgspec

MAX_LINE_BYTES = 64 * 2**20


class Open(msgspec.Struct, frozen=True, tag="open"):
    """The first message: where to commit to, and as whom.

    Attributes:
        worktree: folder of the repository.
        name, email: identity, or None for the repository's.
        threads: workers, all cores where None.
    """

    worktree: str
    name: str | None
    email: str | None
    threads: int | None


class Commit(msgspec.Struct, frozen=True, tag="commit"):
    """Commit an image; the descriptor of its memory comes with this line.

    Attributes:
        number: names the answer.
        size_bytes: length of the memory.
        places: name of each file → offset and length.
        branch: which branch.
        parent: where the branch must be ("" for no commit yet); where the last commit of this
            writer left it where None.
        message, step, meta, delta: as for ``Repo.commit_image``.
        metrics: as well, but those that JSON cannot say (infinities, NaN) as text.
    """

    number: int
    size_bytes: int
    places: dict[str, tuple[int, int]]
    branch: str
    parent: str | None
    message: str
    step: int
    metrics: dict[str, float | str]
    meta: dict[str, str]
    delta: bool | None


class MarkHealthy(msgspec.Struct, frozen=True, tag="healthy"):
    """Mark a commit as healthy.

    Attributes:
        number: names the answer.
        commit: which one.
        note: text of the mark.
    """

    number: int
    commit: str
    note: str


Request = Open | Commit | MarkHealthy


class Answer(msgspec.Struct, frozen=True):
    """What became of a request.

    Attributes:
        number: of the request.
        commit: id of the new commit.
        write_s: seconds from the request to the durable commit.
        written_bytes: what was written for it.
        plain_bytes: length of its files.
        error, message, hint: kind and text of what went wrong, or None.
    """

    number: int
    commit: str | None = None
    write_s: float = 0.0
    written_bytes: int = 0
    plain_bytes: int = 0
    error: str | None = None
    message: str = ""
    hint: str | None = None


def encode_line(message: Request | Answer) -> bytes:
    """Return a message as a line."""
    return msgspec.json.encode(message) + b"\n"


_REQUESTS: msgspec.json.Decoder[Any] = msgspec.json.Decoder(Request)
_ANSWERS = msgspec.json.Decoder(Answer)


def parse_request(line: bytes) -> Request:
    """Return the request of a line."""
    request: Request = _REQUESTS.decode(line)
    return request


def parse_answer(line: bytes) -> Answer:
    """Return the answer of a line."""
    return _ANSWERS.decode(line)
