"""What a push sends: content, then history, then the refs, which move together or not at all."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mvc import fs
from mvc.errors import ConflictError, NotFoundError
from mvc.history.names import HEADS
from mvc.remotes.brought import find_brought, forget_brought, read_brought
from mvc.remotes.content import send_content
from mvc.remotes.history import list_chunks, list_new, send_history
from mvc.remotes.promised import remember_packs
from mvc.remotes.released import find_gaps, tell_released
from mvc.remotes.root import Listing, Root, with_packs
from mvc.remotes.sweeping import MovedError, check_base
from mvc.workspace.context import RELEASED_REF, Context

if TYPE_CHECKING:
    from mvc.history.transfer import Entry
    from mvc.ids import ChunkId, GitId, PackId
    from mvc.remotes.remote import Remote


@dataclass(frozen=True, slots=True)
class RefPush:
    """What became of one ref of a remote.

    Attributes:
        name: its full name there.
        old: what it was; None if it was not there.
        new: what it is; None if it was deleted.
        status: ``created``, ``updated``, ``forced``, ``deleted`` or ``unchanged``.
    """

    name: str
    old: GitId | None
    new: GitId | None
    status: str


def send(
    context: Context,
    there: Remote,
    root: Root,
    changes: Sequence[RefPush],
    *,
    tips: Iterable[GitId] = (),
    needed: Sequence[Entry] = (),
    update: Callable[[Root], Root] = lambda root: root,
    patience: int = 1,
) -> int:
    """Send what is missing, then move refs; return the bytes that were sent.

    ``tips`` are commits that are to be there too, ``needed`` objects whose content must be there, whenever
    they were sent, and ``update`` changes what else stands in the root. With ``patience``, that many times
    as many short packs as usual are left alone; joining them takes bytes.

    Raises:
        NotFoundError: content that must be there is on neither side.
        MovedError: the remote changed in a way that makes a new plan necessary.
    """
    listing = there.roots.read_listing(root)
    noted = read_brought(there)
    brought = find_brought(there, noted, root, listing)
    tips = [*tips, *(move.new for move in changes if move.new is not None)]
    entries = list_new(context, tips, root.tips()) if tips else []
    _check_whole(context, entries)
    moves = list(changes)

    def accept(missing: Sequence[ChunkId]) -> None:
        if find_gaps(context, needed, missing):
            raise NotFoundError(
                "the commit lacks content: it was released, and the remote does not have it either",
                hint="publish a commit that is complete",
            )
        gaps = find_gaps(context, entries, missing)
        released = tell_released(context, there, root, listing, gaps)
        if released is not None:
            moves.append(RefPush(RELEASED_REF, root.refs.get(RELEASED_REF), released, "updated"))
            entries.extend(list_new(context, [released], root.refs.values()))

    with sending_folder(there.folder) as scratch:
        packs: dict[PackId, int] = {}
        gone: frozenset[str] = frozenset()
        wanted = list_chunks(context, dict.fromkeys([*entries, *needed]))
        if len(wanted):
            known = {**listing.packs, **brought}
            packs, gone = send_content(
                there, known, wanted, scratch, accept=accept, patience=patience
            )
        history, joined = send_history(
            context, there, entries, listing.history, scratch, patience=patience
        )

    added = brought | packs
    sent = Listing(added, history)

    def move(old: Root) -> Root:
        check_base(there.roots, root, old, sent)
        if len(moves) > len(changes) and old.refs.get(RELEASED_REF) != moves[-1].old:
            raise MovedError
        new = update(with_packs(_move_refs(old, moves), added, history))
        return there.roots.drop_packs(new, gone | joined) if gone | joined else new

    moved = there.roots.update(move, since_read=True)
    if noted:  # all that the refs need is named now, so what is not there was not needed
        remember_packs(there, there.roots.read_listing(moved).packs)
        forget_brought(there, noted)
        context.forget_settings()
    return sum(packs.values()) + sum(history.values())


def _check_whole(context: Context, entries: Sequence[Entry]) -> None:
    """Check that what is before each commit to send is here, or there already."""
    ends = context.history.objects.shallow
    cut = next((commit for commit, _ in entries if commit in ends), None)
    if cut is not None:
        raise NotFoundError(
            f"the history here ends at commit {cut}, and the remote lacks what is before it",
            hint='"mvc fetch --unshallow" brings it',
        )


@contextmanager
def sending_folder(folder: Path) -> Iterator[Path]:
    """Yield a folder for packs that are made to be sent; those that kills left are removed."""
    fs.make_dirs(folder)
    with ExitStack() as held:
        with fs.exclusive_lock(folder / "push.lock"):
            for left in folder.glob("push-*"):
                if not fs.is_locked(left / "lock"):
                    shutil.rmtree(left, ignore_errors=True)
            scratch = Path(tempfile.mkdtemp(dir=folder, prefix="push-"))
            held.callback(shutil.rmtree, scratch, ignore_errors=True)
            held.enter_context(fs.exclusive_lock(scratch / "lock"))
        yield scratch


def _move_refs(root: Root, changes: Sequence[RefPush]) -> Root:
    refs: dict[str, GitId] = dict(root.refs)
    for change in changes:
        if refs.get(change.name) != change.old:
            raise ConflictError(
                f"{change.name} moved on the remote meanwhile",
                hint='run "mvc fetch", then try again',
            )
        if change.new is None:
            refs.pop(change.name, None)
        else:
            refs[change.name] = change.new
    head = root.head
    heads = sorted(name for name in refs if name.startswith(HEADS))
    if head not in refs and heads and head not in root.refs:
        head = next((change.name for change in changes if change.name in heads), heads[0])
    return replace(root, refs=refs, head=head)
