"""What merge, cherry-pick, revert and stash have in common: options, and ways to go on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from mvc.cli.errors import NEGATIVE
from mvc.cli.options import check_alone
from mvc.cli.output import Shown
from mvc.cli.parameters import Exit, integer, option_set, string, strings
from mvc.cli.render.merges import merge_fields, parse_choices, write_merge, write_returned
from mvc.cli.render.moves import result_fields

if TYPE_CHECKING:
    from mvc.operations.merge import FastForward, MergeResult
    from mvc.repo import Repo

    Verb = Literal["merge", "cherry-pick", "revert"]


_STRATEGY = string(
    "--strategy NAME", "Resolve conflicts by: ours, theirs, base, or a merge method."
)
_RULES = strings(
    "--rule GLOB=STRATEGY",
    "The strategy for tensors or files that match GLOB; the first match wins.",
)
STRATEGIES = option_set(parse_choices, strategy=_STRATEGY, rules=_RULES)
METHODS = option_set(
    parse_choices,
    strategy=_STRATEGY,
    rules=_RULES,
    parameters=strings("--param NAME=VALUE", "A parameter of the merge method."),
    seed=integer("--seed N", "Seed of methods that draw random numbers.", default=0),
)


def fast_forward(*, only: bool, never: bool) -> FastForward:
    """Return what ``--ff-only`` and ``--no-ff`` say of fast-forwards."""
    check_alone([("--ff-only", only), ("--no-ff", never)])
    return "only" if only else "never" if never else "allowed"


def show_merge(repo: Repo, verb: Verb, result: MergeResult, shown: Shown, **more: object) -> None:
    """Show what a merge did, and in JSON ``more``; conflicts are a negative answer."""
    shown = shown.aloud(when=bool(result.conflicts))
    shown.answer({**merge_fields(result), **more}, write_merge, repo, verb, result)
    if result.conflicts:
        raise Exit(NEGATIVE)


def give_up(repo: Repo, verb: Verb, shown: Shown) -> None:
    """Go back to where a merge, cherry-pick or revert began, and show that."""
    returned = repo.abort(verb)
    shown.answer(result_fields(returned), write_returned, repo, verb, returned)
