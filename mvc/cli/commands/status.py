"""Show what differs between HEAD, index and worktree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from typer import Option

from mvc.cli.options import Json
from mvc.cli.output import Output, pick, printable, stdout, write_json
from mvc.cli.render.text import quote_path, short_id
from mvc.cli.session import open_repo, shown_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mvc.operations.status import FileStatus, Status
    from mvc.repo import Repo


_WORDS = {
    "added": "new file", "modified": "modified", "removed": "deleted", "renamed": "renamed",
}  # fmt: skip
_UNTRACKED_SHOWN = 100


def status(
    short: Annotated[
        bool, Option("-s", "--short", help="Print one line per file, with two letters.")
    ] = False,
    porcelain: Annotated[
        bool, Option("--porcelain", help="Like --short for scripts: stable, never coloured.")
    ] = False,
    branch: Annotated[
        bool, Option("-b", "--branch", help="Print the branch in the short forms too.")
    ] = False,
    untracked: Annotated[
        bool,
        Option(
            "--untracked/--no-untracked",
            show_default=False,
            help="List untracked files.",
        ),
    ] = True,
    as_json: Json = False,
) -> None:
    """Show what differs between HEAD, index and worktree.

    Unchanged files are not read: their size and times are enough.

    The two letters are Git's: the first compares the index with HEAD, the second the worktree with
    the index; M modified, A added, D deleted, R renamed, ?? untracked.
    """
    repo = open_repo()
    found = repo.status(untracked=untracked)
    if as_json:
        write_json(_fields(found))
    elif porcelain or short:
        _write_short(repo, found, porcelain=porcelain, branch=branch)
    else:
        _write_long(repo, found)


def _fields(found: Status) -> dict[str, object]:
    files = [
        pick(file, "path staged worktree" + ("" if file.old_path is None else " old_path"))
        for file in found.files
    ]
    return {**pick(found, "branch commit clean=is_clean"), "files": files}


def _write_short(repo: Repo, found: Status, *, porcelain: bool, branch: bool) -> None:
    out = stdout()
    if branch:
        where = found.branch if found.branch is not None else "HEAD (no branch)"
        out.line(f"## {'No commits yet on ' if found.commit is None else ''}{where}")
    for file in found.files:
        index, worktree = file.code[0], file.code[1]
        if not porcelain:
            untracked = file.code == "??"
            index = out.style(index, "red" if untracked else "green")
            worktree = out.style(worktree, "red")
        names = [name for name in (file.old_path, file.path) if name is not None]
        if not porcelain:
            names = [shown_path(repo, name) for name in names]
        out.line(f"{index}{worktree} {' -> '.join(map(quote_path, names))}")


def _write_long(repo: Repo, found: Status) -> None:
    out = stdout()
    out.line(_head_line(out, found))
    if found.recovered:
        out.line("An interrupted checkout was completed first.")
    if found.commit is None:
        out.lines(["", "No commits yet"])
    staged = [file for file in found.files if file.staged != "unmodified"]
    changed = [file for file in found.files if file.worktree in ("modified", "removed")]
    untracked = [file for file in found.files if file.worktree == "untracked"]
    _write_staged(repo, out, found, staged)
    _write_changed(repo, out, changed)
    _write_untracked(repo, out, untracked)
    if not staged:
        out.lines(_last_line(found, changed, untracked))


def _head_line(out: Output, found: Status) -> str:
    if found.branch is not None:
        return f"On branch {printable(found.branch)}"
    return f"{out.style('HEAD detached at', 'red')} {short_id(found.commit)}"


def _write_staged(repo: Repo, out: Output, found: Status, files: Sequence[FileStatus]) -> None:
    if not files:
        return
    verb = "rm --cached" if found.commit is None else "restore --staged"
    out.lines(["", "Changes to be committed:", f'  (use "mvc {verb} <file>..." to unstage)'])
    for file in files:
        names = [shown_path(repo, name) for name in (file.old_path, file.path) if name is not None]
        out.line(_entry(out, _WORDS[file.staged], names, "green"))


def _write_changed(repo: Repo, out: Output, files: Sequence[FileStatus]) -> None:
    if not files:
        return
    verb = "add/rm" if any(file.worktree == "removed" for file in files) else "add"
    out.lines(
        [
            "",
            "Changes not staged for commit:",
            f'  (use "mvc {verb} <file>..." to update what will be committed)',
            '  (use "mvc restore <file>..." to discard changes in the worktree)',
        ]
    )
    for file in files:
        out.line(_entry(out, _WORDS[file.worktree], [shown_path(repo, file.path)], "red"))


def _write_untracked(repo: Repo, out: Output, files: Sequence[FileStatus]) -> None:
    if not files:
        return
    out.lines(
        ["", "Untracked files:", '  (use "mvc add <file>..." to include in what will be committed)']
    )
    for file in files[:_UNTRACKED_SHOWN]:
        out.line("\t" + out.style(printable(shown_path(repo, file.path)), "red"))
    if len(files) > _UNTRACKED_SHOWN:
        more = len(files) - _UNTRACKED_SHOWN
        out.line(f'\t… and {more:,} more ("mvc status -s" lists all)')


def _entry(out: Output, word: str, names: Iterable[str], colour: str) -> str:
    return "\t" + out.style(f"{word + ':':<12}{' -> '.join(map(printable, names))}", colour)


def _last_line(
    found: Status, changed: Sequence[FileStatus], untracked: Sequence[FileStatus]
) -> list[str]:
    if changed:
        return ["", 'no changes added to commit (use "mvc add" and/or "mvc commit -a")']
    if untracked:
        return ["", 'nothing added to commit but untracked files present (use "mvc add" to track)']
    if found.commit is None:
        return ["", 'nothing to commit (create or copy files and use "mvc add" to track them)']
    return ["nothing to commit, working tree clean"]
