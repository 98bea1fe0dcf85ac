"""What merge, cherry-pick, revert and stash have in common: options, and ways to go on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from mvc.cli.errors import NEGATIVE
from mvc.cli.options import check_alone
from mvc.cli.output import Shown, printable, stdout, write_json
from mvc.cli.parameters import CommandUsageError, Exit, flag, integer, string, strings
from mvc.cli.progress import byte_progress
from mvc.cli.render.merges import merge_fields, write_merge, write_returned
from mvc.cli.render.moves import result_fields
from mvc.cli.render.text import short_id
from mvc.cli.session import open_repo

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mvc.operations.merge import MergeResult
    from mvc.repo import Repo

    Verb = Literal["merge", "cherry-pick", "revert"]

STRATEGY = string("--strategy NAME", "Resolve conflicts by: ours, theirs, base, or a merge method.")
RULES = strings(
    "--rule GLOB=STRATEGY",
    "The strategy for tensors or files that match GLOB; the first match wins.",
)
PARAMETERS = strings("--param NAME=VALUE", "A parameter of the merge method.")
SEED = integer("--seed N", "Seed of methods that draw random numbers.", default=0)
MAINLINE = integer("-m, --mainline N", "Compare a merge with its N-th parent, from 1.")
NO_COMMIT = flag("-n, --no-commit", "Stage the changes only.")
CONTINUE = flag("--continue", "Continue, with --rule or --strategy if anything is undecided.")
SKIP = flag("--skip", "Leave this commit out and continue with the rest.")
ABORT = flag("--abort", "Give up and go back to where it began.")


def show_merge(repo: Repo, verb: Verb, result: MergeResult, shown: Shown, **more: object) -> None:
    """Show what a merge did, and in JSON ``more``; conflicts are a negative answer."""
    if shown.as_json:
        write_json({**merge_fields(result), **more})
    elif not shown.quiet or result.conflicts:
        write_merge(repo, stdout(), verb, result)
    if result.conflicts:
        raise Exit(NEGATIVE)


def give_up(repo: Repo, verb: Verb, shown: Shown) -> None:
    """Go back to where a merge, cherry-pick or revert began, and show that."""
    returned = repo.abort(verb)
    if shown.as_json:
        write_json(result_fields(returned))
    elif not shown.quiet:
        write_returned(stdout(), repo, verb, returned)


def run_sequence(
    verb: Literal["cherry-pick", "revert"],
    commits: Sequence[str],
    choices: Mapping[str, Any],
    options: Mapping[str, Any],
    *,
    no_gate: bool,
    ways: Mapping[str, bool],
    shown: Shown,
) -> None:
    """Run a cherry-pick or revert, or go on with one; ``ways`` are the options that go on."""
    check_alone([*ways.items(), ("REV", commits)])
    for name in ("--skip", "--abort"):
        check_alone([(name, ways[name]), ("--no-gate", no_gate)])
    way = next((name for name, is_given in ways.items() if is_given), None)
    if way is None and not commits:
        raise CommandUsageError("which commit?")
    repo = open_repo()
    if way == "--abort":
        give_up(repo, verb, shown)
        return
    before = repo.head.commit
    with byte_progress(verb, wanted=shown.progress) as bar:
        result = _run(repo, verb, commits, {**choices, "no_gate": no_gate}, options, way, bar)
    if not (shown.quiet or shown.as_json) and result.commit != before:
        # A line for each new commit; ``write_merge`` writes one for the last itself.
        out, where = stdout(), printable(repo.head.branch or "detached HEAD")
        commits_made = list(repo.log(f"{before}..{result.commit}"))
        for entry in reversed(commits_made[result.kind == "merged" :]):
            short = out.style(short_id(entry.id), "yellow")
            out.line(f"[{where} {short}] {printable(entry.subject)}")
    show_merge(repo, verb, result, shown)


def _run(
    repo: Repo,
    verb: Literal["cherry-pick", "revert"],
    commits: Sequence[str],
    choices: Mapping[str, Any],
    options: Mapping[str, Any],
    way: str | None,
    bar: Any,
) -> MergeResult:
    if way == "--skip":
        return repo.skip(verb, progress=bar)
    if way == "--continue":
        return repo.conclude(verb, **choices, progress=bar)
    start = repo.cherry_pick if verb == "cherry-pick" else repo.revert
    return start(*commits, **choices, **options, progress=bar)
