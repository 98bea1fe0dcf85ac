"""Commits, tags and trees as bytes, pure: Git's formats.

The trees of a commit go in as path → entry, and come back so. Reading flattens and checks: a tree
from elsewhere may name paths that reach outside the worktree, name one path twice, or hold the same
subtree so often that the paths would fill the memory; all of that is a FormatError.
"""

from __future__ import annotations

import itertools
import re
import stat as stat_bits
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache

from mvc.errors import CorruptionError, FormatError, UsageError
from mvc.history.names import MAX_PATH_BYTES, decode_path, encode_path, find_path_fault
from mvc.history.translate import FSCK_HINT, translate_damage
from mvc.history.values import FILE_MODES, CommitInfo, Identity, Stamp, TreeEntry, clean_mode
from mvc.ids import GitId, is_git_id

MAX_OBJECT_BYTES = 512 * 1024 * 1024
"""Largest object read or written, Git's own bigFileThreshold: a manifest of 8 million chunks."""
_CRUD = " .,:;<>\"\\'\t\r\n\v\f\0"
_INSIDE = re.compile(r"[<>\r\n\0]")
# Some of Python's codecs do odd things with strange bytes: only these are used.
_ENCODING = re.compile(
    rb"utf-?8|(us-)?ascii|latin-?1|iso-?8859-?\d{1,2}|(windows-|cp)\d{3,4}"
    rb"|euc-?(jp|kr)|shift[-_]jis|koi8-[ru]|big5|gbk|gb2312|gb18030",
    re.IGNORECASE,
)
_MAX_TIME_S = 2**40  # the year 36812; beyond, date functions of other programs fail
_MAX_TIMEZONE_S = 100 * 3600
MAX_ENTRIES = 2_000_000
"""Files and folders of one commit."""
MAX_PATHS_CHARS = 256 * 1024 * 1024
"""Length of all its paths together: what a commit may take in memory."""
MODE_TREE = 0o040000
KINDS = {1: "commit", 2: "tree", 3: "blob", 4: "tag"}
"""The kinds of objects, by their numbers in packs."""
LEVEL = 1
"""Of zlib: the rest of its levels cost twice the time for two percent of a manifest."""
_TREE_ENTRY = re.compile(rb"([0-7]{1,10}) ([^\0]*)\0(.{20})", re.DOTALL)

Folder = dict[bytes, "tuple[int, bytes] | Folder"]


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
    if message and not message.endswith("\n"):
        message += "\n"
    headers = [
        ("tree", tree.encode()),
        *(("parent", parent.encode()) for parent in parents),
        ("author", encode_stamp(author)),
        ("committer", encode_stamp(committer)),
    ]
    return _encode_object(headers, encode_text(message, "message"))


def _encode_object(headers: Sequence[tuple[str, bytes]], message: bytes) -> bytes:
    return b"".join(b"%s %s\n" % (key.encode(), value) for key, value in headers) + b"\n" + message


def encode_tag(*, name: str, commit: GitId, message: str, tagger: Stamp) -> bytes:
    """Return the bytes of an annotated tag on a commit."""
    headers = [
        ("object", commit.encode()),
        ("type", b"commit"),
        ("tag", encode_text(name, "tag name")),
        ("tagger", encode_stamp(tagger)),
    ]
    message = message if message.endswith("\n") else message + "\n"
    return _encode_object(headers, encode_text(message, "message"))


def encode_stamp(stamp: Stamp) -> bytes:
    """Return identity, time and offset from UTC (in whole minutes) as Git stores them."""
    if not 0 <= stamp.time_s < _MAX_TIME_S:
        raise UsageError(f"{stamp.time_s} s since 1970 is not a time that Git can store")
    if abs(stamp.timezone_s) >= _MAX_TIMEZONE_S:
        raise UsageError(f"{stamp.timezone_s} s is not an offset from UTC")
    minutes = int(stamp.timezone_s / 60)
    sign, hours, rest = "-" if minutes < 0 else "+", *divmod(abs(minutes), 60)
    return encode_identity(stamp.identity) + f" {stamp.time_s} {sign}{hours:02}{rest:02}".encode()


def parse_stamp(text: bytes) -> tuple[bytes, int, int]:
    """Return who, the time and the offset from UTC in seconds; ValueError if there are none."""
    end = text.rindex(b"> ") + 1
    time, timezone = text[end + 1 :].rsplit(b" ", 1)
    if timezone[:1] not in (b"+", b"-"):
        raise ValueError(f"{timezone[:80]!r} is not an offset from UTC")
    digits = int(timezone[1:]) * (-1 if timezone[:1] == b"-" else 1)  # Git reads ``--700``, too
    hours, minutes = divmod(abs(digits), 100)
    seconds = hours * 3600 + minutes * 60
    return text[:end], int(time), -seconds if digits < 0 else seconds


def _parse_object(data: bytes) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Return the headers (name, value), in order, and the message of a commit or tag."""
    head, _, message = data.partition(b"\n\n")
    headers: list[tuple[bytes, bytes]] = []
    for line in head.removesuffix(b"\n").split(b"\n"):
        name, space, value = line.partition(b" ")
        if not space or not (name or headers):
            raise ValueError(f"{line[:80]!r} is not a header")
        # A line that begins with a space goes on with the header before.
        headers.append((name, value))
    if all(name for name, _ in headers):  # nearly always
        return headers, message
    joined: list[tuple[bytes, list[bytes]]] = []
    for name, value in headers:
        if name:
            joined.append((name, [value]))
        else:
            joined[-1][1].append(value)
    return [(name, b"\n".join(values)) for name, values in joined], message


def parse_commit(commit_id: GitId, data: bytes) -> CommitInfo:
    """Return the commit in an object's content."""
    with translate_damage(f"commit {commit_id}"):
        headers, message = _parse_object(data)
        if headers[0][0] != b"tree":
            raise ValueError("it does not begin with a tree")
        first = dict(reversed(headers))
        if b"author" not in first or b"committer" not in first:
            raise CorruptionError(f"commit {commit_id} names no author or committer")
        parents = itertools.takewhile(lambda header: header[0] == b"parent", headers[1:])
        author, author_time_s, author_timezone_s = parse_stamp(first[b"author"])
        committer, commit_time_s, _ = parse_stamp(first[b"committer"])
        return CommitInfo(
            id=commit_id,
            tree=parse_id(headers[0][1]),
            parents=tuple(parse_id(parent) for _, parent in parents),
            author=parse_identity(author),
            committer=parse_identity(committer),
            author_time_s=author_time_s,
            author_timezone_s=author_timezone_s,
            commit_time_s=commit_time_s,
            message=_decode_message(message, first.get(b"encoding")),
        )


def parse_tag(tag_id: GitId, data: bytes) -> tuple[str, GitId]:
    """Return (kind, id) of what an annotated tag names."""
    with translate_damage(f"tag {tag_id}"):
        first = dict(reversed(_parse_object(data)[0]))
        kind, target = first[b"type"].decode("ascii"), first[b"object"]
        if kind not in KINDS.values():
            raise FormatError(f"tag {tag_id} names an unknown kind of object")
        return kind, parse_id(target)


def parse_tag_message(tag_id: GitId, data: bytes) -> str:
    """Return the message of an annotated tag, without a signature below it."""
    with translate_damage(f"tag {tag_id}"):
        message = _parse_object(data)[1].decode("utf-8", "replace")
    return message.partition("-----BEGIN ")[0].strip("\n")


def parse_id(text: bytes) -> GitId:
    """Return the id in a line of an object or log; ValueError if it is not one."""
    decoded = text.decode("ascii")
    if not is_git_id(decoded):
        raise ValueError(f"{decoded[:80]!r} is not an object id")
    return GitId(decoded)


def _decode_message(message: bytes, encoding: bytes | None) -> str:
    if encoding is not None and _ENCODING.fullmatch(encoding):
        try:
            return message.decode(encoding.decode("ascii"))
        except (LookupError, UnicodeDecodeError):
            pass  # a wrong label: read it as Git would without one
    return message.decode("utf-8", "replace")


def write_tree(
    entries: Mapping[str, TreeEntry], write_object: Callable[[str, bytes], GitId]
) -> GitId:
    """Write the trees of a set of paths, innermost first, and return the id of the outermost.

    ``write_object`` stores (kind, content) and returns the id.
    """
    root: Folder = {}
    for path, entry in entries.items():
        fault = find_path_fault(path)
        if fault is not None:
            raise UsageError(f"path {path!r} cannot be recorded: it {fault}")
        if entry.mode not in FILE_MODES:
            raise UsageError(f"path {path!r} has mode {entry.mode:o}, which Git does not know")
        _place(root, path, entry)
    return _write_folder(root, write_object)


def _place(root: Folder, path: str, entry: TreeEntry) -> None:
    *folders, name = encode_path(path).split(b"/")
    folder: Folder = root
    for part in folders:
        inner = folder.setdefault(part, {})
        if not isinstance(inner, dict):
            raise UsageError(f"path {path!r} is below a file of the same commit")
        folder = inner
    if name in folder:
        raise UsageError(f"path {path!r} is both a file and a folder")
    folder[name] = (entry.mode, entry.blob.encode())


def _write_folder(root: Folder, write_object: Callable[[str, bytes], GitId]) -> GitId:
    """Write trees from the leaves up, without recursion: a path may be two thousand deep."""
    order: list[tuple[Folder, Folder | None, bytes]] = [(root, None, b"")]
    for folder, _, _ in order:  # grows while it is read
        order.extend(
            (inner, folder, name) for name, inner in folder.items() if isinstance(inner, dict)
        )
    written = GitId("")
    for folder, parent, name in reversed(order):
        written = write_object("tree", encode_folder(folder))
        if parent is not None:
            parent[name] = (MODE_TREE, written.encode())
    return written


def encode_folder(folder: Folder) -> bytes:
    """Return the bytes of a tree object, from name → (mode, hex id); folders inside are left out."""
    items = [(name, *item) for name, item in folder.items() if isinstance(item, tuple)]
    # Git sorts a folder as if its name ended with a slash.
    items.sort(key=lambda item: item[0] + b"/" if item[1] == MODE_TREE else item[0])
    return b"".join(
        b"%o %s\0%s" % (mode, name, bytes.fromhex(object_id.decode()))
        for name, mode, object_id in items
    )


def parse_tree_object(tree_id: GitId, data: bytes) -> Iterator[tuple[bytes, int, GitId]]:
    """Yield (name, mode, id) of one tree object, as it is stored."""
    position, entries = 0, []
    while position < len(data):
        entry = _TREE_ENTRY.match(data, position)
        if entry is None:
            raise CorruptionError(
                f"tree {tree_id} is damaged: no entry begins at byte {position:,}", hint=FSCK_HINT
            )
        entries.append((entry[2], int(entry[1], 8), GitId(entry[3].hex())))
        position = entry.end()
    yield from entries


def read_tree(root: GitId, read_object: Callable[[GitId], bytes]) -> dict[str, TreeEntry]:
    """Return path → entry of everything below a tree, sorted by path."""
    entries: dict[str, TreeEntry] = {}
    pending = [("", root)]
    visited = chars = 0
    while pending:
        prefix, tree_id = pending.pop()
        names: set[bytes] = set()
        for name, mode, object_id in parse_tree_object(tree_id, read_object(tree_id)):
            path = _checked_path(prefix, name, tree_id)
            visited, chars = visited + 1, chars + len(path)
            if visited > MAX_ENTRIES or chars > MAX_PATHS_CHARS:
                raise FormatError(f"tree {root} unfolds to more than {MAX_ENTRIES:,} paths")
            if name in names:
                raise FormatError(f"tree {tree_id} names {path[:200]!r} twice")
            names.add(name)
            if stat_bits.S_ISDIR(mode):
                pending.append((path + "/", object_id))
            else:
                entries[path] = _make_entry(path, mode, object_id)
    return dict(sorted(entries.items()))


def check_tree(tree_id: GitId, data: bytes) -> None:
    """Check one tree object by itself, as ``read_tree`` does on its way."""
    names: set[bytes] = set()
    for name, mode, object_id in parse_tree_object(tree_id, data):
        path = _checked_path("", name, tree_id)
        if name in names:
            raise FormatError(f"tree {tree_id} names {path[:200]!r} twice")
        names.add(name)
        if not stat_bits.S_ISDIR(mode):
            _make_entry(path, mode, object_id)


def _checked_path(prefix: str, name: bytes, tree_id: GitId) -> str:
    part = decode_path(name)
    fault = "has a slash in a name" if b"/" in name else find_path_fault(part)
    path = prefix + part
    if fault is None and len(path) > MAX_PATH_BYTES:
        fault = f"is longer than {MAX_PATH_BYTES} bytes"
    if fault is not None:
        raise FormatError(
            f"tree {tree_id} holds a path that is not allowed: {path[:200]!r} {fault}"
        )
    return path


def _make_entry(path: str, mode: int, blob: GitId) -> TreeEntry:
    kept = clean_mode(mode)
    if kept is None:
        raise FormatError(
            f"path {path!r} has mode {mode:o}: not a file, link or folder",
            hint="mvc does not keep submodules",
        )
    return TreeEntry(kept, blob)
