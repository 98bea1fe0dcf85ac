"""Show what differs between HEAD, index and worktree."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from mvc.cli.options import JSON
from mvc.cli.output import Output, Shown, pick, printable
from mvc.cli.parameters import flag
from mvc.cli.render.remotes import upstream_fields, upstream_line, upstream_text
from mvc.cli.render.text import CHANGES, count_text, quote_path, short_id
from mvc.cli.session import open_repo, shown_path
from mvc.errors import CorruptionError, FormatError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mvc.operations.status import FileStatus, Status
    from mvc.repo import Repo

_UNTRACKED_SHOWN = 100
_OTHER_LINES = 12
_LEAST_SHOWN = 10


def status(
    short: bool = flag("-s, --short", "Print one line per file, with two letters."),
    porcelain: bool = flag("--porcelain", "Like --short for scripts: stable, never coloured."),
    branch: bool = flag("-b, --branch", "Print the branch in the short forms too."),
    untracked: bool = flag("--untracked / --no-untracked", "List untracked files.", default=True),
    ignored: bool = flag("--ignored", "Also list what .mvcignore names."),
    shown: Shown = JSON,
) -> None:
    """Show what differs between HEAD, index and worktree.

    Unchanged files are not read: their size and times are enough.

    The two letters are Git's: the first compares the index with HEAD, the second the worktree with
    the index; M modified, A added, D deleted, R renamed, ?? untracked, !! ignored.
    """
    repo = open_repo()
    found = repo.status(untracked=untracked, ignored=ignored, upstream=True)
    fields = partial(_fields, found)
    if porcelain or short:
        shown.answer(fields, _write_short, repo, found, porcelain=porcelain, branch=branch)
    else:
        shown.answer(fields, _write_long, repo, found)


def _fields(found: Status) -> dict[str, object]:
    files = [
        pick(file, "path staged worktree" + ("" if file.old_path is None else " old_path"))
        for file in found.files
    ]
    under_way: dict[str, object] = {}
    if found.pending is not None:
        under_way |= pick(found, "pending(kind heads)")
    if found.pending is not None or found.conflicts:
        under_way |= pick(found, "conflicts(path tensor reason)")
    if found.bisecting:
        under_way["bisecting"] = True
    if found.left_out:
        under_way["left_out"] = list(found.left_out)
    following = {} if found.upstream is None else {"upstream": upstream_fields(found.upstream)}
    return {**pick(found, "branch commit clean=is_clean"), **following, "files": files, **under_way}


def _write_short(out: Output, repo: Repo, found: Status, *, porcelain: bool, branch: bool) -> None:
    if branch:
        where = found.branch if found.branch is not None else "HEAD (no branch)"
        text = "" if found.upstream is None else upstream_text(found.upstream)
        name, _, apart = text.partition(": ")
        following = (f"...{name}" if name else "") + (f" [{apart}]" if apart else "")
        out.line(f"## {'No commits yet on ' if found.commit is None else ''}{where}{following}")
    for file in found.files:
        index, worktree = file.code[0], file.code[1]
        if not porcelain:
            untracked = file.code in ("??", "!!")
            index = out.style(index, "red" if untracked else "green")
            worktree = out.style(worktree, "red")
        names = [name for name in (file.old_path, file.path) if name is not None]
        if not porcelain:
            names = [shown_path(repo, name) for name in names]
        out.line(f"{index}{worktree} {' -> '.join(map(quote_path, names))}")


def _write_long(out: Output, repo: Repo, found: Status) -> None:
    if found.branch is not None:
        out.line(f"On branch {printable(found.branch)}")
        if found.upstream is not None:
            out.line(printable(upstream_line(found.upstream)))
    else:
        out.line(f"{out.style('HEAD detached at', 'red')} {short_id(found.commit)}")
    if found.bisecting:
        out.line('You are currently bisecting ("mvc bisect reset" goes back to where you were).')
    if found.recovered:
        out.line("An interrupted checkout was completed first.")
    if found.commit is None:
        out.lines(["", "No commits yet"])
    if found.pending is not None:
        _write_pending(out, found)
    elif found.conflicts:
        from mvc.cli.render.merges import write_conflicts

        out.lines(["", 'Undecided (use "mvc add <file>..." to accept it as it is):'])
        write_conflicts(out, found.conflicts)
    staged = [file for file in found.files if file.staged not in ("unmodified", "unmerged")]
    changed = [file for file in found.files if file.worktree in ("modified", "removed")]
    unstage = "rm --cached" if found.commit is None else "restore --staged"
    update = "add/rm" if any(file.worktree == "removed" for file in changed) else "add"
    include = "to include in what will be committed"
    entries = [_entry(repo, out, file, file.staged, "green") for file in staged]
    _write_section(
        out,
        "Changes to be committed:",
        [*entries, *_moved(repo, staged)],
        f'"mvc {unstage} <file>..." to unstage',
    )
    _write_section(
        out,
        "Changes not staged for commit:",
        [_entry(repo, out, replace(file, old_path=None), file.worktree, "red") for file in changed],
        f'"mvc {update} <file>..." to update what will be committed',
        '"mvc restore <file>..." to discard changes in the worktree',
    )
    hidden = [file.path for file in found.files if file.worktree == "ignored"]
    for title, paths, hint in (
        ("Untracked files:", found.untracked, f'"mvc add <file>..." {include}'),
        (
            "Not written here:",
            found.left_out,
            '"mvc checkout HEAD -- <file>..." to write what you need',
        ),
        ("Ignored files:", hidden, f'"mvc add -f <file>..." {include}'),
    ):
        _write_section(out, title, _names(repo, out, paths), hint)
    if not staged and found.pending is None and not found.conflicts:
        out.lines(_last_line(found, changed))


def _write_pending(out: Output, found: Status) -> None:
    """Write what is under way, what it has left to decide, and how to go on."""
    from mvc.cli.render.merges import ways_on, write_conflicts

    assert found.pending is not None
    kind = found.pending.kind
    names = ", ".join(map(short_id, found.pending.heads)) or "several commits"
    more = f"; {count_text(len(found.pending.rest), 'commit')} to go" if found.pending.rest else ""
    out.lines(["", f"A {kind} of {names} is under way{more}."])
    if found.conflicts:
        out.lines(f"  {line}" for line in ways_on(kind))
        write_conflicts(out, found.conflicts)
    else:
        out.lines([f'  "mvc {kind} --continue" records it, "mvc {kind} --abort" gives it up'])


def _moved(repo: Repo, staged: Sequence[FileStatus]) -> list[str]:
    """Say that a model was only saved in other files, which takes their manifests to know."""
    if not {"added", "removed"} <= {file.staged for file in staged}:
        return []
    from mvc.cli.render.files import moved_text

    with contextlib.suppress(CorruptionError, FormatError):  # fsck reports it
        text = moved_text(repo.diff(staged=True))
        return [f"({text})"] if text else []
    return []


def _write_section(out: Output, title: str, entries: Sequence[str], *hints: str) -> None:
    if entries:
        out.lines(["", title, *(f"  (use {hint})" for hint in hints)])
        out.lines(f"\t{entry}" for entry in entries)


def _names(repo: Repo, out: Output, paths: Sequence[str]) -> list[str]:
    """Return the first paths that are not tracked, and how many more there are."""
    most = _UNTRACKED_SHOWN if out.width is None else max(out.height - _OTHER_LINES, _LEAST_SHOWN)
    shown = paths[:most]
    names = [shown_path(repo, path) + ("/" if path.endswith("/") else "") for path in shown]
    names = [out.style(printable(name), "red") for name in names]
    if len(shown) < len(paths):
        names.append(f'… and {len(paths) - len(shown):,} more ("mvc status -s" lists all)')
    return names


def _entry(repo: Repo, out: Output, file: FileStatus, change: str, colour: str) -> str:
    names = [shown_path(repo, name) for name in (file.old_path, file.path) if name is not None]
    return out.style(f"{CHANGES[change] + ':':<12}{' -> '.join(map(printable, names))}", colour)


def _last_line(found: Status, changed: Sequence[FileStatus]) -> list[str]:
    if changed:
        return ["", 'no changes added to commit (use "mvc add" and/or "mvc commit -a")']
    if found.untracked:
        return ["", 'nothing added to commit but untracked files present (use "mvc add" to track)']
    if found.commit is None:
        return ["", 'nothing to commit (create or copy files and use "mvc add" to track them)']
    return [*([""] if found.left_out else []), "nothing to commit, working tree clean"]
