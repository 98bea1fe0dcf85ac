"""What history reaches: where it begins, and what each object leads to.

Reachability begins at HEAD, the refs, the reflogs, and the names that Git keeps beside HEAD. Each
object is read once, so the cost is that of what differs between commits.

Reflogs expire by Git's two limits. An entry older than the first goes. One older than the second,
shorter limit goes if the ref no longer leads to what it names: what was amended or reset away is
kept for a month, the ordinary past for three. The newest entry of a log always stays, and so does
the log of the stash, because the stash is nothing but its log.
"""

from __future__ import annotations

import contextlib
import stat as stat_bits
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mvc.errors import CorruptionError
from mvc.history.names import NOTES, decode_path
from mvc.history.object_formats import parse_tag, parse_tree_object
from mvc.history.reflogs import find_entry, sound_entries
from mvc.history.refs import HEAD, RefStore
from mvc.history.translate import FSCK_HINT

if TYPE_CHECKING:
    from mvc.history.git import GitHistory
    from mvc.history.objects import ObjectStore
    from mvc.ids import GitId

Link = tuple[bytes, "GitId", str]
"""(name in a tree or nothing, id, kind of object that is expected there)."""

SUBMODULE = "submodule"
"""Kind of a link to a commit of another repository, which is not here."""
_TOP_NAMES = ("ORIG_HEAD", "FETCH_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "BISECT_HEAD")
_GITLINK = 0o160000
DAY_S = 24 * 3600
_KEPT_WHOLE = "refs/stash"


def find_roots(
    history: GitHistory, *, notes: bool = False, expiry: ReflogExpiry | None = None
) -> list[GitId]:
    """Return every commit, tag or other object that something names, each once; not the index.

    With ``expiry``, what only expired entries of the reflogs name is left out.
    """
    objects, refs = history.objects, history.refs
    roots = [refs.head().commit]
    roots += [value for name, value in refs.values().items() if notes or not name.startswith(NOTES)]
    roots += _existing(objects, (refs.find(name) for name in _TOP_NAMES))
    roots += _existing(objects, iter(refs.merge_heads()))
    logs = ExpiringLogs(objects, refs, expiry) if expiry is not None else None
    logged: dict[GitId | None, None] = {}  # most commits are named four times
    for name in refs.logs.names():
        if not notes and name.startswith(NOTES):
            continue
        lines = refs.logs.read_lines(name) if logs is None else logs.split(name)[0]
        for entry in sound_entries(lines, name):
            logged |= {entry.new: None, entry.old: None}
    # A log may name commits that a stock Git has pruned since.
    known = set(roots)
    roots += _existing(objects, (object_id for object_id in logged if object_id not in known))
    return list(dict.fromkeys(object_id for object_id in roots if object_id is not None))


def _existing(objects: ObjectStore, values: Iterator[GitId | None]) -> Iterator[GitId]:
    return (value for value in values if value is not None and objects.has(value))


def links_of(objects: ObjectStore, object_id: GitId, kind: str, data: bytes) -> list[Link]:
    """Return what an object points to; nothing for a blob."""
    if kind == "commit":
        commit = objects.parse_commit(object_id, data)
        return [*((b"", parent, "commit") for parent in commit.parents), (b"", commit.tree, "tree")]
    if kind == "tag":
        target_kind, target = parse_tag(object_id, data)
        return [(b"", target, target_kind)]
    if kind == "tree":
        kinds = {stat_bits.S_IFDIR: "tree", _GITLINK: SUBMODULE}
        items = parse_tree_object(object_id, data)
        return [
            (name, target, kinds.get(stat_bits.S_IFMT(mode), "blob"))
            for name, mode, target in items
        ]
    return []


def reachable_blobs(
    history: GitHistory,
    starts: Sequence[GitId] | None = None,
    commits: set[GitId] | None = None,
) -> Iterator[tuple[GitId, str, GitId]]:
    """Yield (commit, path, blob) of every blob below some commits, each blob once.

    ``starts`` are ids of commits or tags (others are skipped), by default ``find_roots``. The index
    is not included, and notes hold no files. The commits that were met are added to ``commits``.
    """
    seen: set[bytes] = set()
    pending = list(reversed(find_roots(history) if starts is None else starts))
    while pending:
        start = pending.pop()
        if bytes.fromhex(start) in seen:
            continue
        seen.add(bytes.fromhex(start))
        kind, data = history.objects.read(start)
        if kind == "tag":
            pending.append(parse_tag(start, data)[1])
        elif kind == "commit":
            commit = history.objects.parse_commit(start, data)
            if commits is not None:
                commits.add(start)
            blobs = _new_blobs(history.objects, commit.tree, seen)
            yield from ((start, path, blob) for path, blob in blobs)
            pending.extend(reversed(commit.parents))


def _new_blobs(objects: ObjectStore, root: GitId, seen: set[bytes]) -> Iterator[tuple[str, GitId]]:
    pending = [("", root)]
    while pending:
        prefix, tree_id = pending.pop()
        if bytes.fromhex(tree_id) in seen:
            continue
        seen.add(bytes.fromhex(tree_id))
        for name, target, kind in links_of(
            objects, tree_id, "tree", objects.read_kind(tree_id, "tree")
        ):
            path = prefix + decode_path(name)
            if kind == "tree":
                pending.append((path + "/", target))
            elif kind == "blob" and bytes.fromhex(target) not in seen:
                seen.add(bytes.fromhex(target))
                yield path, target


def reachable_objects(history: GitHistory, *, expiry: ReflogExpiry | None = None) -> set[GitId]:
    """Return all commits, tags, trees and blobs in use: by roots, notes and the index.

    Commits and trees are read and hashed, each once; blobs only have to be there. Damage is a
    CorruptionError: nothing may be removed then.
    """
    objects = history.objects
    blobs = (blob for _, blob in history.read_index().blobs())
    pending = [(object_id, "") for object_id in find_roots(history, notes=True, expiry=expiry)]
    pending += [(object_id, "blob") for object_id in blobs]
    loose = set(objects.loose.iterate())
    seen: set[GitId] = set()
    while pending:
        object_id, wanted = pending.pop()
        if object_id in seen:
            continue
        seen.add(object_id)
        if wanted != "blob":
            pending.extend(read_links(objects, object_id, wanted))
        elif object_id not in loose and not objects.has(object_id):
            raise CorruptionError(f"object {object_id} is missing", hint=FSCK_HINT)
    return seen


def read_links(objects: ObjectStore, object_id: GitId, wanted: str) -> list[tuple[GitId, str]]:
    """Return (id, kind) of what an object of the wanted kind ("" for any) points to."""
    kind, data = objects.read(object_id)
    if wanted not in ("", kind):
        raise CorruptionError(
            f"object {object_id} is expected to be a {wanted}; it is a {kind}", hint=FSCK_HINT
        )
    links = links_of(objects, object_id, kind, data)
    return [(target, expected) for _, target, expected in links if expected != SUBMODULE]


@dataclass(frozen=True, slots=True)
class ReflogExpiry:
    """How long the reflogs remember."""

    reachable_older_than_s: int = 90 * DAY_S  # age in seconds at which any entry goes
    # age at which an entry goes that its ref does not lead to
    unreachable_older_than_s: int = 30 * DAY_S
    # the time that ages are counted from, seconds since 1970
    now_s: float = field(default_factory=time.time)


class ExpiringLogs:
    """The reflogs of a repository, with expired entries kept apart."""

    def __init__(self, objects: ObjectStore, refs: RefStore, expiry: ReflogExpiry) -> None:
        self._objects = objects
        self._refs = refs
        self._expiry = expiry
        self._parents: dict[GitId, tuple[GitId, ...]] = {}

    def split(self, name: str) -> tuple[list[bytes], list[bytes]]:
        """Return the lines of a log that stay and those that expired, oldest first.

        A damaged line stays, for fsck to report.
        """
        lines = self._refs.logs.read_lines(name)
        if name == _KEPT_WHOLE:
            return lines, []
        reached: set[GitId] | None = None
        kept: list[bytes] = []
        expired: list[bytes] = []
        for line in lines[:-1]:
            entry = find_entry(line, name)
            age_s = 0.0 if entry is None else self._expiry.now_s - entry.time_s
            is_over = age_s > self._expiry.reachable_older_than_s
            if entry is not None and not is_over and age_s > self._expiry.unreachable_older_than_s:
                # The age alone does not decide: it depends on where the ref leads.
                reached = self._reach(name) if reached is None else reached
                is_over = not {entry.old, entry.new} <= {*reached, None}
            (expired if is_over else kept).append(line)
        return kept + lines[-1:], expired

    def _reach(self, name: str) -> set[GitId]:
        """Return the commits that a ref leads to; for HEAD, those of all refs, as in Git."""
        if name == HEAD:
            tips = [self._refs.head().commit, *self._refs.values().values()]
        else:
            tips = [self._refs.find(name)]
        reached: set[GitId] = set()
        pending = [tip for tip in tips if tip is not None]
        while pending:
            commit = pending.pop()
            if commit in reached:
                continue
            reached.add(commit)
            if commit not in self._parents:
                header = self._objects.find_header(commit)
                is_other = header is not None and header[0] != "commit"  # a tag leads on elsewhere
                parents = () if is_other else self._objects.read_commit(commit).parents
                self._parents[commit] = parents
            pending.extend(self._parents[commit])
        return reached


def expire_reflogs(
    history: GitHistory, expiry: ReflogExpiry | None = None, *, dry_run: bool = False
) -> dict[str, int]:
    """Remove expired entries from all reflogs, durably; return how many by ref.

    The newest entry of a log stays. The ages default to Git's 90 and 30 days.
    """
    refs, counts = history.refs, dict[str, int]()
    with contextlib.nullcontext() if dry_run else refs.lock.hold():
        logs = ExpiringLogs(history.objects, refs, expiry or ReflogExpiry())
        for name in refs.logs.names():
            kept, expired = logs.split(name)
            if expired:
                counts[name] = len(expired)
                if not dry_run:
                    refs.rewrite_log(name, kept)
    return counts
