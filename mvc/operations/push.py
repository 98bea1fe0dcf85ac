"""push: content, then history, then the refs, which move together or not at all."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mvc import fs
from mvc.errors import ConflictError, NotFoundError, UsageError
from mvc.history.refnames import HEADS, TAGS
from mvc.history.refspecs import ALL_HEADS, ALL_TAGS, Refspec, map_first, parse_refspec
from mvc.remotes.brought import find_brought, forget_brought, read_brought
from mvc.remotes.checked import require_safe_refs
from mvc.remotes.content import send_content
from mvc.remotes.history import list_chunks, list_new, send_history
from mvc.remotes.promised import remember_packs
from mvc.remotes.released import find_gaps, tell_released
from mvc.remotes.remote import open_remote
from mvc.remotes.root import Listing, Root, with_packs
from mvc.remotes.sweeping import MovedError, check_base, plan_until_it_holds
from mvc.remotes.tracking import find_remote, find_upstream
from mvc.remotes.tracking import set_upstream as upstream
from mvc.workspace.context import RELEASED_REF, STORE_DIR_NAME, holds_sweep_lock
from mvc.workspace.recovery import recover

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from mvc.history.transfer import Entry
    from mvc.ids import ChunkId, GitId, PackId
    from mvc.progress import ByteProgress
    from mvc.remotes.remote import Remote
    from mvc.workspace.context import Context


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


@dataclass(frozen=True, slots=True)
class PushResult:
    """What a push did: the refs, and how many bytes of packs were sent for them."""

    url: str
    refs: tuple[RefPush, ...]
    sent_bytes: int


@holds_sweep_lock
def push(
    context: Context,
    remote: str | None = None,
    refspecs: Sequence[str] = (),
    *,
    force: bool = False,
    all_branches: bool = False,
    tags: bool = False,
    lease: Mapping[str, GitId | None] | bool = False,
    set_upstream: bool = False,
    dry_run: bool = False,
    limit_bytes_s: int | None = None,
    progress: ByteProgress = None,
) -> PushResult:
    """Send what refs name and the remote lacks, then move its refs, all of them or none.

    Args:
        remote: where to.
        refspecs: as in Git: ``main``, ``main:other``, ``+main``, ``:other`` to delete; by
            default the current branch.
        force: let refs there lose commits.
        all_branches: push all branches.
        tags: push all tags.
        lease: force, but only what still is what was last seen of it; or full name → commit.
        set_upstream: let what is pushed follow what it is pushed to.
        dry_run: say what would move; nothing is sent.
        limit_bytes_s: at most so many bytes in a second.
        progress: called with bytes sent.

    Raises:
        ConflictError: a ref there has commits that would be lost, or moved meanwhile.
        NotFoundError: a ref or content to push is not here.
        CorruptionError: a pack here is damaged; nothing of it is pushed.
        UnsupportedError: the store does not keep what refs need.
        StorageError: the store cannot be reached, or refuses.
    """
    recover(context)
    remote = remote or find_remote(context, to_push=True)
    there = open_remote(context, remote, limit_bytes_s=limit_bytes_s)
    wanted = _find_specs(context, refspecs, all_branches=all_branches, tags=tags)
    if not (refspecs or all_branches or tags or set_upstream):
        _check_upstream(context, there)
    return push_specs(
        context,
        there,
        wanted,
        force=force,
        lease=lease,
        set_upstream=set_upstream,
        dry_run=dry_run,
        progress=progress,
    )


@holds_sweep_lock
def push_specs(
    context: Context,
    there: Remote,
    specs: Sequence[Refspec],
    *,
    force: bool = False,
    lease: Mapping[str, GitId | None] | bool = False,
    set_upstream: bool = False,
    dry_run: bool = False,
    notes: Sequence[str] = (),
    progress: ByteProgress = None,
) -> PushResult:
    """Push to an open remote; refs of Git ``notes`` go along, as far as they can move forward."""

    def attempt() -> PushResult:
        root = there.roots.read() or Root()
        if lease is not False:
            _check_lease(context, there, root, specs, lease)
        moves = _plan(context, root, specs, force=force or lease is not False)
        for ref in notes:
            new = context.history.find_ref(ref)
            if new is not None:
                with suppress(ConflictError):
                    moves.append(_plan_one(context, root, ref, new, force=False))
        changes = [move for move in moves if move.status != "unchanged"]
        sent_bytes = 0
        if changes and not dry_run:
            require_safe_refs(context, there.settings, has_root=bool(root.nonce))
            sent_bytes = send(context, there, root, changes, progress)
        if not dry_run:
            _track(context, there, moves)
            if set_upstream:
                _follow(context, there, specs)
        return PushResult(str(there.settings.url), tuple(moves), sent_bytes)

    return plan_until_it_holds(attempt)


def _check_upstream(context: Context, there: Remote) -> None:
    """Check that the current branch follows none of another name: which is meant is to be said."""
    branch = context.history.head().branch
    upstream = find_upstream(context, branch)
    if upstream is None or upstream.remote != there.settings.name or upstream.branch == branch:
        return
    raise UsageError(
        f"branch {branch!r} follows {upstream.remote}/{upstream.branch}, of another name",
        hint=f'"mvc push {upstream.remote} HEAD:{upstream.branch}" moves that, '
        f'"mvc push {upstream.remote} {branch}" makes or moves the one of the same name',
    )


def _check_lease(
    context: Context,
    there: Remote,
    root: Root,
    specs: Sequence[Refspec],
    lease: Mapping[str, GitId | None] | bool,  # noqa: FBT001  True: as last heard of
) -> None:
    """Check that what a push is to overwrite is what was last seen of it."""
    for target, _ in (pair for spec in specs for pair in _match(context, spec)):
        if isinstance(lease, bool):
            ref, _ = map_first(there.settings.fetch, target)
            expected = None if ref is None else context.history.find_ref(ref)
        else:
            expected = lease.get(target)
        if root.refs.get(target) != expected:
            raise ConflictError(
                f"{target} is not on the remote what it was when last seen",
                hint='run "mvc fetch" and look at what is new there',
            )


def _follow(context: Context, there: Remote, specs: Sequence[Refspec]) -> None:
    """Let the branches that were pushed follow what they were pushed to."""
    if there.settings.name is None:
        raise UsageError(
            "only a remote with a name can be followed", hint='"mvc remote add" names it'
        )
    for spec in specs:
        name = context.history.resolve_ref_name(spec.source) if spec.source else None
        for branch in context.history.list_refs(HEADS):
            if branch == name or ("*" in spec.source and spec.map(branch)):
                target = spec.map(branch) or spec.target or branch
                upstream(context, branch.removeprefix(HEADS), there.settings.name, target)


def _find_specs(
    context: Context, texts: Sequence[str], *, all_branches: bool, tags: bool
) -> list[Refspec]:
    specs = [parse_refspec(text) for text in texts]
    specs += [ALL_HEADS] * all_branches + [ALL_TAGS] * tags
    if not specs:
        branch = context.history.head().branch
        if branch is None:
            raise UsageError("HEAD is on no branch", hint='name what to push, as in "HEAD:main"')
        specs = [Refspec(HEADS + branch, HEADS + branch)]
    return specs


def _plan(context: Context, root: Root, specs: Iterable[Refspec], *, force: bool) -> list[RefPush]:
    moves: dict[str, RefPush] = {}
    for spec in specs:
        for target, new in _match(context, spec):
            move = _plan_one(context, root, target, new, force=force or spec.is_forced)
            moves[target] = move
    return list(moves.values())


def _match(context: Context, spec: Refspec) -> list[tuple[str, GitId | None]]:
    """Return (ref there, what it is to be) for all that a refspec means."""
    history = context.history
    if not spec.source:
        return [(spec.target, None)]
    if "*" in spec.source:
        mapped = ((spec.map(name), value) for name, value in history.list_refs().items())
        return [(target, value) for target, value in mapped if target is not None]
    name = history.resolve_ref_name(spec.source)
    value = history.resolve(spec.source)
    target = spec.target or (name or "")
    if not target.startswith((HEADS, TAGS)):
        raise UsageError(
            f"{spec.source!r} is not a branch or tag",
            hint=f'say where it goes, as in "{spec.source}:refs/heads/NAME"',
        )
    return [(target, value)]


def _plan_one(
    context: Context, root: Root, target: str, new: GitId | None, *, force: bool
) -> RefPush:
    old = root.refs.get(target)
    if new is None:
        if old is None:
            raise NotFoundError(f"the remote has no {target}")
        return RefPush(target, old, None, "deleted")
    if old == new:
        return RefPush(target, old, new, "unchanged")
    if old is None:
        return RefPush(target, None, new, "created")
    history = context.history
    if not force:
        if target.startswith(TAGS):
            raise ConflictError(f"{target} exists on the remote", hint="`force` moves it")
        if not history.has_object(old):
            raise ConflictError(
                f"{target} has commits on the remote that are not here",
                hint='run "mvc pull" first, or "mvc fetch" to look at them',
            )
        if history.is_ancestor(old, new):
            return RefPush(target, old, new, "updated")
        raise ConflictError(
            f"{target} has diverged: the remote has commits that {new[:10]} is not built upon",
            hint='run "mvc pull" first; `force` gives those commits up',
        )
    return RefPush(target, old, new, "forced")


def send(
    context: Context,
    there: Remote,
    root: Root,
    changes: Sequence[RefPush],
    progress: ByteProgress,
    *,
    tips: Iterable[GitId] = (),
    needed: Sequence[Entry] = (),
    update: Callable[[Root], Root] = lambda root: root,
    patience: int = 1,
) -> int:
    """Send what is missing, then move refs; return the bytes that were sent.

    Args:
        context: of the repository.
        there: the remote.
        root: as it was just read.
        changes: of its refs.
        progress: called with bytes sent.
        tips: commits that are to be there too.
        needed: objects whose content must be there, whenever they were sent.
        update: what else changes in the root.
        patience: with so many times as many short packs as usual; joining them takes bytes.

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
            folder = context.git_dir / STORE_DIR_NAME
            packs, gone = send_content(
                context.here,
                folder,
                there.packs,
                {**listing.packs, **brought},
                wanted,
                scratch,
                accept=accept,
                patience=patience,
                progress=progress,
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
    cut = next((one for one, _ in entries if one in ends), None)
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
        head = next((one.name for one in changes if one.name in heads), heads[0])
    return replace(root, refs=refs, head=head)


def _track(context: Context, there: Remote, moves: Sequence[RefPush]) -> None:
    """Let the remote-tracking refs follow."""
    targets: Mapping[str, GitId | None] = {move.name: move.new for move in moves}
    for spec in there.settings.fetch:
        for name, new in targets.items():
            ref = spec.map(name)
            if ref is None:
                continue
            old = context.history.find_ref(ref)
            if old == new:
                continue
            stamp = context.stamp()
            if new is None:
                assert old is not None
                context.history.delete_ref(ref, expected=old, stamp=stamp)
            else:
                context.history.update_ref(
                    ref, new, expected=old, message="update by push", stamp=stamp
                )
