"""A bisection: how it stands on disk, where and as Git keeps it, and which commit it tests next.

``BISECT_START`` says where HEAD was and that a bisection is going on; it is written first and removed
last. Marks are refs: ``refs/bisect/bad``, ``refs/bisect/good-<id>``, ``refs/bisect/skip-<id>`` (with
the terms in use). ``BISECT_LOG`` is what replays it. Only ``BISECT_TENSORS`` is mvc's own.

Each test should leave half of what is in doubt, whatever its answer. As in Git, in doubt are the bad
commit and its ancestors, without those of good ones. The *weight* of one of them is how many it
reaches, itself included. If it is bad, that many are left in doubt; if it is good, all the others are.
So the best is the one whose smaller half is largest. What is not *counted* (commits that leave a path
alone, say) is never tested and weighs nothing.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from mvc import fs
from mvc.errors import ConflictError, CorruptionError, FormatError, UsageError
from mvc.history.names import is_ref_name
from mvc.workspace.pending import BISECTION

if TYPE_CHECKING:
    from mvc.history.git import GitHistory
    from mvc.history.values import CommitInfo
    from mvc.ids import GitId
    from mvc.workspace.context import Context

REFS = "refs/bisect/"
TERMS, LOG, NAMES, TENSORS = (f"BISECT_{name}" for name in ("TERMS", "LOG", "NAMES", "TENSORS"))
FIRST_PARENT, EXPECTED, UNTOUCHED = "BISECT_FIRST_PARENT", "BISECT_EXPECTED_REV", "BISECT_HEAD"
"""``UNTOUCHED`` is there where nothing is checked out, and names the commit to test."""
DEFAULT_TERMS = ("bad", "good")
SUBCOMMANDS = (
    "start", "bad", "good", "new", "old", "terms", "skip", "next", "reset", "view", "visualize",
    "replay", "log", "run", "help",
)  # fmt: skip
_RANDOM_RANGE = 32768
_MAX_FILE_BYTES = 1 << 22
_RESET = '"mvc bisect reset" ends the bisection'


@dataclass(frozen=True, slots=True)
class BisectOptions:
    """What a bisection is started with."""

    paths: tuple[str, ...] = ()  # only commits that changed these are tested; empty means all
    # only commits that changed tensors of these names (a wildcard) are tested
    tensors: str | None = None
    # what a bad and a good commit are called; None before the first mark
    terms: tuple[str, str] | None = None
    checks_out: bool = True  # whether the commit to test is checked out
    first_parent: bool = False  # whether only first parents are followed

    def words(self, revisions: Sequence[str]) -> list[str]:
        """Return the command line that starts such a bisection."""
        terms = self.terms
        return [
            *([] if terms is None else [f"--term-new={terms[0]}", f"--term-old={terms[1]}"]),
            *([] if self.checks_out else ["--no-checkout"]),
            *(["--first-parent"] if self.first_parent else []),
            *([] if self.tensors is None else [f"--tensors={self.tensors}"]),
            *revisions,
            *(["--", *self.paths] if self.paths else []),
        ]


@dataclass(frozen=True, slots=True)
class Bisection:
    """A bisection that is going on."""

    start: str  # the branch, or the commit, that HEAD was on
    options: BisectOptions  # what it was started with
    bad: GitId | None  # the first commit known to be bad, so far
    good: tuple[GitId, ...]  # those known to be good
    skipped: tuple[GitId, ...]  # those that cannot be tested

    @property
    def terms(self) -> tuple[str, str]:
        """What a bad and a good commit are called."""
        return self.options.terms or DEFAULT_TERMS


def find_bisection(context: Context) -> Bisection | None:
    """Return the bisection that is going on, or None."""
    start = read(context, BISECTION)
    if start is None:
        return None
    terms, saved = None, read(context, TERMS)
    if saved is not None:
        bad, _, good = saved.partition("\n")
        try:
            terms = check_terms(bad, good)
        except UsageError as error:
            raise CorruptionError(f"{TERMS} is damaged: {error.message}", hint=_RESET) from None
    try:
        names = shlex.split(read(context, NAMES) or "")
    except ValueError as error:
        raise CorruptionError(f"{NAMES} is damaged: {error}", hint=_RESET) from None
    options = BisectOptions(
        paths=tuple(names[1:] if names[:1] == ["--"] else names),
        tensors=read(context, TENSORS),
        terms=terms,
        checks_out=context.history.find_ref(UNTOUCHED) is None,
        first_parent=read(context, FIRST_PARENT) is not None,
    )
    marks = context.history.list_refs(REFS).items()
    refs = {name.removeprefix(REFS): commit for name, commit in marks}
    bad, good = terms or DEFAULT_TERMS
    return Bisection(
        start,
        options,
        refs.get(bad),
        tuple(commit for name, commit in refs.items() if name.startswith(f"{good}-")),
        tuple(commit for name, commit in refs.items() if name.startswith("skip-")),
    )


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


def write_start(context: Context, start: str, head: GitId, options: BisectOptions) -> None:
    """Write the files of a new bisection; nothing of an old one is left by then."""
    paths = options.paths
    write(context, BISECTION, start)
    write(context, NAMES, f" {quote(['--', *paths])}" if paths else "")
    if options.terms is not None:
        write(context, TERMS, "\n".join(options.terms))
    if options.tensors is not None:
        write(context, TENSORS, options.tensors)
    if options.first_parent:
        write(context, FIRST_PARENT, "")
    if not options.checks_out:
        write(context, UNTOUCHED, head)


def mark(
    context: Context, terms: tuple[str, str], kind: Literal["bad", "good", "skip"], commit: GitId
) -> str:
    """Record an answer by a ref; return its line for the log."""
    term = kind if kind == "skip" else terms[kind == "good"]
    if kind != "skip" and not (context.git_dir / TERMS).exists():
        write(context, TERMS, "\n".join(terms))
    ref = REFS + (term if kind == "bad" else f"{term}-{commit}")
    expected = context.history.find_ref(ref)
    if expected != commit:
        context.history.update_ref(
            ref, commit, expected=expected, message="bisect", stamp=context.stamp()
        )
    return f"# {term}: {name_commit(context, commit)}"


def name_commit(context: Context, commit: GitId) -> str:
    """Return a commit's name for the log."""
    return f"[{commit}] {context.history.read_commit(commit).subject}"


def clear(context: Context) -> None:
    """Remove everything of the bisection; what says that one is going on comes last."""
    for name, value in context.history.list_refs(REFS).items():
        context.history.delete_ref(name, expected=value, stamp=context.stamp())
    with context.history.lock():
        for path in context.git_dir.glob("BISECT_*"):
            if path.name != BISECTION:
                fs.remove_file(path)
        fs.remove_file(context.git_dir / BISECTION)


def add_to_log(context: Context, lines: Iterable[str]) -> None:
    """Add lines to the log."""
    text = read_log(context) + "".join(f"{line}\n" for line in lines)
    with context.history.lock():
        fs.write_durable(context.git_dir / LOG, [text.encode("utf-8", "surrogateescape")])


def read_log(context: Context) -> str:
    """Return what was said and found so far, in the words that replay it."""
    return read(context, LOG, strip=False) or ""


def parse_log(text: str) -> list[list[str]]:
    """Return the words of each step of a log, without "git bisect" and comments."""
    steps: list[list[str]] = []
    for number, line in enumerate(map(str.strip, text.split("\n")), 1):
        if not line or line.startswith("#"):
            continue
        try:
            words = shlex.split(line)
        except ValueError as error:
            raise FormatError(f"line {number} of the log: {error}") from None
        if words[:2] not in (["git", "bisect"], ["mvc", "bisect"]) or len(words) < 3:  # noqa: PLR2004
            raise FormatError(
                f"line {number} of the log: {line[:80]!r} is not a step of a bisection"
            )
        steps.append(words[2:])
    if not steps or steps[0][0] != "start":
        raise FormatError('not a log of a bisection: it does not begin with "git bisect start"')
    return steps


def parse_start(words: Sequence[str]) -> tuple[list[str], BisectOptions]:
    """Return the revisions and the options of the words after ``start``."""
    end = words.index("--") if "--" in words else len(words)
    terms, tensors, checks_out, first_parent = None, None, True, False
    revisions: list[str] = []
    for word in words[:end]:
        option, equals, value = word.partition("=")
        bad, good = terms or DEFAULT_TERMS
        match option + equals:
            case "--no-checkout":
                checks_out = False
            case "--first-parent":
                first_parent = True
            case "--tensors=":
                tensors = value
            case "--term-new=" | "--term-bad=":
                terms = value, good
            case "--term-old=" | "--term-good=":
                terms = bad, value
            case unknown if unknown.startswith("-"):
                raise FormatError(
                    f"the log starts with option {word[:80]!r}, which mvc does not know"
                )
            case _:
                revisions.append(word)
    paths = tuple(words[end + 1 :])
    return revisions, BisectOptions(paths, tensors, terms, checks_out, first_parent)


def write(context: Context, name: str, line: str) -> None:
    """Write a file of one or two lines."""
    data = f"{line}\n".encode("utf-8", "surrogateescape")
    with context.history.lock():
        fs.write_durable(context.git_dir / name, [data])


def quote(words: Iterable[str]) -> str:
    """Return words as a shell, and Git, would read them again: each in quotes."""
    return " ".join("'" + word.replace("'", "'\\''") + "'" for word in words)


def read(context: Context, name: str, *, strip: bool = True) -> str | None:
    """Return the text of a file of the bisection, or None."""
    try:
        with fs.open_file(context.git_dir / name) as file:
            data = file.read(_MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return None
    if len(data) > _MAX_FILE_BYTES:
        raise CorruptionError(f"{name} is longer than {_MAX_FILE_BYTES:,} bytes", hint=_RESET)
    text = data.decode("utf-8", "surrogateescape")
    return text.strip("\n") if strip else text


def find_untested_base(history: GitHistory, state: Bisection, bad: GitId) -> GitId | None:
    """Return a common ancestor to test first: a good commit on another line says nothing of it."""
    known = {*state.good, *state.skipped}
    for good in state.good:
        if not history.is_ancestor(good, bad):
            others = [other for other in state.good if other != good]
            for base in history.find_merge_bases(bad, good):
                if base not in known and not any(history.is_ancestor(base, it) for it in others):
                    return base
    return None


def find_doubtful(
    history: GitHistory, bad: GitId, good: Sequence[GitId], *, first_parent: bool = False
) -> list[CommitInfo]:
    """Return the commits that may be the first bad one, children before parents."""
    hidden = {info.id for info in history.walk(good)}
    walk = history.walk([bad], first_parent=first_parent)
    return [info for info in walk if info.id not in hidden]


def weigh(
    doubtful: Sequence[CommitInfo], counted: Collection[GitId], *, first_parent: bool = False
) -> dict[GitId, int]:
    """Return commit → how many counted ones it reaches; ``doubtful`` as ``find_doubtful`` gives it."""
    inside = {info.id for info in doubtful}
    parents = {
        info.id: [
            parent for parent in info.parents[: 1 if first_parent else None] if parent in inside
        ]
        for info in doubtful
    }
    weights: dict[GitId, int] = {}
    for info in reversed(doubtful):
        above = parents[info.id]
        if len(above) > 1:  # what both reach must not count twice
            weights[info.id] = sum(parent in counted for parent in _reach(info.id, parents))
        else:
            weights[info.id] = (info.id in counted) + sum(weights[parent] for parent in above)
    return weights


def _reach(start: GitId, parents: Mapping[GitId, Sequence[GitId]]) -> Iterator[GitId]:
    seen, pending = {start}, [start]
    while pending:
        commit = pending.pop()
        yield commit
        new = [parent for parent in parents[commit] if parent not in seen]
        seen.update(new)
        pending += new


def choose(
    weights: Mapping[GitId, int], counted: Collection[GitId], skipped: Collection[GitId]
) -> GitId | None:
    """Return the counted commit that halves best and is not skipped, or None.

    Where the best one was skipped, its neighbours often cannot be tested either: then, as in Git,
    it is one further away, chosen by a generator that gives the same each time.
    """
    total = len(counted)
    ranked = [
        commit for commit in weights if commit in counted
    ]  # in order, so that ties are decided alike
    ranked.sort(key=lambda commit: -min(weights[commit], total - weights[commit]))
    left = [commit for commit in ranked if commit not in skipped]
    if not left or left[0] == ranked[0]:
        return left[0] if left else None
    halves = [commit for commit in left if 0 < weights[commit] < total]
    if not halves:
        return left[0]
    drawn = ((len(halves) * 1103515245 + 12345) >> 16) % _RANDOM_RANGE / _RANDOM_RANGE
    return halves[int(len(halves) * drawn * math.sqrt(drawn))]


def steps_left(count: int) -> int:
    """Return about how many tests find the first bad one of ``count`` commits, as Git says it."""
    if count < 3:  # noqa: PLR2004  the bad one itself and one more
        return 0
    whole = count.bit_length() - 1
    return whole if 2**whole < 3 * (count - 2**whole) else whole - 1
