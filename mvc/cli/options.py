"""Options and arguments that several commands have, and combinations that make no sense."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Annotated

from mvc.cli.parameters import Option
from mvc.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

Json = Annotated[bool, Option("--json", help="Print the result as JSON (docs/json.md).")]
Quiet = Annotated[bool, Option("-q", "--quiet", help="Print errors and warnings only.")]
ShowProgress = Annotated[
    bool,
    Option(
        "--progress/--no-progress", show_default=False, help="Show a progress bar on a terminal."
    ),
]
DryRun = Annotated[
    bool, Option("-n", "--dry-run", help="Print what would be done without doing it.")
]
Content = Annotated[
    str | None,
    Option("--content", metavar="URL", help="The store of what is in checkpoints, of a Git host."),
]
LimitRate = Annotated[
    str | None,
    Option(
        "--limit-rate", metavar="RATE", help="Send or read at most RATE a second: 500K, 20M, 1G."
    ),
]
Force = Annotated[bool, Option("-f", "--force", help="Discard local changes that are in the way.")]
Limit = Annotated[
    int | None, Option("-n", "--max-count", metavar="N", help="Show at most N; -N is short for it.")
]
Tensors = Annotated[
    str | None,
    Option("--tensors", metavar="GLOB", help="Only these tensors: a name, a module or a wildcard."),
]
Delta = Annotated[
    bool | None,
    Option(
        "--delta/--no-delta",
        show_default=False,
        help="Store tensors as differences from the last commit if that is smaller, or never do.",
    ),
]
Grace = Annotated[
    str | None,
    Option(
        "--grace", metavar="AGE", help="Keep garbage younger than AGE: now, 12h, 7d, 2w (default)."
    ),
]
NoGate = Annotated[
    bool, Option("--no-gate", help="Commit even if a gate fails (mvc config gate.nan 0).")
]
Stat = Annotated[bool, Option("--stat", help="Print one line per file.")]
NameOnly = Annotated[bool, Option("--name-only", help="Print paths only.")]
NameStatus = Annotated[
    bool, Option("--name-status", help="Print paths and a letter: A, D, M or R.")
]
Stats = Annotated[
    bool, Option("--stats", help="Compare values: how far did each tensor move? See docs/guide.md.")
]
By = Annotated[
    str | None,
    Option("--by", metavar="KIND", help="With --stats, list all rows by: tensor, module, kind."),
]
SortBy = Annotated[
    str | None,
    Option(
        "--sort",
        metavar="KIND",
        help="With --stats, sort, largest first, by: sigma, l2, cosine, max, changed, ulp, norm, name.",
    ),
]
Spectral = Annotated[
    bool,
    Option("--spectral", help="With --stats, also the rank of each difference: would a LoRA do?"),
]
Above = Annotated[
    str | None,
    Option("--above", metavar="X", help="With --stats, only rows whose sigma is above X: 1e-3."),
]
Html = Annotated[
    str | None,
    Option("--html", metavar="FILE", help="Write the report as a web page."),
]
Png = Annotated[
    str | None,
    Option("--png", metavar="FILE", help="Write the overview of the report as a picture."),
]
All = Annotated[
    bool,
    Option("--all", help="List every tensor, also in new and removed files and in long lists."),
]


def age_seconds(age: str | None) -> int | None:
    """Return the seconds of an age such as ``12h``; ``now`` is 0."""
    from mvc.upkeep.durations import parse_duration

    return None if age is None else 0 if age in ("0", "now") else parse_duration(age)


def read_rate(rate: str | None) -> int | None:
    """Return the bytes per second of a rate such as ``20M``."""
    from mvc.storage.limited import parse_rate

    return None if rate is None else parse_rate(rate)


class CommandUsageError(UsageError):
    """Arguments make no sense together; what runs the command adds a hint that names it."""


@contextlib.contextmanager
def name_in_hint(command: str) -> Iterator[None]:
    """Let usage errors of a command name it in their hint."""
    try:
        yield
    except CommandUsageError as error:
        error.hint = f'"{command} --help" shows its usage'
        raise


def check_alone(chosen: Sequence[tuple[str, object]]) -> None:
    """Check that at most one of these (option, value) pairs was given."""
    given = [name for name, value in chosen if value]
    if len(given) > 1:
        raise CommandUsageError(f"{given[0]} and {given[1]} cannot be used together")


def check_clashes(clashes: Mapping[str, Sequence[str]], given: Mapping[str, object]) -> None:
    """Check that no option was given together with one that ``clashes`` names for it."""
    for option, others in clashes.items():
        for other in others:
            check_alone([(option, given.get(option)), (other, given.get(other))])


def choose_one(options: Mapping[str, bool], default: str) -> str:
    """Return the one option that was given, without its dashes, or ``default``."""
    check_alone([(f"--{name}", value) for name, value in options.items()])
    return next((name for name, value in options.items() if value), default)


def check_limit(limit: int | None) -> None:
    """Check that ``-n`` is not negative."""
    if limit is not None and limit < 0:
        raise CommandUsageError(f"-n {limit} is negative")


def name_and_start(names: Sequence[str]) -> tuple[str, str]:
    """Return a new name and the revision to give it to: HEAD if omitted."""
    if len(names) > 2:  # noqa: PLR2004  name and start
        raise CommandUsageError(f"unexpected argument {names[2]!r}")
    name, start = [*names, "HEAD"][:2]
    return name, start
