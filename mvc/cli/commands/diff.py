"""diff, show: which files and tensors changed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Exit, Option

from mvc.cli.errors import NEGATIVE
from mvc.cli.options import CommandUsageError, Json, ShowProgress, Tensors, choose_one
from mvc.cli.output import stdout, write_json
from mvc.cli.progress import byte_progress
from mvc.cli.render.files import WITH_TENSORS, diff_fields, file_fields, write_diff, write_listing
from mvc.cli.session import open_repo, parse_place, split_revisions
from mvc.errors import NotFoundError
from mvc.history.revisions import split_range

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mvc.repo import Repo


Stat = Annotated[bool, Option("--stat", help="Print one line per file.")]
NameOnly = Annotated[bool, Option("--name-only", help="Print paths only.")]
NameStatus = Annotated[
    bool, Option("--name-status", help="Print paths and a letter: A, D, M or R.")
]
All = Annotated[
    bool,
    Option("--all", help="List every tensor, also of new and removed files and in long lists."),
]


def diff(
    names: Annotated[
        list[str] | None, Argument(metavar="[REV [REV] | A..B | A...B] [[--] PATH...]")
    ] = None,
    staged: Annotated[
        bool, Option("--staged", "--cached", help="Compare the index with HEAD or REV.")
    ] = False,
    tensors: Tensors = None,
    stat: Stat = False,
    name_only: NameOnly = False,
    name_status: NameStatus = False,
    everything: All = False,
    exit_code: Annotated[
        bool, Option("--exit-code", help="Exit with 1 if there are differences.")
    ] = False,
    progress: ShowProgress = True,
    as_json: Json = False,
) -> None:
    """Show which files and tensors changed.

    Without a revision, compare the worktree with the index; with one, compare the worktree with it;
    with two, or A..B, compare the second with the first. A...B compares B with their merge base.

    Tensors are compared by id (dtype, shape, bytes). No tensor data is read, except that files that
    changed since they were added are hashed.
    """
    form = choose_one({"stat": stat, "name-only": name_only, "name-status": name_status}, "rows")
    repo = open_repo()
    revisions, paths = split_revisions(repo, names)
    old, new = _sides(repo, revisions)
    if staged and new is not None:
        raise CommandUsageError("--staged compares the index with one revision, not two")
    with byte_progress("hashing", wanted=progress) as bar:
        files = repo.diff(
            old,
            new,
            staged=staged,
            paths=paths,
            tensors=tensors,
            with_tensors=form in WITH_TENSORS or as_json or tensors is not None,
            progress=bar,
        )
    if as_json:
        write_json(diff_fields(files))
    else:
        write_diff(stdout(), files, form, everything=everything)
    if exit_code and files:
        raise Exit(NEGATIVE)


def _sides(repo: Repo, revisions: Sequence[str]) -> tuple[str | None, str | None]:
    """Return the revisions before and after; None is the worktree or the index."""
    if len(revisions) > 2:  # noqa: PLR2004  before and after
        raise CommandUsageError(f"expected at most two revisions, not {len(revisions)}")
    parts = split_range(revisions[0]) if len(revisions) == 1 else None
    if parts is None:
        for revision in revisions:
            if split_range(revision) is not None:
                raise CommandUsageError(f"{revision!r} is a range and must be the only revision")
        old, new = [*revisions, None, None][:2]
        return old, new
    old, dots, new = parts
    if dots == "..":
        return old, new
    base = repo.merge_base(old, new)
    if base is None:
        raise NotFoundError(f"{old} and {new} have no common ancestor")
    return base, new


def show(
    name: Annotated[str, Argument(metavar="[REV | REV:PATH]")] = "HEAD",
    tensors: Tensors = None,
    stat: Stat = False,
    name_only: NameOnly = False,
    name_status: NameStatus = False,
    everything: All = False,
    as_json: Json = False,
) -> None:
    """Show one commit and what it changed, or one file of it.

    For REV:PATH, the content of a plain file is printed; of a checkpoint, the tensors are listed.
    """
    repo = open_repo()
    form = choose_one({"stat": stat, "name-only": name_only, "name-status": name_status}, "rows")
    if ":" in name:
        _show_file(repo, name, as_json=as_json)
        return
    from mvc.cli.render.log import entry_fields, write_full

    entry = repo.show(name)
    files = repo.changes(
        entry.info.id, tensors=tensors, with_tensors=form in WITH_TENSORS or as_json
    )
    if as_json:
        write_json({**entry_fields(entry), "body": entry.info.body, **diff_fields(files)})
        return
    out = stdout()
    write_full(out, [entry], None)
    if files:
        out.line()
        write_diff(out, files, form, everything=everything)


def _show_file(repo: Repo, name: str, *, as_json: bool) -> None:
    revision, path = parse_place(repo, name)
    content = repo.read_file(revision, path)
    if as_json or content is None:
        (info,) = repo.ls(revision, paths=[path])
        if as_json:
            text = None if content is None else content.decode("utf-8", "replace")
            write_json({"commit": repo.resolve(revision), **file_fields(info), "content": text})
        else:
            write_listing(stdout(), [info], long=False)
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(content)
    sys.stdout.buffer.flush()
