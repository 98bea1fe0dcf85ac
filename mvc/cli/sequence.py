"""What cherry-pick and revert have in common: options, and ways to go on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from mvc.cli.errors import NEGATIVE
from mvc.cli.options import CommandUsageError, check_alone
from mvc.cli.output import stdout, write_json
from mvc.cli.parameters import Exit, Option
from mvc.cli.progress import byte_progress
from mvc.cli.render.merges import merge_fields, write_merge, write_returned
from mvc.cli.render.moves import result_fields
from mvc.cli.session import open_repo

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mvc.operations.merge import MergeResult
    from mvc.repo import Repo

Mainline = Annotated[
    int | None,
    Option("-m", "--mainline", metavar="N", help="Compare a merge with its N-th parent, from 1."),
]
NoCommit = Annotated[bool, Option("-n", "--no-commit", help="Stage the changes only.")]
Continue = Annotated[
    bool, Option("--continue", help="Continue, with --rule or --strategy if anything is undecided.")
]
Skip = Annotated[bool, Option("--skip", help="Leave this commit out and continue with the rest.")]
Abort = Annotated[bool, Option("--abort", help="Give up and go back to where it began.")]


def run_sequence(
    verb: Literal["cherry-pick", "revert"],
    commits: Sequence[str],
    told: Mapping[str, Any],
    options: Mapping[str, Any],
    *,
    no_gate: bool,
    ways: Mapping[str, bool],
    output: tuple[bool, bool, bool],
) -> None:
    """Run a cherry-pick or revert, or go on with one.

    ``ways`` are the options that go on; ``output`` says whether to be quiet, to show progress, and to
    print JSON.
    """
    check_alone([*ways.items(), ("REV", commits)])
    for name in ("--skip", "--abort"):
        check_alone([(name, ways[name]), ("--no-gate", no_gate)])
    way = next((name for name, is_given in ways.items() if is_given), None)
    if way is None and not commits:
        raise CommandUsageError("which commit?")
    quiet, progress, as_json = output
    repo = open_repo()
    if way == "--abort":
        returned = repo.abort(verb)
        if as_json:
            write_json(result_fields(returned))
        elif not quiet:
            write_returned(stdout(), repo, verb, returned)
        return
    with byte_progress(verb, wanted=progress and not quiet) as bar:
        result = _run(repo, verb, commits, {**told, "no_gate": no_gate}, options, way, bar)
    if as_json:
        write_json(merge_fields(result))
    elif not quiet or result.conflicts:
        write_merge(repo, stdout(), verb, result)
    if result.conflicts:
        raise Exit(NEGATIVE)


def _run(
    repo: Repo,
    verb: Literal["cherry-pick", "revert"],
    commits: Sequence[str],
    told: Mapping[str, Any],
    options: Mapping[str, Any],
    way: str | None,
    bar: Any,
) -> MergeResult:
    if way == "--skip":
        return repo.skip(verb, progress=bar)
    if way == "--continue":
        return repo.conclude(verb, **told, progress=bar)
    start = repo.cherry_pick if verb == "cherry-pick" else repo.revert
    return start(*commits, **told, **options, progress=bar)
