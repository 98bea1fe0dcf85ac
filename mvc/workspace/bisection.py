"""A bisection as it stands on disk, where and as Git keeps it, so that stock Git can go on with it.

``BISECT_START`` says where HEAD was and that a bisection is going on; it is written first and removed
last. Marks are refs: ``refs/bisect/bad``, ``refs/bisect/good-<id>``, ``refs/bisect/skip-<id>`` (with
the terms in use). ``BISECT_LOG`` is what replays it. Only ``BISECT_TENSORS`` is mvc's own.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc import fs
from mvc.errors import ConflictError, CorruptionError, NotFoundError, UsageError
from mvc.history.refnames import is_ref_name
from mvc.workspace.pending import BISECTION

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mvc.ids import GitId
    from mvc.workspace.context import Context

REFS = "refs/bisect/"
START = BISECTION
TERMS, LOG, NAMES, TENSORS = (f"BISECT_{name}" for name in ("TERMS", "LOG", "NAMES", "TENSORS"))
FIRST_PARENT, EXPECTED, UNTOUCHED = "BISECT_FIRST_PARENT", "BISECT_EXPECTED_REV", "BISECT_HEAD"
"""``UNTOUCHED`` is there where nothing is checked out, and names the commit to test."""
DEFAULT_TERMS = ("bad", "good")
SUBCOMMANDS = (
    "start", "bad", "good", "new", "old", "terms", "skip", "next", "reset", "view", "visualize",
    "replay", "log", "run", "help",
)  # fmt: skip
_MAX_FILE_BYTES = 1 << 22
_RESET = '"mvc bisect reset" ends the bisection'


@dataclass(frozen=True, slots=True)
class Bisection:
    """A bisection that is going on.

    Attributes:
        start: the branch, or the commit, that HEAD was on.
        terms: what a bad and a good commit are called; None before the first mark.
        bad: the first commit known to be bad, so far.
        good: those known to be good.
        skipped: those that cannot be tested.
        paths: only commits that changed these are tested; empty means all.
        tensors: only commits that changed tensors of these names (a wildcard) are tested.
        checks_out: whether the commit to test is checked out.
        first_parent: whether only first parents are followed.
    """

    start: str
    terms: tuple[str, str] | None
    bad: GitId | None
    good: tuple[GitId, ...]
    skipped: tuple[GitId, ...]
    paths: tuple[str, ...]
    tensors: str | None
    checks_out: bool
    first_parent: bool

    @property
    def words(self) -> tuple[str, str]:
        """What a bad and a good commit are called."""
        return self.terms or DEFAULT_TERMS


def find_bisection(context: Context) -> Bisection | None:
    """Return the bisection that is going on, or None."""
    start = find_start(context)
    if start is None:
        return None
    terms = _read_terms(context)
    try:
        names = shlex.split(_read(context, NAMES) or "")
    except ValueError as error:
        raise CorruptionError(f"{NAMES} is damaged: {error}", hint=_RESET) from None
    marks = context.history.list_refs(REFS).items()
    refs = {name.removeprefix(REFS): commit for name, commit in marks}
    bad, good = terms or DEFAULT_TERMS
    return Bisection(
        start,
        terms,
        refs.get(bad),
        tuple(commit for name, commit in refs.items() if name.startswith(f"{good}-")),
        tuple(commit for name, commit in refs.items() if name.startswith("skip-")),
        tuple(names[1:] if names[:1] == ["--"] else names),
        _read(context, TENSORS),
        context.history.find_ref(UNTOUCHED) is None,
        _read(context, FIRST_PARENT) is not None,
    )


def find_start(context: Context) -> str | None:
    """Return the branch, or the commit, that HEAD was on before the bisection, or None."""
    return _read(context, START)


def _read_terms(context: Context) -> tuple[str, str] | None:
    text = _read(context, TERMS)
    if text is None:
        return None
    bad, _, good = text.partition("\n")
    try:
        return check_terms(bad, good)
    except UsageError as error:
        raise CorruptionError(f"{TERMS} is damaged: {error.message}", hint=_RESET) from None


def get_bisection(context: Context) -> Bisection:
    """Return the bisection that is going on; ConflictError if there is none."""
    bisection = find_bisection(context)
    if bisection is None:
        raise ConflictError(
            "no bisection is under way", hint='"mvc bisect start BAD GOOD" starts one'
        )
    return bisection


def check_terms(bad: str, good: str) -> tuple[str, str]:
    """Return what a bad and a good commit are to be called, if that is possible."""
    for term, other in ((bad, ("good", "old")), (good, ("bad", "new"))):
        is_taken = term in SUBCOMMANDS and term not in ("bad", "good", "new", "old")
        if not is_ref_name(REFS + term) or "/" in term or is_taken or term in other:
            raise UsageError(f"{term!r} is not a valid term", hint="choose another word")
    if bad == good:
        raise UsageError(f"both terms are {bad!r}", hint="choose two words")
    return bad, good


def write_start(
    context: Context,
    start: str,
    terms: tuple[str, str] | None,
    paths: Sequence[str],
    tensors: str | None,
    *,
    checks_out: bool,
    first_parent: bool,
) -> None:
    """Write the files of a new bisection; nothing of an old one is left by then."""
    write(context, START, start)
    write(context, NAMES, f" {quote(['--', *paths])}" if paths else "")
    if terms is not None:
        write(context, TERMS, "\n".join(terms))
    if tensors is not None:
        write(context, TENSORS, tensors)
    if first_parent:
        write(context, FIRST_PARENT, "")
    if not checks_out:
        head = context.history.head().commit
        if head is None:
            raise NotFoundError("there is no commit yet", hint='make one with "mvc commit"')
        write(context, UNTOUCHED, head)


def mark(context: Context, name: str, commit: GitId) -> None:
    """Make a ref of the bisection point to a commit."""
    ref = REFS + name
    expected = context.history.find_ref(ref)
    if expected != commit:
        context.history.update_ref(
            ref, commit, expected=expected, message="bisect", stamp=context.stamp()
        )


def clear(context: Context) -> None:
    """Remove everything of the bisection; what says that one is going on comes last."""
    for name, value in context.history.list_refs(REFS).items():
        context.history.delete_ref(name, expected=value, stamp=context.stamp())
    with context.history.lock():
        for path in context.git_dir.glob("BISECT_*"):
            if path.name != START:
                fs.remove_file(path)
        fs.remove_file(context.git_dir / START)


def read_log(context: Context) -> str:
    """Return what was said and found so far, in the words that replay it."""
    return _read(context, LOG, strip=False) or ""


def add_to_log(context: Context, lines: Iterable[str]) -> None:
    """Add lines to the log."""
    text = read_log(context) + "".join(f"{line}\n" for line in lines)
    with context.history.lock():
        fs.write_durable(context.git_dir / LOG, [text.encode("utf-8", "surrogateescape")])


def write(context: Context, name: str, line: str) -> None:
    """Write a file of one or two lines."""
    data = f"{line}\n".encode("utf-8", "surrogateescape")
    with context.history.lock():
        fs.write_durable(context.git_dir / name, [data])


def quote(words: Iterable[str]) -> str:
    """Return words as a shell, and Git, would read them again: each in quotes."""
    return " ".join("'" + word.replace("'", "'\\''") + "'" for word in words)


def _read(context: Context, name: str, *, strip: bool = True) -> str | None:
    try:
        with fs.open_file(context.git_dir / name) as file:
            data = file.read(_MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return None
    if len(data) > _MAX_FILE_BYTES:
        raise CorruptionError(f"{name} is longer than {_MAX_FILE_BYTES:,} bytes", hint=_RESET)
    text = data.decode("utf-8", "surrogateescape")
    return text.strip("\n") if strip else text
