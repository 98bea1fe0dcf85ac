"""fetch: history and content of a remote, verified, before any ref moves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc import fs
from mvc.errors import ConflictError, FormatError, NotFoundError, UsageError
from mvc.history.names import HEADS, TAGS
from mvc.history.refspecs import Refspec, find_tracked, map_first, parse_refspec
from mvc.history.shallow import write_shallow
from mvc.remotes.content import bring_content
from mvc.remotes.history import bring_history, bring_part, list_files
from mvc.remotes.promised import remember_packs
from mvc.remotes.remote import Remote, open_remote
from mvc.remotes.tracking import find_remote
from mvc.upkeep.versions import commits_of
from mvc.workspace.context import Context, holds_sweep_lock
from mvc.workspace.recovery import recover

if TYPE_CHECKING:
    from mvc.ids import GitId
    from mvc.remotes.root import Root


Targets = dict[tuple[str, str | None], bool]
"""(Ref there, ref here that follows it) → whether that may lose commits."""

_WHOLE = 2**62  # deeper than any history


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
    tags: bool | None = None,
    content: bool | None = None,
    content_of: Sequence[str] = (),
    depth: int | None = None,
    unshallow: bool = False,
    limit_bytes_s: int | None = None,
) -> FetchResult:
    """Bring what refs of a remote name, verified, and let the refs here that follow them move.

    Args:
        remote: where from.
        refspecs: as in Git; by default those of the remote.
        prune: delete refs here that follow what is gone there.
        tags: bring all new tags too; by default unless there are ``refspecs``.
        content: bring the content of checkpoints too, not just the history; by default unless
            the clone was made without. What does not come is read from the remote when needed.
        content_of: revisions of which all content is brought, and of nothing else.
        depth: let the history of a shallow clone be so many commits deep, or as deep as it is.
        unshallow: bring the whole history.
        limit_bytes_s: at most so many bytes in a second.

    Raises:
        NotFoundError: there is no such remote or ref, or nothing was pushed.
        ConflictError: a ref here would lose commits, or is the branch that is checked out.
        FormatError: the remote sent what is damaged or incomplete; nothing of it is kept.
        StorageError: the store cannot be reached, or refuses.
    """
    recover(context)
    check_depth(depth)
    depth = _WHOLE if unshallow else depth
    if depth and not context.history.objects.shallow and context.history.list_refs():
        raise UsageError("the repository has its whole history already")
    there = open_remote(context, remote or find_remote(context), limit_bytes_s=limit_bytes_s)
    root = there.read_root(hint='"mvc push" makes it a remote')
    asked = [parse_refspec(text) for text in refspecs]
    specs = asked or list(there.settings.fetch)
    is_shallow = depth is not None or bool(context.history.objects.shallow)
    only_seen = tags is None and not refspecs and is_shallow
    tags = not (refspecs or is_shallow) if tags is None else tags
    targets = _match(context, root, specs, tags=tags)
    _track(targets, asked, there.settings.fetch)
    known = list(context.history.refs.values().values())
    if content is None:
        content = not (content_of or there.settings.is_partial)
    if not content and there.settings.name is not None and not there.settings.is_promisor:
        context.history.config.set(f"remote.{there.settings.name}.promisor", "true")
        there = open_remote(context, there.settings.name, limit_bytes_s=limit_bytes_s)
    if depth is None:
        received = _receive(context, there, root, targets, known, content=content)
    else:
        received = _deepen(context, there, root, targets, depth, content=content)
    if only_seen:
        targets |= dict.fromkeys(_list_seen_tags(context, root, targets), False)
    for target, is_forced in targets.items():
        _check(context, target, root, is_forced=is_forced)
    _remember(context, there, root, targets, asked)
    moves = [_move(context, source, name, root.refs[source]) for source, name in targets]
    if prune:
        moves += prune_refs(context, root, specs)
    if content_of:
        commits = [context.history.resolve_commit(one) for one in content_of]
        listing = there.roots.read_listing(root)
        remember_packs(there, listing.packs)
        entries = list_files(context, commits)
        received += bring_content(there, root, listing, entries)
    return FetchResult(str(there.settings.url), tuple(moves), root.head, received)


def _match(context: Context, root: Root, specs: Sequence[Refspec], *, tags: bool) -> Targets:
    """Return all that is wanted; with ``tags``, all tags that are not here."""
    found: Targets = {}
    for spec in specs:
        if "*" in spec.source:
            names = [name for name in root.refs if spec.map(name) is not None]
            found |= {(name, spec.map(name)): spec.is_forced for name in names}
            continue
        rules = (spec.source, HEADS + spec.source, TAGS + spec.source)
        name = next((one for one in rules if one in root.refs), None)
        if name is None:
            raise NotFoundError(f"the remote has no {spec.source!r}")
        found[name, spec.target or None] = spec.is_forced
    if tags:
        here = context.history.list_refs(TAGS)
        new = [name for name in root.refs if name.startswith(TAGS) and name not in here]
        found |= {(name, name): False for name in new}
    return found


def _track(targets: Targets, asked: Sequence[Refspec], rules: Sequence[Refspec]) -> None:
    """Let the refs that follow what was asked for by name move too, as in Git."""
    if not asked:
        return
    for source, name in list(targets):
        ref, is_forced = map_first(rules, source)
        if ref is None:
            continue
        if name is None:
            del targets[source, None]
        targets[source, ref] = is_forced


def _check(
    context: Context, target: tuple[str, str | None], root: Root, *, is_forced: bool
) -> None:
    """Check that a ref here may become what it is on the remote."""
    source, name = target
    new, old = root.refs[source], context.history.find_ref(name) if name else None
    if name is None or old == new:
        return
    if source.startswith(HEADS) and context.history.objects.read(new)[0] != "commit":
        raise FormatError(f"{source} of the remote names no commit")
    if name == HEADS + (context.history.head().branch or ""):
        raise ConflictError(
            f"branch {name.removeprefix(HEADS)!r} is checked out", hint='"mvc pull" moves it'
        )
    if is_forced or old is None:
        return
    if name.startswith(TAGS):
        raise ConflictError(f"{name} exists here", hint=f'"+{source}:{name}" moves it')
    if not context.history.is_ancestor(old, new):
        raise ConflictError(
            f"{name} has commits that {source} of the remote lacks",
            hint=f'"+{source}:{name}" gives them up',
        )


def _remember(
    context: Context, there: Remote, root: Root, targets: Targets, asked: Sequence[Refspec]
) -> None:
    """Write ``FETCH_HEAD``: what came, first what a merge would take."""
    branch = context.history.head().branch or ""
    upstream = None if asked else find_tracked(context.history.config.read_all(), branch)
    merged = upstream[1] if upstream and upstream[0] == there.settings.name else None
    lines: dict[str, str] = {}
    for source, _ in targets:
        is_merged = bool(asked) or source == merged
        kind, _, short = source.removeprefix("refs/").partition("/")
        what = {"heads": f"branch '{short}'", "tags": f"tag '{short}'"}.get(kind, f"'{source}'")
        mark = "" if is_merged else "not-for-merge"
        lines[source] = f"{root.refs[source]}\t{mark}\t{what} of {there.settings.url}\n"
    text = "".join(sorted(lines.values(), key=lambda line: "\tnot-for-merge\t" in line))
    fs.write_durable(context.git_dir / "FETCH_HEAD", [text.encode()])


def check_depth(depth: int | None) -> None:
    """Refuse a depth that is none."""
    if depth is not None and depth < 1:
        raise UsageError(f"a depth of {depth} commits is not valid", hint="give 1 or more")


def _deepen(
    context: Context, there: Remote, root: Root, targets: Targets, depth: int, *, content: bool
) -> int:
    """Bring a history that ends so many commits below the refs; return bytes of content.

    Where it ends is written once everything is here that is in sight.
    """
    objects = context.history.objects
    tips = {root.refs[source] for source, _ in targets}
    listing = there.roots.read_listing(root)
    remember_packs(there, listing.packs)
    tags = [value for name, value in root.refs.items() if name.startswith(TAGS)]
    entries, ends = bring_part(context, there, listing.history, tips, tags, depth)
    received = 0
    if content:
        with objects.cut_at(ends):
            received = bring_content(there, root, listing, entries)
    write_shallow(context.git_dir, ends)
    objects.forget_shallow()
    return received


def _list_seen_tags(
    context: Context, root: Root, targets: Targets
) -> Iterator[tuple[str, str | None]]:
    """Yield the new tags of what is in sight: a tag of something else would bring all before it."""
    history, here = context.history, context.history.list_refs(TAGS)
    tips = commits_of(context, (root.refs[source] for source, _ in targets))
    seen = {info.id for info in history.walk(tips)}
    for name, value in root.refs.items():
        is_new = name.startswith(TAGS) and name not in here and history.has_object(value)
        if is_new and history.find_commit(value) in seen:
            yield name, name


def _receive(
    context: Context,
    there: Remote,
    root: Root,
    targets: Targets,
    known: Sequence[GitId],
    *,
    content: bool,
) -> int:
    """Bring all that the refs name and is not here; return bytes of content."""
    tips = {root.refs[source] for source, _ in targets} - set(known)
    if not tips:
        return 0
    listing = there.roots.read_listing(root)
    remember_packs(there, listing.packs)
    entries = bring_history(context, there, listing.history, tips, known)
    return bring_content(there, root, listing, entries) if content else 0


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


def find_gone(context: Context, root: Root, specs: Sequence[Refspec]) -> dict[str, str]:
    """Return ref here → ref there of those that follow what the remote has no more."""
    gone: dict[str, str] = {}
    for spec in specs:
        back = Refspec(spec.target, spec.source)
        for name in context.history.list_refs():
            source = back.map(name) if spec.target else None
            if source is not None and source not in root.refs:
                gone[name] = source
    return gone


def prune_refs(context: Context, root: Root, specs: Sequence[Refspec]) -> list[RefFetch]:
    """Delete the refs that follow what the remote has no more."""
    history, moves = context.history, []
    for name, source in find_gone(context, root, specs).items():
        old = history.find_ref(name)
        if old is not None:
            history.delete_ref(name, expected=old, stamp=context.stamp())
            moves.append(RefFetch(source, name, old, None, "pruned"))
    return moves
