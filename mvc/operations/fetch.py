"""fetch: history and content of a remote, verified, before any ref moves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc.errors import NotFoundError
from mvc.history.refnames import TAGS
from mvc.history.refspecs import Refspec, parse_refspec
from mvc.remotes.content import receive_content
from mvc.remotes.history import bring_history, list_chunks
from mvc.remotes.released import find_gaps, take_released
from mvc.remotes.remote import open_remote
from mvc.remotes.tracking import find_remote
from mvc.workspace.context import STORE_DIR_NAME, holds_sweep_lock
from mvc.workspace.recovery import recover

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mvc.ids import GitId
    from mvc.progress import ByteProgress
    from mvc.remotes.remote import Remote
    from mvc.remotes.root import Root
    from mvc.workspace.context import Context


@dataclass(frozen=True, slots=True)
class RefFetch:
    """What became of one ref here.

    Attributes:
        source: its full name on the remote.
        name: its full name here; None if nothing here follows it.
        old: what it was here; None if it was not there.
        new: what it is now; None if it was pruned.
        status: ``created``, ``updated``, ``forced``, ``pruned``, ``unchanged`` or ``fetched``.
    """

    source: str
    name: str | None
    old: GitId | None
    new: GitId | None
    status: str


@dataclass(frozen=True, slots=True)
class FetchResult:
    """What a fetch did: the refs, and how many bytes of content came for them."""

    url: str
    refs: tuple[RefFetch, ...]
    head: str
    received_bytes: int


@holds_sweep_lock
def fetch(
    context: Context,
    remote: str | None = None,
    refspecs: Sequence[str] = (),
    *,
    prune: bool = False,
    content: bool = True,
    limit_bytes_s: int | None = None,
    progress: ByteProgress = None,
) -> FetchResult:
    """Bring what refs of a remote name; see ``Repo.fetch``."""
    recover(context)
    there = open_remote(context, remote or find_remote(context), limit_bytes_s=limit_bytes_s)
    root = there.roots.read()
    if root is None:
        raise NotFoundError(
            f"nothing was pushed to {there.settings.url} yet", hint='"mvc push" makes it a remote'
        )
    specs = [parse_refspec(text) for text in refspecs] or list(there.settings.fetch)
    targets = _match(context, root, specs, is_default=not refspecs)
    known = list(context.history.refs.values().values())
    received = _receive(context, there, root, targets, known, progress, content=content)
    moves = [_move(context, source, name, root.refs[source]) for source, name in targets.items()]
    if prune:
        moves += _prune(context, root, specs)
    return FetchResult(str(there.settings.url), tuple(moves), root.head, received)


def _match(
    context: Context, root: Root, specs: Sequence[Refspec], *, is_default: bool
) -> dict[str, str | None]:
    """Return ref there → ref here of all that is wanted; new tags come with what they tag."""
    found: dict[str, str | None] = {}
    for spec in specs:
        if "*" in spec.source:
            found |= {name: spec.map(name) for name in root.refs if spec.map(name) is not None}
            continue
        rules = (spec.source, f"refs/heads/{spec.source}", f"refs/tags/{spec.source}")
        name = next((one for one in rules if one in root.refs), None)
        if name is None:
            raise NotFoundError(f"the remote has no {spec.source!r}")
        found[name] = spec.target or None
    if is_default:
        here = context.history.list_refs(TAGS)
        found |= {name: name for name in root.refs if name.startswith(TAGS) and name not in here}
    return found


def _receive(
    context: Context,
    there: Remote,
    root: Root,
    targets: Mapping[str, str | None],
    known: Sequence[GitId],
    progress: ByteProgress,
    *,
    content: bool,
) -> int:
    """Bring all that the refs name and is not here; return bytes of content."""
    tips = {root.refs[source] for source in targets} - set(known)
    if not tips:
        return 0
    listing = there.roots.read_listing(root)
    entries = bring_history(context, there, listing.history, tips, known)
    if not content:
        return 0
    wanted = list_chunks(context, entries)
    if not len(wanted):
        return 0
    folder = context.git_dir / STORE_DIR_NAME
    return receive_content(
        context.store,
        folder,
        there.packs,
        listing.packs,
        wanted,
        there.folder / "incoming",
        accept=lambda missing: take_released(
            context, there, root, listing, find_gaps(context, entries, missing)
        ),
        progress=progress,
    )


def _move(context: Context, source: str, name: str | None, new: GitId) -> RefFetch:
    if name is None:
        return RefFetch(source, None, None, new, "fetched")
    history = context.history
    old = history.find_ref(name)
    if old == new:
        return RefFetch(source, name, old, new, "unchanged")
    status = "created" if old is None else "updated"
    if old is not None and not history.is_ancestor(old, new):
        status = "forced"
    history.update_ref(name, new, expected=old, message=f"fetch: {status}", stamp=context.stamp())
    return RefFetch(source, name, old, new, status)


def _prune(context: Context, root: Root, specs: Sequence[Refspec]) -> list[RefFetch]:
    gone: list[RefFetch] = []
    for spec in specs:
        back = Refspec(spec.target, spec.source)
        for name, value in context.history.list_refs().items():
            source = back.map(name) if spec.target else None
            if source is not None and source not in root.refs:
                context.history.delete_ref(name, expected=value, stamp=context.stamp())
                gone.append(RefFetch(source, name, value, None, "pruned"))
    return gone
