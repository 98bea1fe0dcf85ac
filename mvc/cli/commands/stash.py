"""Save local changes for later and restore them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from mvc.cli.errors import NEGATIVE
from mvc.cli.options import QUIET_PROGRESS_JSON
from mvc.cli.output import Output, Shown, pick, printable
from mvc.cli.parameters import CommandUsageError, Exit, arguments, flag, string
from mvc.cli.progress import byte_progress
from mvc.cli.render.merges import merge_fields, write_conflicts
from mvc.cli.render.moves import write_counts
from mvc.cli.sequence import STRATEGIES
from mvc.cli.session import open_repo, to_paths

if TYPE_CHECKING:
    from mvc.operations.merge import MergeResult
    from mvc.operations.stash import StashEntry
    from mvc.repo import Repo

_VERBS = ("push", "pop", "apply", "list", "show", "drop", "clear")
_NUMBER = re.compile(r"(?:stash@\{)?([0-9]{1,9})\}?")


def stash(
    words: list[str] = arguments("[SUBCOMMAND [N]] [[--] PATH]..."),
    message: str | None = string("-m, --message TEXT", "push: the message of the stash."),
    untracked: bool = flag("-u, --include-untracked", "push: take untracked files too."),
    keep_index: bool = flag("-k, --keep-index", "push: leave what is staged as it is."),
    index: bool = flag("--index", "pop, apply: stage what was staged then."),
    choices: dict[str, Any] = STRATEGIES,
    shown: Shown = QUIET_PROGRESS_JSON,
) -> None:
    """Save local changes for later and restore them.

    push (the default) saves the changes in the index and the worktree and restores both to HEAD.
    With PATHs it saves only their changes.

    list shows the stashes, show N the changes in one. pop merges the newest stash, or number N,
    into the worktree and drops it; apply merges it and keeps it. drop deletes one, clear deletes
    all.

    After a conflict the stash is kept. "mvc add" accepts the files as they are; or run "mvc reset
    --hard" and try again with --rule or --strategy ("theirs" is the stash).
    """
    verb, number, paths = _parse(words)
    strategy, rules = choices["strategy"], choices["rules"]
    given = {
        ("push",): {"-m": message, "-u": untracked, "-k": keep_index},
        ("pop", "apply"): {"--index": index, "--strategy": strategy, "--rule": rules},
    }
    for verbs, options in given.items():
        for option, value in options.items():
            if value and verb not in verbs:
                raise CommandUsageError(f"{option} is for {' and '.join(verbs)}")
    repo = open_repo()
    if verb not in ("push", "pop", "apply"):
        _look(repo, verb, number, shown)
        return
    with byte_progress("stashing", wanted=shown.progress):
        if verb == "push":
            made = repo.stash(
                message, paths=to_paths(paths), untracked=untracked, keep_index=keep_index
            )  # fmt: skip
            text = "No local changes to save" if made is None else f"Saved {_title(made)}"
            shown.answer(None if made is None else _fields(made), Output.line, text)
            return
        pop = verb == "pop"
        result = repo.stash_apply(number, pop=pop, index=index, **choices)
    shown = shown.aloud(when=bool(result.conflicts))
    shown.answer(merge_fields(result), _write_applied, result, number if pop else None)
    if result.conflicts:
        raise Exit(NEGATIVE)


def _write_applied(out: Output, result: MergeResult, dropped: int | None) -> None:
    write_conflicts(out, result.conflicts)
    write_counts(out, result)
    if result.conflicts:
        out.line('The stash is kept. "mvc status" lists what to decide.')
    elif dropped is not None:
        out.line(f"Dropped stash@{{{dropped}}} ({result.heads[0]})")


def _parse(words: list[str]) -> tuple[str, int, list[str]]:
    """Return the subcommand, the number of a stash, and paths."""
    place = words.index("--") if "--" in words else len(words)
    words, paths = words[:place], words[place + 1 :]
    verb, *rest = words or ["push"]
    if verb == "save":
        raise CommandUsageError("'save' is 'push' with a message: mvc stash push -m TEXT")
    if verb == "push":
        return verb, 0, [*rest, *paths]
    if verb not in _VERBS:
        raise CommandUsageError(f"{verb!r} is not one of {', '.join(_VERBS)}")
    rest += paths
    if len(rest) > (verb not in ("list", "clear")):
        raise CommandUsageError(f"unexpected argument {rest[-1]!r}")
    match = _NUMBER.fullmatch(rest[0]) if rest else None
    if rest and match is None:
        raise CommandUsageError(f"{rest[0]!r} is not the number of a stash")
    return verb, int(match[1]) if match else 0, []


def _look(repo: Repo, verb: str, number: int, shown: Shown) -> None:
    if verb == "clear":
        count = repo.stash_clear()
        shown.answer({"dropped": count}, Output.line, f"Dropped {count:,}")
    elif verb == "drop":
        dropped = repo.stash_drop(number)
        text = f"Dropped {_title(dropped)} ({dropped.commit})"
        shown.answer(_fields(dropped), Output.line, text)
    elif verb == "list":
        entries = repo.stashes()
        fields = {"stashes": list(map(_fields, entries))}
        shown.aloud().page(fields, Output.lines, map(_title, entries))
    else:
        from mvc.cli.render.files import diff_fields, write_diff
        from mvc.operations.stash import pick_stash

        entry = pick_stash(repo.stashes(), number)
        files = repo.diff(f"{entry.commit}^1", entry.commit)
        shown.aloud().page(diff_fields(files), write_diff, files, "rows", everything=False)


def _fields(entry: StashEntry) -> dict[str, object]:
    return pick(entry, "number commit message time_s")


def _title(entry: StashEntry) -> str:
    return f"stash@{{{entry.number}}}: {printable(entry.message)}"
