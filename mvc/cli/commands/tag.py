"""List, create or delete tags."""

from __future__ import annotations

import fnmatch
from typing import TYPE_CHECKING

from mvc.cli.commands.branch import show_deleted
from mvc.cli.options import QUIET_JSON, check_alone, name_and_start
from mvc.cli.output import Output, Shown, pick, printable, warn
from mvc.cli.parameters import CommandUsageError, arguments, flag, string
from mvc.cli.render.text import count_text, number_text, short_id, step_text
from mvc.cli.session import open_repo
from mvc.errors import ConflictError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mvc.operations.best import BestCommit
    from mvc.operations.branch import RefInfo
    from mvc.repo import Repo


def tag(
    names: list[str] = arguments("[NAME [REV]]"),
    annotate: bool = flag("-a, --annotate", "Create an annotated tag; needs -m."),
    message: str | None = string("-m, --message TEXT", "Message of an annotated tag."),
    delete: bool = flag("-d, --delete", "Delete tags."),
    force: bool = flag("-f, --force", "Move an existing tag; the log then shows it as @NAME."),
    by: str | None = string("--by NAME", "Tag the commit with the lowest metric NAME."),
    highest: bool = flag("--max", "With --by: the highest."),
    among: str | None = string("--among A..B", "With --by: only these commits."),
    listed: bool = flag("-l, --list", "List tags, only those that match a NAME if one is given."),
    shown: Shown = QUIET_JSON,
) -> None:
    """List, create or delete tags.

    A tag made or moved by -f or --by is an alias: the log shows it as @NAME, @NAME is a revision,
    and NAME@{1} is its previous commit.

    "mvc tag best --by loss" tags the commit with the lowest loss in the history of HEAD (or REV);
    of equal values the earliest wins. Commits abandoned by a rollback and values that are not
    finite do not count.
    """
    check_alone([("--list", listed), ("--delete", delete), ("--by", by)])
    if by is None and (highest or among is not None):
        raise CommandUsageError("--max and --among need --by")
    if annotate and not (message or "").strip():
        raise CommandUsageError("an annotated tag needs a message: give one with -m")
    if delete:
        if not names:
            raise CommandUsageError("name a tag")
        repo = open_repo()
        plain = (_plain(repo, name) for name in names)
        deleted = [(name, repo.tags.delete(name)) for name in plain]
        show_deleted("Deleted tag '{}' (was {})", deleted, shown)
    elif by is not None:
        _tag_best(names, by, message, among, shown, force=force, highest=highest)
    elif names and not listed:
        written, revision = name_and_start(names)
        repo = open_repo()
        name = _plain(repo, written)
        before = _find_tag(repo, name)
        is_alias = force or (before is None and name != written)
        commit = repo.tags.create(name, revision, message=message, force=is_alias)
        lines = [] if before is None else [_move_text(name, before.commit, commit)]
        shown.answer({"created": {"name": name, "commit": commit}}, Output.lines, lines)
    else:
        _list_tags(names, shown)


def _find_tag(repo: Repo, name: str) -> RefInfo | None:
    return next((ref for ref in repo.tags.list() if ref.name == name), None)


def _plain(repo: Repo, name: str) -> str:
    """Return the name of a tag that may be written as the log shows aliases, with @."""
    return name if _find_tag(repo, name) else name[name[:1] == "@" and len(name) > 1 :]


def _move_text(name: str, before: str, commit: str) -> str:
    name = printable(name)
    if before == commit:
        return f"@{name} is at {short_id(commit)} already"
    back = f'"mvc tag -f {name} {name}@{{1}}" takes it back'
    return f"Moved @{name} from {short_id(before)} to {short_id(commit)} ({back})"


def _tag_best(
    names: Sequence[str],
    metric: str,
    message: str | None,
    among: str | None,
    shown: Shown,
    *,
    force: bool,
    highest: bool,
) -> None:
    """Tag the commit with the best value of a metric; an alias moves without -f."""
    if not names:
        raise CommandUsageError("name the tag: mvc tag best --by NAME")
    written, start = name_and_start(names)
    if among is not None and len(names) > 1:
        raise CommandUsageError(f"{start!r} and --among cannot be used together")
    repo = open_repo()
    name = _plain(repo, written)
    before = _find_tag(repo, name)
    if before is not None and not (force or before.is_alias):
        raise ConflictError(f"tag {name!r} already exists", hint="`force` moves it")
    best = repo.best(metric, among or start, maximise=highest)
    repo.tags.create(name, best.commit, message=message, force=True)
    facts = pick(best, "metric value step compared left_out released=is_released")
    old = None if before is None else before.commit
    created = {"name": name, "commit": best.commit, "before": old, **facts}
    shown.answer({"created": created}, _write_best, name, best, old)


def _write_best(out: Output, name: str, best: BestCommit, before: str | None) -> None:
    step = step_text(best.step)
    which = "highest" if best.maximise else "lowest"
    text = f"{printable(best.metric)} {number_text(best.value)} is the {which}"
    out.line(
        f"@{printable(name)} is {short_id(best.commit)}{step}: {text} of {count_text(best.compared, 'commit')}"
        + (f", {best.left_out:,} more do not count" if best.left_out else "")
    )
    if best.is_released:
        warn(f"content of {short_id(best.commit)} was released: it cannot be checked out")
    if before is not None:
        out.line(_move_text(name, before, best.commit))


def _list_tags(globs: Sequence[str], shown: Shown) -> None:
    repo = open_repo()
    found = [
        ref
        for ref in repo.tags.list()
        if not globs or any(fnmatch.fnmatchcase(ref.name, glob) for glob in globs)
    ]

    def fields() -> list[dict[str, object]]:
        messages = (repo.tags.message(f"refs/tags/{ref.name}") for ref in found)
        facts = (pick(ref, "name commit subject alias=is_alias") for ref in found)
        return [{**fact, "message": text} for fact, text in zip(facts, messages, strict=True)]

    shown.aloud().page(fields, Output.lines, (printable(ref.name) for ref in found))
