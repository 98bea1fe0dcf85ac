"""Refspecs, as in Git: ``[+]source:target``, either side with one ``*``; and what a config says with them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mvc.errors import UsageError
from mvc.history.config import Config, last_value
from mvc.history.names import HEADS, REMOTES, TAGS, is_ref_name

_HINT = 'write it as "main", "main:other", "+main" to force, or ":other" to delete'


@dataclass(frozen=True, slots=True)
class Refspec:
    """Which refs of one side become which refs of the other."""

    source: str  # a ref or revision there, perhaps with ``*``; empty to delete the target
    target: str  # a ref here, perhaps with ``*``; empty to keep nothing
    is_forced: bool = False  # whether the target may lose commits

    def map(self, name: str) -> str | None:
        """Return what a full ref name becomes, or None if the source does not match it."""
        if "*" not in self.source:
            return (self.target or None) if name == self.source else None
        before, _, after = self.source.partition("*")
        is_long = len(name) >= len(before) + len(after)
        if not (is_long and name.startswith(before) and name.endswith(after)):
            return None
        middle = name[len(before) : len(name) - len(after)]
        return self.target.replace("*", middle)


def parse_refspec(text: str) -> Refspec:
    """Return what a refspec says."""
    is_forced = text.startswith("+")
    source, colon, target = text.removeprefix("+").partition(":")
    if ":" in target or (not source and not target) or source.count("*") > 1:
        raise UsageError(f"{text!r} is not a refspec", hint=_HINT)
    if ("*" in source) != ("*" in target) and target:
        raise UsageError(f"{text!r} has a * on one side only", hint=_HINT)
    if target and not is_ref_name(full_target(target).replace("*", "x")):
        raise UsageError(f"{text!r} names an invalid target", hint=_HINT)
    return Refspec(source, full_target(target) if colon and target else "", is_forced)


def full_target(name: str) -> str:
    """Return the full name of a target that is given short: a branch."""
    return name if name.startswith("refs/") or not name else HEADS + name


def default_fetch(remote: str) -> str:
    """Return the refspec that a new remote gets."""
    return f"+{HEADS}*:{REMOTES}{remote}/*"


def fetch_specs(config: Config, remote: str) -> tuple[Refspec, ...]:
    """Return what a fetch from a remote brings and where it goes."""
    texts = config.get(f"remote.{remote}.fetch") or [default_fetch(remote)]
    return tuple(map(parse_refspec, texts))


def map_first(specs: Iterable[Refspec], name: str) -> tuple[str | None, bool]:
    """Return what the first refspec that matches makes of a full ref name, and whether it is forced."""
    known = ((spec.map(name), spec.is_forced) for spec in specs)
    return next((target for target in known if target[0] is not None), (None, False))


def find_tracked(
    config: Config, branch: str, *, to_push: bool = False
) -> tuple[str, str, str] | None:
    """Return (remote, full name there, full name here) of what a branch follows, or None.

    With ``to_push`` it is where a push of the branch goes: to the branch of the same name.
    """
    remote = last_value(config, f"branch.{branch}.remote")
    target = last_value(config, f"branch.{branch}.merge")
    if to_push:
        remote, target = last_value(config, "remote.pushdefault") or remote, HEADS + branch
    if remote is None or f"remote.{remote}.url" not in config:
        return None
    if target is None or not target.startswith(HEADS):
        return None
    ref, _ = map_first(fetch_specs(config, remote), target)
    return None if ref is None else (remote, target, ref)


ALL_HEADS = Refspec(f"{HEADS}*", f"{HEADS}*")
ALL_TAGS = Refspec(f"{TAGS}*", f"{TAGS}*")
