"""log, show and reflog: the history as values; manifests are not read."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from mvc.errors import FormatError, NotFoundError
from mvc.workspace.health import GATE_TRAILER, CheckpointHealth, read_failed, read_health
from mvc.workspace.ranges import walk_ranges
from mvc.workspace.releases import Release, find_release
from mvc.workspace.trailers import (
    CHECK_TRAILER,
    Agreement,
    Annotations,
    read_agreement,
    read_annotations,
)
from mvc.workspace.verdicts import DIVERGENCES, HEALTH_MARKS, Divergence

if TYPE_CHECKING:
    from mvc.history.notes import NoteFinder
    from mvc.history.values import CommitInfo, Identity, ReflogEntry
    from mvc.ids import GitId
    from mvc.workspace.context import Context
    from mvc.workspace.notebook import NoteKind


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One commit of the log.

    Attributes:
        info: the commit.
        annotations: step, metrics and other facts.
        refs: short names of the refs that point here, HEAD's branch first.
        released: which files' content was released, when and by which policy, if any.
        is_healthy: whether the commit is marked as healthy.
        diverged: why a rollback abandoned this commit, if one did.
    """

    info: CommitInfo
    annotations: Annotations
    refs: tuple[str, ...] = ()
    released: Release | None = None
    is_healthy: bool = False
    diverged: Divergence | None = None

    @property
    def id(self) -> GitId:
        """The id of the commit."""
        return self.info.id

    @property
    def subject(self) -> str:
        """The first paragraph of its message, on one line."""
        return self.info.subject

    @property
    def message(self) -> str:
        """Its whole message, with the trailers."""
        return self.info.message

    @property
    def author(self) -> Identity:
        """Who wrote it."""
        return self.info.author

    @property
    def step(self) -> int | None:
        """Its training step."""
        return self.annotations.step

    @property
    def health(self) -> tuple[CheckpointHealth, ...]:
        """The health of its checkpoints, as recorded when it was made; no weight is read."""
        return read_health(self.info.trailers)

    @property
    def failed_gates(self) -> tuple[str, ...]:
        """Which gates it was marked for, with the reason of each (``gate.mode`` mark)."""
        # Most commits are not marked, and a look is faster than reading all trailers once more.
        return read_failed(self.info.trailers) if GATE_TRAILER in self.info.message else ()

    @property
    def agreement(self) -> Agreement | None:
        """What several ranks had of the same bytes when a run made it; None if that was not checked."""
        is_checked = CHECK_TRAILER in self.info.message
        return read_agreement(self.info.trailers) if is_checked else None

    @property
    def metrics(self) -> Mapping[str, float]:
        """Its metrics, name → number."""
        return self.annotations.metrics or {}


def log(
    context: Context,
    *revisions: str,
    everything: bool = False,
    limit: int | None = None,
    first_parent: bool = False,
) -> Iterator[LogEntry]:
    """Yield commits newest first, children before parents.

    Args:
        revisions: where to start, by default HEAD; ``A..B``, ``A...B`` and ``^A`` exclude
            commits, as in Git.
        everything: start from every ref as well.
        limit: at most this many.
        first_parent: follow only the first parent of merges.

    Raises:
        NotFoundError: a revision does not exist; raised on the first step of the iteration.
    """
    infos = walk_ranges(context, revisions, everything=everything, first_parent=first_parent)
    reader = _Reader(context)
    for info in islice(infos, None if limit is None else max(limit, 0)):
        yield reader.entry(info)


def ref_names(context: Context) -> dict[GitId, tuple[str, ...]]:
    """Return commit → short ref names, as ``log --decorate`` shows them."""
    history = context.history
    head = history.head()
    names: dict[GitId, list[str]] = {}
    if head.commit is not None:
        names[head.commit] = [f"HEAD -> {head.branch}" if head.branch else "HEAD"]
    for name in sorted(history.list_refs()):
        if name == f"refs/heads/{head.branch}":
            continue
        with contextlib.suppress(NotFoundError):  # deleted since they were listed
            names.setdefault(history.resolve(name), []).append(_shown_ref(context, name))
    for commit in history.objects.shallow:  # as Git says that its parents are not here
        names[commit] = ["grafted", *names.get(commit, ())]
    return {commit: tuple(found) for commit, found in names.items()}


def _shown_ref(context: Context, name: str) -> str:
    """Return a ref name as people write it."""
    if name.startswith("refs/tags/"):
        sign = "@" if context.history.is_alias(name) else "tag: "
        return sign + name.removeprefix("refs/tags/")
    for prefix in ("refs/heads/", "refs/remotes/", "refs/"):
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    return name


def show(context: Context, revision: str = "HEAD") -> LogEntry:
    """Return one commit with its step and metrics.

    Raises:
        NotFoundError: no such revision.
    """
    info = context.history.read_commit(context.history.resolve_commit(revision))
    return _Reader(context).entry(info)


class _Reader:
    """Makes entries of commits; refs and the folders of notes are looked at once for all of them.

    A damaged note is left out: fsck reports it, and a log is not the place to fail.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._names = ref_names(context)
        self._healthy = _open_notes(context, HEALTH_MARKS)
        self._diverged = _open_notes(context, DIVERGENCES)

    def entry(self, info: CommitInfo) -> LogEntry:
        return LogEntry(
            info,
            read_annotations(info),
            self._names.get(info.id, ()),
            find_release(self._context, info.id),
            is_healthy=_find_note(self._healthy, info.id) is not None,
            diverged=self._find_divergence(info.id),
        )

    def _find_divergence(self, commit: GitId) -> Divergence | None:
        note = _find_note(self._diverged, commit)
        with contextlib.suppress(FormatError):
            found = () if note is None else self._context.notebook(DIVERGENCES).parse(commit, note)
            return found[-1] if found else None
        return None


def _open_notes(context: Context, kind: NoteKind[Any]) -> NoteFinder | None:
    with contextlib.suppress(FormatError):
        return context.notebook(kind).open()
    return None


def _find_note(notes: NoteFinder | None, commit: GitId) -> GitId | None:
    with contextlib.suppress(FormatError):
        return None if notes is None else notes.find(commit)
    return None


def reflog(context: Context, ref: str = "HEAD") -> list[ReflogEntry]:
    """Return where a ref has been, newest first.

    Raises:
        NotFoundError: no such ref.
    """
    name = "HEAD" if ref in ("HEAD", "@") else context.history.resolve_ref_name(ref)
    if name is None:
        raise NotFoundError(f"no ref {ref!r} with a reflog", hint=_find_deleted(context, ref))
    return context.history.read_reflog(name)


def _find_deleted(context: Context, branch: str) -> str:
    """Return how to bring back a branch that is gone: HEAD's log knows where HEAD left it."""
    for entry in context.history.read_reflog("HEAD"):
        if entry.switch is None or entry.switch[0] != branch or entry.old is None:
            continue
        if context.history.has_object(entry.old):
            return f'HEAD left it at {entry.old[:7]}: "mvc branch {branch} {entry.old[:7]}" restores it'
    return '"mvc branch" lists branches'
