"""Options and arguments that several commands have, and combinations that make no sense."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.cli.output import Shown
from mvc.cli.parameters import CommandUsageError, flag, integer, option_set, string

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def _show(*, quiet: bool = False, progress: bool = False, as_json: bool = False) -> Shown:
    return Shown(quiet, progress and not quiet, as_json)


def read_age(age: str) -> int:
    """Return the seconds of an age such as ``12h``; ``now`` is 0."""
    from mvc.upkeep.durations import parse_duration

    return 0 if age in ("0", "now") else parse_duration(age)


def read_rate(rate: str) -> int:
    """Return the bytes per second of a rate such as ``20M``."""
    from mvc.storage.limited import parse_rate

    return parse_rate(rate)


_JSON = flag("--json", "Print the result as JSON (docs/json.md).")
_QUIET = flag("-q, --quiet", "Print errors and warnings only.")
_PROGRESS = flag("--progress / --no-progress", "Show a progress bar on a terminal.", default=True)
JSON = option_set(_show, as_json=_JSON)
QUIET_JSON = option_set(_show, quiet=_QUIET, as_json=_JSON)
PROGRESS_JSON = option_set(_show, progress=_PROGRESS, as_json=_JSON)
QUIET_PROGRESS_JSON = option_set(_show, quiet=_QUIET, progress=_PROGRESS, as_json=_JSON)
DRY_RUN = flag("-n, --dry-run", "Print what would be done without doing it.")
CONTENT = string("--content URL", "The store of what is in checkpoints, of a Git host.")
LIMIT_RATE = string(
    "--limit-rate RATE", "Send or read at most RATE a second: 500K, 20M, 1G.", read=read_rate
)
FORCE = flag("-f, --force", "Discard local changes that are in the way.")
LIMIT = integer("-n, --max-count N", "Show at most N; -N is short for it.")
TENSORS = string("--tensors GLOB", "Only these tensors: a name, a module or a wildcard.")
DELTA = flag(
    "--delta / --no-delta",
    "Store tensors as differences from the last commit if that is smaller, or never do.",
    default=None,
)
GRACE = string(
    "--grace AGE", "Keep garbage younger than AGE: now, 12h, 7d, 2w (default).", read=read_age
)
NO_GATE = flag("--no-gate", "Commit even if a gate fails (mvc config gate.nan 0).")
STAT = flag("--stat", "Print one line per file.")
HTML = string("--html FILE", "Write the report as a web page.")


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


def check_options(verb: str, options: Mapping[str, object], allowed: str) -> None:
    """Check that only options were given that go with a verb; all have a long name."""
    for name, value in options.items():
        is_given = value is not None and value is not False and value != []  # 0 is given
        if is_given and name not in allowed.split():
            raise CommandUsageError(f"--{name} does not go with {verb}")


def check_no_more(words: Sequence[str], most: int) -> None:
    """Check that there are no more words than a command takes."""
    if len(words) > most:
        raise CommandUsageError(f"unexpected argument {words[most]!r}")


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
    check_no_more(names, 2)
    name, start = [*names, "HEAD"][:2]
    return name, start
