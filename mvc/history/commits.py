"""Commit and tag objects as bytes, pure: Git's text formats through dulwich."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from dulwich.objects import Commit, ObjectID, Tag, object_class

from mvc.errors import CorruptionError, FormatError, UsageError
from mvc.history.translate import translate_damage
from mvc.history.values import CommitInfo, Identity, Stamp
from mvc.ids import GitId, is_hex_id

if TYPE_CHECKING:
    from collections.abc import Sequence

_CRUD = " .,:;<>\"\\'\t\r\n\v\f\0"
_INSIDE = re.compile(r"[<>\r\n\0]")
# Some of Python's codecs do odd things with strange bytes: only these are used.
_ENCODING = re.compile(
    rb"utf-?8|(us-)?ascii|latin-?1|iso-?8859-?\d{1,2}|(windows-|cp)\d{3,4}"
    rb"|euc-?(jp|kr)|shift[-_]jis|koi8-[ru]|big5|gbk|gb2312|gb18030",
    re.IGNORECASE,
)
_ID_DIGITS = 40
_MAX_TIME_S = 2**40  # the year 36812; beyond, date functions of other programs fail
_MAX_TIMEZONE_S = 100 * 3600


def encode_identity(who: Identity) -> bytes:
    """Return ``Name <mail>`` as Git writes it, without the signs it leaves out."""
    name = _INSIDE.sub("", who.name).strip(_CRUD)
    email = _INSIDE.sub("", who.email).strip(_CRUD)
    if not name:
        raise UsageError(
            f"{who.name!r} is not a name for an author", hint='set one: "mvc config user.name NAME"'
        )
    return encode_text(f"{name} <{email}>", "name")


@lru_cache(maxsize=256)  # a history has many commits by few people
def parse_identity(text: bytes) -> Identity:
    """Return name and mail address of ``Name <mail>``; any other text is all name."""
    name, bracket, rest = text.decode("utf-8", "replace").partition("<")
    email, end, _ = rest.partition(">")
    return Identity(name.strip(), email) if bracket and end else Identity(name + rest, "")


def encode_text(text: str, what: str) -> bytes:
    """Return text as UTF-8; Git stores neither NUL nor a lone surrogate."""
    try:
        encoded = text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"the {what} is not valid text: {error.reason}") from error
    if b"\0" in encoded:
        raise UsageError(f"the {what} holds a NUL character")
    return encoded


def encode_commit(
    *,
    tree: GitId,
    parents: Sequence[GitId],
    message: str,
    author: Stamp,
    committer: Stamp,
) -> bytes:
    """Return the bytes of a commit; the message gets a line feed at its end if it has none."""
    commit = Commit()
    commit.tree = ObjectID(tree.encode())
    commit.parents = [ObjectID(parent.encode()) for parent in parents]
    commit.author, commit.author_time, commit.author_timezone = split_stamp(author)
    commit.committer, commit.commit_time, commit.commit_timezone = split_stamp(committer)
    if message and not message.endswith("\n"):
        message += "\n"
    commit.message = encode_text(message, "message")
    return commit.as_raw_string()


def encode_tag(*, name: str, commit: GitId, message: str, tagger: Stamp) -> bytes:
    """Return the bytes of an annotated tag on a commit."""
    tag = Tag()
    tag.name = encode_text(name, "tag name")
    tag.object = (Commit, commit.encode())
    tag.tagger, tag.tag_time, tag.tag_timezone = split_stamp(tagger)
    tag.message = encode_text(message if message.endswith("\n") else message + "\n", "message")
    return tag.as_raw_string()


def split_stamp(stamp: Stamp) -> tuple[bytes, int, int]:
    """Return identity, time and offset from UTC (in whole minutes) as Git stores them."""
    if not 0 <= stamp.time_s < _MAX_TIME_S:
        raise UsageError(f"{stamp.time_s} s since 1970 is not a time that Git can store")
    if abs(stamp.timezone_s) >= _MAX_TIMEZONE_S:
        raise UsageError(f"{stamp.timezone_s} s is not an offset from UTC")
    return encode_identity(stamp.identity), stamp.time_s, int(stamp.timezone_s / 60) * 60


def parse_commit(commit_id: GitId, data: bytes) -> CommitInfo:
    """Return the commit in an object's content."""
    with translate_damage(f"commit {commit_id}"):
        commit = Commit.from_string(data)
        if commit.author is None or commit.committer is None:
            raise CorruptionError(f"commit {commit_id} names no author or committer")
        return CommitInfo(
            id=commit_id,
            tree=parse_id(commit.tree),
            parents=tuple(parse_id(parent) for parent in commit.parents),
            author=parse_identity(commit.author),
            committer=parse_identity(commit.committer),
            author_time_s=int(commit.author_time),
            author_timezone_s=int(commit.author_timezone),
            commit_time_s=int(commit.commit_time),
            message=_decode_message(commit.message, commit.encoding),
        )


def parse_tag(tag_id: GitId, data: bytes) -> tuple[str, GitId]:
    """Return (kind, id) of what an annotated tag names."""
    with translate_damage(f"tag {tag_id}"):
        kind, target = Tag.from_string(data).object
        if object_class(kind.type_name) is None:
            raise FormatError(f"tag {tag_id} names an unknown kind of object")
        return kind.type_name.decode(), parse_id(target)


def parse_id(text: bytes) -> GitId:
    """Return the id in a line of an object or log; ValueError if it is not one."""
    decoded = text.decode("ascii")
    if not is_hex_id(decoded, _ID_DIGITS):
        raise ValueError(f"{decoded[:80]!r} is not an object id")
    return GitId(decoded)


def _decode_message(message: bytes | None, encoding: bytes | None) -> str:
    message = message or b""
    if encoding is not None and _ENCODING.fullmatch(encoding):
        try:
            return message.decode(encoding.decode("ascii"))
        except (LookupError, UnicodeDecodeError):
            pass  # a wrong label: read it as Git would without one
    return message.decode("utf-8", "replace")
