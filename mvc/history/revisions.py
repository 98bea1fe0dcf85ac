"""Git's grammar of revisions, and one addition: ``main@12000``, the commit of a training step.

    revision = revision "~" [n]        n first parents up
             | revision "^" [n]        the n-th parent; ^0 is the commit itself
             | revision "^{" kind "}"  what it names, once tags are followed: commit, tree, …
             | revision "@" digits     nearest commit along first parents with that Step trailer
             | [ref] "@{" n "}"        where the ref was n moves ago
             | "@" tag                 a tag, as the log shows those that are meant to move
             | "@{-" n "}"             the branch that was checked out n switches ago
             | [branch] "@{u}"         what the branch follows, as last heard of; or "@{upstream}"
             | [branch] "@{push}"      where a push of the branch goes, as last heard of
             | "HEAD" | "@" | ref | id | beginning of an id, four digits at least

A suffix is taken off the right end, so the rest is a revision again; a name that exists as a ref
is that ref, whatever signs it holds.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from mvc.errors import CorruptionError, NotFoundError
from mvc.history.names import HEADS, REMOTES, TAGS, expand_name, is_ref_name
from mvc.history.object_formats import parse_tag
from mvc.ids import GitId, is_git_id

if TYPE_CHECKING:
    from mvc.history.config import RepositoryConfig
    from mvc.history.objects import ObjectStore
    from mvc.history.refs import RefStore

STEP_TRAILER = "Step"
MIN_PREFIX_DIGITS = 4
_MAX_REVISION_CHARS = 4096
_MAX_TAG_DEPTH = 16
_MAX_SHOWN = 8
_MAX_COMMITS = 2**12

_PEEL = re.compile(r"(.+)\^\{([a-z]*)\}", re.DOTALL)
_PARENT = re.compile(r"(.+)\^([0-9]{0,9})", re.DOTALL)
_FIRST_PARENTS = re.compile(r"(.+)~([0-9]{0,9})", re.DOTALL)
_STEP = re.compile(r"(.*)@([0-9]{1,18})", re.DOTALL)
_REFLOG = re.compile(r"(.*)@\{([0-9]{1,9})\}", re.DOTALL)
_SHORTENED = (HEADS, TAGS, REMOTES)
_ALIAS = re.compile(r"@(?![0-9]+\Z)[^{@].*", re.DOTALL)
_PREVIOUS = re.compile(r"@\{-([1-9][0-9]{0,8})\}")
_TRACKED = re.compile(r"(.*)@\{(?:(u|upstream)|push)\}", re.DOTALL | re.IGNORECASE)
_RANGE = re.compile(r"(?P<old>.*?)(?P<dots>\.{2,3})(?P<new>.*)", re.DOTALL)
_UP = re.compile(r"(^|/)\.\.($|/)")  # of a path
_HEX = re.compile(r"[0-9a-fA-F]+")


class Revisions:
    """Resolves what people write into object ids."""

    def __init__(self, objects: ObjectStore, refs: RefStore, config: RepositoryConfig) -> None:
        self._objects = objects
        self._refs = refs
        self._config = config
        self._commits: set[GitId] = set()  # known to be commits, which they stay

    def resolve(self, revision: str) -> GitId:
        """Return the id a revision names; tags are followed to what they tag."""
        if len(revision) > _MAX_REVISION_CHARS:
            raise NotFoundError("a revision is not that long")
        object_id = self._resolve(revision, revision)
        return self._peel(object_id, "", revision)

    def resolve_commit(self, revision: str) -> GitId:
        """Return the commit a revision names."""
        return self._peel(self.resolve(revision), "commit", revision)

    def find_ref_name(self, name: str) -> str | None:
        """Return the full name of the ref a short name stands for, or None."""
        if name == "@":
            name = "HEAD"
        full_name = next((full for full in expand_name(name) if self._refs.find(full)), None)
        if full_name is None and _ALIAS.fullmatch(name):
            tag = TAGS + name[1:]
            return tag if is_ref_name(tag) and self._refs.find(tag) else None
        return full_name

    def find_tree(self, object_id: GitId) -> GitId:
        """Return the tree of a commit or tag; a tree is its own."""
        return self._peel(object_id, "tree", object_id)

    def _resolve(self, text: str, whole: str) -> GitId:
        """Return the object that ``text`` names; ``whole`` is what the user wrote, for errors."""
        suffixes: list[tuple[str, str]] = []
        while True:
            object_id = self._find_basic(text, whole)
            if object_id is not None:
                break
            text, kind, argument = self._split(text, whole)
            suffixes.append((kind, argument))
        for kind, argument in reversed(suffixes):
            object_id = self._apply(object_id, kind, argument, whole)
        return object_id

    def _split(self, text: str, whole: str) -> tuple[str, str, str]:
        """Take the last suffix off: (rest, sign, argument)."""
        for sign, pattern in (("^{", _PEEL), ("^", _PARENT), ("~", _FIRST_PARENTS), ("@", _STEP)):
            match = pattern.fullmatch(text)
            if match:
                return match[1] or "HEAD", sign, match[2]
        raise self._unknown(text, whole)

    def _apply(self, object_id: GitId, sign: str, argument: str, whole: str) -> GitId:
        if sign == "^{":
            return self._peel(object_id, argument, whole)
        commit = self._peel(object_id, "commit", whole)
        if sign == "@":
            return self._find_step(commit, int(argument), whole)
        number = int(argument) if argument else 1
        if sign == "~":
            for _ in range(number):
                commit = self._parent(commit, 1, whole)
            return commit
        return commit if number == 0 else self._parent(commit, number, whole)

    def _parent(self, commit: GitId, number: int, whole: str) -> GitId:
        parents = self._objects.read_commit(commit).parents
        if commit in self._objects.shallow:
            raise NotFoundError(
                f"revision {whole!r} is not here: the history ends at commit {commit}",
                hint='"mvc fetch --unshallow" brings what is before it',
            )
        if number > len(parents):
            raise NotFoundError(
                f"revision {whole!r} does not exist: commit {commit} has "
                f"{len(parents) or 'no'} parent{'' if len(parents) == 1 else 's'}"
            )
        return parents[number - 1]

    def _find_step(self, start: GitId, step: int, whole: str) -> GitId:
        current: GitId | None = start
        nearest: tuple[int, int] | None = None
        while current is not None:
            commit = self._objects.read_commit(current)
            for key, value in commit.trailers:
                if key != STEP_TRAILER or not (value.isascii() and value.isdigit()):
                    continue
                if len(value) <= 18 and int(value) == step:  # noqa: PLR2004  below 2**63
                    return current
                distance = abs(int(value[:18]) - step)
                nearest = min(nearest or (distance, int(value[:18])), (distance, int(value[:18])))
            current = commit.parents[0] if commit.parents else None
        hint = (
            f"the nearest step there is {nearest[1]}" if nearest else "no commit there has a step"
        )
        raise NotFoundError(
            f"revision {whole!r} does not exist: no commit of step {step}", hint=hint
        )

    def _peel(self, object_id: GitId, kind: str, whole: str) -> GitId:
        """Follow tags; then, where a kind is asked for, go from a commit to its tree."""
        if not kind and object_id in self._commits and self._objects.has(object_id):
            return object_id
        for _ in range(_MAX_TAG_DEPTH):
            actual, data = self._objects.read(object_id)
            if actual == "commit" and len(self._commits) < _MAX_COMMITS:
                self._commits.add(object_id)
            if kind in (actual, "object"):
                return object_id
            if actual == "tag":
                _, object_id = parse_tag(object_id, data)
            elif kind == "":
                return object_id
            elif kind == "tree" and actual == "commit":
                return self._objects.read_commit(object_id).tree
            else:
                raise NotFoundError(
                    f"revision {whole!r} does not exist: {object_id} is a {actual}, "
                    f"not a {kind or 'commit'}"
                )
        raise CorruptionError(f"tag {object_id} leads to tags without end")

    def _find_basic(self, text: str, whole: str) -> GitId | None:
        """Return what a revision without ``~``, ``^`` and ``@digits`` names, or None."""
        if is_git_id(text.lower()):
            object_id = GitId(text.lower())
            return object_id if self._objects.find_header(object_id) else None
        if text in ("HEAD", "@"):
            head = self._refs.head()
            if head.commit is None:
                raise NotFoundError(
                    f"revision {whole!r} does not exist: branch {head.branch!r} has no commit yet",
                    hint='make the first one with "mvc commit"',
                )
            return head.commit
        name = self.find_ref_name(text)
        if name is not None:
            return self._refs.find(name)
        if text.endswith("}"):
            return self._find_logged(text, whole)
        if len(text) >= MIN_PREFIX_DIGITS and _HEX.fullmatch(text):
            return self._find_prefix(text.lower())
        return None

    def _find_logged(self, text: str, whole: str) -> GitId | None:
        if match := _PREVIOUS.fullmatch(text):
            return self._find_previous(int(match[1]), whole)
        if match := _TRACKED.fullmatch(text):
            return self._find_tracked(match[1], whole, to_push=match[2] is None)
        match = _REFLOG.fullmatch(text)
        return self._find_move(match[1], int(match[2]), whole) if match else None

    def _find_previous(self, number: int, whole: str) -> GitId:
        """Return where the branch (or commit) stands now that was left ``number`` switches ago."""
        moves = self._refs.logs.read_sound("HEAD")
        left = [entry.switch[0] for entry in moves if entry.switch]
        if number > len(left):
            raise NotFoundError(f"revision {whole!r} does not exist: {len(left)} switches so far")
        name = left[number - 1]
        commit = self._refs.find(HEADS + name)
        if commit is None and is_git_id(name):
            commit = GitId(name)
        if commit is None:
            raise NotFoundError(f"revision {whole!r} does not exist: branch {name!r} is gone")
        return commit

    def _find_tracked(self, short: str, whole: str, *, to_push: bool) -> GitId:
        from mvc.history.refspecs import find_tracked  # noqa: PLC0415  few revisions ask for it

        branch = self._refs.head().branch if short in ("", "@", "HEAD") else short
        tracked = branch and find_tracked(
            self._config.read_all(), branch.removeprefix(HEADS), to_push=to_push
        )
        if not tracked:
            reason = (
                f"branch {branch!r} follows none of a remote" if branch else "HEAD is on no branch"
            )
            raise NotFoundError(
                f"revision {whole!r} does not exist: {reason}",
                hint='"mvc branch -u origin/main" lets a branch follow one',
            )
        commit = self._refs.find(tracked[2])
        if commit is None:
            raise NotFoundError(
                f"revision {whole!r} does not exist: {tracked[2]} is not known yet",
                hint='run "mvc fetch" first',
            )
        return commit

    def _find_move(self, short: str, number: int, whole: str) -> GitId:
        name = self._logged_ref(short, whole)
        current = self._refs.find(name)
        if number == 0 and current is not None:
            return current
        entries = self._refs.logs.read_sound(name)
        object_id = None
        if number < len(entries):
            object_id = entries[number].new
        elif entries and number == len(entries):
            object_id = entries[-1].old  # the oldest entry also knows what was before
        if object_id is None:
            raise NotFoundError(
                f"revision {whole!r} does not exist: the log of {name} has {len(entries)} entries",
                hint=f'"mvc reflog {short or name}" lists them',
            )
        return object_id

    def _logged_ref(self, short: str, whole: str) -> str:
        if short in ("HEAD", "@"):
            return "HEAD"
        if not short:
            branch = self._refs.head().branch
            return HEADS + branch if branch is not None else "HEAD"
        name = self.find_ref_name(short)
        if name is None:
            raise self._unknown(short, whole)
        return name

    def _find_prefix(self, prefix: str) -> GitId | None:
        ids = self._objects.find_prefix(prefix)
        if len(ids) > 1:
            # As in Git: where a commit is asked for, an id of a tree does not make it ambiguous.
            kinds = {
                object_id: (self._objects.find_header(object_id) or ("", 0))[0] for object_id in ids
            }
            commits = [object_id for object_id in ids if kinds[object_id] in ("commit", "tag")]
            if len(commits) != 1:
                shown = ", ".join(
                    f"{object_id} ({kinds[object_id]})" for object_id in ids[:_MAX_SHOWN]
                )
                more = f" and {len(ids) - _MAX_SHOWN} more" if len(ids) > _MAX_SHOWN else ""
                raise NotFoundError(
                    f"short id {prefix!r} is ambiguous: {shown}{more}", hint="give more digits"
                )
            ids = commits
        return ids[0] if ids else None

    def _unknown(self, text: str, whole: str) -> NotFoundError:
        import difflib  # noqa: PLC0415  only to help after a mistake

        known = (name for name in self._refs.names() if name.startswith(_SHORTENED))
        names = [name.split("/", 2)[2] for name in known]
        close = difflib.get_close_matches(text, names, n=3)
        hint = None
        if close:
            hint = "did you mean " + " or ".join(repr(name) for name in close) + "?"
        elif _HEX.fullmatch(text) and len(text) < MIN_PREFIX_DIGITS:
            hint = f"a short id needs {MIN_PREFIX_DIGITS} digits"
        return NotFoundError(f"revision {whole!r} does not exist", hint=hint)


def split_range(text: str) -> tuple[str, str, str] | None:
    """Return (old, dots, new) of ``A..B`` or ``A...B``, HEAD for an empty side, or None."""
    match = _RANGE.fullmatch(text)
    if match is None or _UP.search(text):
        return None
    return match["old"] or "HEAD", match["dots"], match["new"] or "HEAD"
