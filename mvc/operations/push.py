"""push: which refs of a remote are to move where, and what follows them here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc.errors import ConflictError, NotFoundError, UsageError
from mvc.history.names import HEADS, TAGS
from mvc.history.refspecs import ALL_HEADS, ALL_TAGS, Refspec, map_first, parse_refspec
from mvc.operations.sending import RefPush, send
from mvc.remotes.checked import require_safe_refs
from mvc.remotes.remote import Remote, open_remote
from mvc.remotes.root import Root
from mvc.remotes.sweeping import plan_until_it_holds
from mvc.remotes.tracking import find_remote, find_upstream
from mvc.remotes.tracking import set_upstream as upstream
from mvc.workspace.context import Context, holds_sweep_lock
from mvc.workspace.recovery import recover

if TYPE_CHECKING:
    from mvc.ids import GitId


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
        context, there, wanted, force=force, lease=lease, set_upstream=set_upstream, dry_run=dry_run
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
            sent_bytes = send(context, there, root, changes)
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
