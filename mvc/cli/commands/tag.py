"""List, create or delete tags."""

from __future__ import annotations

import fnmatch
from typing import TYPE_CHECKING

from mvc.cli.commands.branch import write_deleted
from mvc.cli.options import JSON, QUIET, check_alone, name_and_start
from mvc.cli.output import Shown, paged, pick, printable, stdout, warn, write_json
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
    quiet: bool = QUIET,
    as_json: bool = JSON,
) -> None:
    """List, create or delete tags.

    A tag made or moved by -f or --by is an alias: the log shows it as @NAME, @NAME is a revision,
    and NAME@{1} is its previous commit.

    "mvc tag best --by loss" tags the commit with the lowest loss in the history of HEAD (or REV);
    of equal values the earliest wins. Commits abandoned by a rollback and values that are not
    finite do not count.
    """
    given = names or []
    check_alone([("--list", listed), ("--delete", delete), ("--by", by)])
    if by is None and (highest or among is not None):
        raise CommandUsageError("--max and --among need --by")
    if annotate and not (message or "").strip():
        raise CommandUsageError("an annotated tag needs a message: give one with -m")
    if delete:
        if not given:
            raise CommandUsageError("name a tag")
        repo = open_repo()
        deleted = [(name, repo.tags.delete(name)) for name in (_plain(repo, one) for one in given)]
        write_deleted("Deleted tag '{}' (was {})", deleted, quiet=quiet, as_json=as_json)
    elif by is not None:
        shown = Shown(quiet, progress=False, as_json=as_json)
        _tag_best(given, by, message, among, shown, force=force, highest=highest)
    elif given and not listed:
        written, revision = name_and_start(given)
        repo = open_repo()
        name = _plain(repo, written)
        before = _find_tag(repo, name)
        is_alias = force or (before is None and name != written)
        commit = repo.tags.create(name, revision, message=message, force=is_alias)
        if as_json:
            write_json({"created": {"name": name, "commit": commit}})
        elif before is not None and not quiet:
            _write_move(name, before.commit, commit)
    else:
        _list_tags(given, as_json=as_json)


def _find_tag(repo: Repo, name: str) -> RefInfo | None:
    return next((ref for ref in repo.tags.list() if ref.name == name), None)


def _plain(repo: Repo, name: str) -> str:
    """Return the name of a tag that may be written as the log shows aliases, with @."""
    return name if _find_tag(repo, name) else name[name[:1] == "@" and len(name) > 1 :]


def _write_move(name: str, before: str, commit: str) -> None:
    alias = f"@{printable(name)}"
    if before == commit:
        stdout().line(f"{alias} is at {short_id(commit)} already")
    else:
        back = f'"mvc tag -f {printable(name)} {printable(name)}@{{1}}" takes it back'
        stdout().line(f"Moved {alias} from {short_id(before)} to {short_id(commit)} ({back})")


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
    if shown.as_json:
        fields = pick(best, "metric value step compared left_out released=is_released")
        old = None if before is None else before.commit
        write_json({"created": {"name": name, "commit": best.commit, "before": old, **fields}})
    elif not shown.quiet:
        _write_best(name, best)
        if before is not None:
            _write_move(name, before.commit, best.commit)


def _write_best(name: str, best: BestCommit) -> None:
    step = step_text(best.step)
    which = "highest" if best.maximise else "lowest"
    text = f"{printable(best.metric)} {number_text(best.value)} is the {which}"
    stdout().line(
        f"@{printable(name)} is {short_id(best.commit)}{step}: {text} of {count_text(best.compared, 'commit')}"
        + (f", {best.left_out:,} more do not count" if best.left_out else "")
    )
    if best.is_released:
        warn(f"content of {short_id(best.commit)} was released: it cannot be checked out")


def _list_tags(globs: Sequence[str], *, as_json: bool) -> None:
    repo = open_repo()
    found = [
        ref
        for ref in repo.tags.list()
        if not globs or any(fnmatch.fnmatchcase(ref.name, glob) for glob in globs)
    ]
    if as_json:
        write_json(
            [
                {
                    **pick(ref, "name commit subject alias=is_alias"),
                    "message": repo.tags.message(f"refs/tags/{ref.name}"),
                }
                for ref in found
            ]
        )
    else:
        paged().lines(printable(ref.name) for ref in found)
