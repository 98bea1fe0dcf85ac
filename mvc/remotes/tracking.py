"""Which branch here follows which branch of a remote, and how far the two are apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc.errors import ConflictError
from mvc.history.names import HEADS, REMOTES

if TYPE_CHECKING:
    from mvc.ids import GitId
    from mvc.workspace.context import Context


@dataclass(frozen=True, slots=True)
class Upstream:
    """The branch of a remote that a branch here follows.

    Attributes:
        remote: name of the remote.
        branch: name of the branch there.
        ref: full name of the ref here that remembers where it was.
        commit: where it was when last heard of; None if it is not known.
        ahead: commits here that are not there.
        behind: commits there that are not here.
    """

    remote: str
    branch: str
    ref: str
    commit: GitId | None
    ahead: int = 0
    behind: int = 0


def set_upstream(context: Context, branch: str, remote: str, target: str) -> None:
    """Let a branch follow one of a remote."""
    from mvc.history.refspecs import full_target  # noqa: PLC0415  status does without

    context.history.config.set(f"branch.{branch}.remote", remote)
    context.history.config.set(f"branch.{branch}.merge", full_target(target))


def find_remote(context: Context, *, to_push: bool = False) -> str | None:
    """Return the remote that the current branch goes to or comes from, if the config names one."""
    config, branch = context.history.config.read(), context.history.head().branch
    default = config.get("remote.pushdefault") if to_push else None
    return default or config.get(f"branch.{branch}.remote")


def unset_upstream(context: Context, branch: str) -> None:
    """Let a branch follow none, if it follows any."""
    config = context.history.config.read()
    for key in (f"branch.{branch}.remote", f"branch.{branch}.merge"):
        if key in config:
            context.history.config.unset(key)


def follow(context: Context, branch: str, start: str) -> bool:
    """Let a branch follow what ``start`` names, if that is a branch of a remote as known here."""
    ref = context.history.resolve_ref_name(start)
    if ref is None or not ref.startswith(REMOTES):
        return False
    from mvc.history.refspecs import Refspec  # noqa: PLC0415  most branches start from one here
    from mvc.remotes.settings import list_remotes  # noqa: PLC0415  as above

    for name, settings in list_remotes(context).items():
        for spec in settings.fetch:
            target = Refspec(spec.target, spec.source).map(ref)
            if target is not None and target.startswith(HEADS):
                set_upstream(context, branch, name, target)
                return True
    return False


def find_namesake(context: Context, branch: str) -> str | None:
    """Return the short name of the one ref that remembers a branch of that name of a remote."""
    known = context.history.list_refs(REMOTES)
    if not known:
        return None
    from mvc.remotes.settings import list_remotes  # noqa: PLC0415  most repositories have none

    specs = (spec for settings in list_remotes(context).values() for spec in settings.fetch)
    found = sorted({ref for spec in specs if (ref := spec.map(HEADS + branch)) in known and ref})
    names = [ref.removeprefix(REMOTES) for ref in found]
    if len(names) > 1:
        raise ConflictError(
            f"several remotes have a branch {branch!r}: {', '.join(names)}",
            hint=f'"mvc switch -c {branch} {names[0]}" takes that of one',
        )
    return names[0] if names else None


def find_upstream(context: Context, branch: str | None) -> Upstream | None:
    """Return what a branch follows, and how far the two are apart, or None."""
    history, settings = context.history, context.history.config.read_all()
    if branch is None or f"branch.{branch}.remote" not in settings:
        return None
    from mvc.history.refspecs import find_tracked  # noqa: PLC0415  most branches follow none

    tracked = find_tracked(settings, branch)
    if tracked is None:
        return None
    remote, target, ref = tracked
    there, here = history.find_ref(ref), history.find_ref(HEADS + branch)
    name = target.removeprefix(HEADS)
    if there is None or here is None or there == here:
        return Upstream(remote, name, ref, there)
    return Upstream(
        remote, name, ref, there, _count(context, here, there), _count(context, there, here)
    )


def _count(context: Context, tip: GitId, other: GitId) -> int:
    """Return how many commits one tip has and the other lacks."""
    from mvc.history.transfer import count_missing  # noqa: PLC0415  most branches are in step

    return count_missing(context.history.objects, tip, other)
