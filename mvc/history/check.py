"""fsck of the history: every object hashed, every link followed, every ref and log read.

Only Git's side is checked here; what manifests point to is checked by the layer above.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from mvc.errors import FormatError, MvcError
from mvc.history.names import HEADS, decode_path, find_path_fault
from mvc.history.reachability import SUBMODULE, links_of
from mvc.history.refs import HEAD, RefStore
from mvc.history.values import HistoryProblem

if TYPE_CHECKING:
    from mvc.history.git import GitHistory
    from mvc.history.objects import ObjectStore
    from mvc.ids import GitId

Root = tuple[str, "GitId", str]
"""(what points there, in words; id; kind it must be of, empty for any)"""


def check(history: GitHistory) -> Iterator[HistoryProblem]:
    """Yield everything that is wrong with the history, as it is found."""
    objects, refs = history.objects, history.refs
    damaged = set()
    for problem in _check_objects(objects):
        damaged.add(problem.what)
        yield problem
    roots: list[Root] = []
    yield from _check_refs(refs, roots)
    yield from _check_logs(refs, roots)
    yield from _check_index(history, roots)
    for problem in _check_links(objects, roots):
        if problem.what not in damaged:
            yield problem


def _check_objects(objects: ObjectStore) -> Iterator[HistoryProblem]:
    for object_id in objects.loose.iterate():
        try:
            objects.loose.read(object_id)
        except MvcError as error:
            yield HistoryProblem("object-damaged", object_id, error.message)
    for name in objects.packs.names():
        problems = list(_check_pack(objects, name))
        if problems and name in objects.packs.names():  # else it was joined with others meanwhile
            yield from problems


def _check_pack(objects: ObjectStore, name: str) -> Iterator[HistoryProblem]:
    try:
        ids = objects.packs.read_ids(name)
    except MvcError as error:
        yield HistoryProblem("object-damaged", name, error.message)
        return
    for object_id in ids:
        try:
            objects.read(object_id)
        except MvcError as error:
            yield HistoryProblem("object-damaged", object_id, error.message)


def _check_refs(refs: RefStore, roots: list[Root]) -> Iterator[HistoryProblem]:
    try:
        head = refs.head()
        if head.commit is not None:
            roots.append((HEAD, head.commit, "commit"))
        elif head.branch is not None:
            yield from _check_lost_branch(refs, HEADS + head.branch)
    except MvcError as error:
        yield HistoryProblem("head-broken", HEAD, error.message)
    try:
        names = refs.names()
    except MvcError as error:
        yield HistoryProblem("ref-broken", "packed-refs", error.message)
        return
    for name in names:
        try:
            value = refs.find(name)
        except MvcError as error:
            yield HistoryProblem("ref-broken", name, error.message)
            continue
        if value is not None:
            roots.append((name, value, "commit" if name.startswith(HEADS) else ""))


def _check_lost_branch(refs: RefStore, name: str) -> Iterator[HistoryProblem]:
    """Yield a problem if HEAD's branch is gone: it cannot be deleted while HEAD is on it.

    A log of one line proves nothing: a crash in the first commit leaves it without the ref.
    """
    entries = refs.logs.read(name)
    if len(entries) > 1 and entries[0].new is not None:
        detail = f"HEAD is on it and its log ends at commit {entries[0].new}, but it does not exist"
        yield HistoryProblem("ref-missing", name, detail)


def _check_logs(refs: RefStore, roots: list[Root]) -> Iterator[HistoryProblem]:
    for name in refs.logs.names():
        try:
            entries = refs.logs.read(name)
        except MvcError as error:
            yield HistoryProblem("reflog-broken", name, error.message)
            continue
        values = dict.fromkeys(
            value for entry in entries for value in (entry.new, entry.old) if value is not None
        )
        roots.extend((f"the log of {name}", value, "") for value in values)


def _check_index(history: GitHistory, roots: list[Root]) -> Iterator[HistoryProblem]:
    try:
        index = history.read_index()
    except MvcError as error:
        yield HistoryProblem("index-broken", "index", error.message)
        return
    roots.extend((f"the index at {path!r}", blob, "blob") for path, blob in index.blobs())


def _check_links(objects: ObjectStore, roots: Sequence[Root]) -> Iterator[HistoryProblem]:
    """Follow every link from the roots; each object is looked at once."""
    seen: set[bytes] = set()
    pending = list(reversed(roots))
    while pending:
        source, object_id, wanted = pending.pop()
        key = bytes.fromhex(object_id)
        if key in seen:
            continue
        seen.add(key)
        try:
            header = objects.find_header(object_id)
            if header is None:
                detail = f"{source} points to object {object_id}, which is missing"
                yield HistoryProblem("object-missing", object_id, detail)
                continue
            if wanted not in ("", header[0]):
                detail = (
                    f"{source} expects object {object_id} to be a {wanted}; it is a {header[0]}"
                )
                yield HistoryProblem("object-damaged", object_id, detail)
            pending.extend(_links(objects, object_id, header[0]))
        except MvcError as error:
            yield HistoryProblem("object-damaged", object_id, f"{error.message} (from {source})")


def _links(objects: ObjectStore, object_id: GitId, kind: str) -> Iterator[Root]:
    if kind == "blob":
        return  # leads nowhere: not worth reading
    source, data = f"{kind} {object_id}", objects.read_kind(object_id, kind)
    for name, target, wanted in links_of(objects, object_id, kind, data):
        if kind != "tree":
            yield source, target, wanted
            continue
        path = decode_path(name)
        fault = "has a slash in a name" if "/" in path else find_path_fault(path)
        if fault is not None:
            raise FormatError(f"tree {object_id} holds {path[:200]!r}, which {fault}")
        if wanted != SUBMODULE:
            yield f"{source} at {path!r}", target, wanted
