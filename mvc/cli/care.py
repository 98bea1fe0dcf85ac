"""init, config, fsck, doctor: making a repository and keeping it sound."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mvc.cli.errors import NEGATIVE
from mvc.cli.group import PlainCommand, new_app, usage
from mvc.cli.options import Json, Quiet, ShowProgress
from mvc.cli.output import Output, printable, stdout, write_json
from mvc.cli.progress import byte_progress
from mvc.cli.render import columns, count_text, short_id, size_text
from mvc.cli.session import open_repo
from mvc.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from mvc.operations.doctor import DoctorReport
    from mvc.operations.fsck import FsckReport, Problem

app = new_app()

_SHOWN_COMMITS = 3


@app.command(cls=PlainCommand)
def init(
    path: Annotated[str, typer.Argument(metavar="[PATH]")] = ".",
    branch: Annotated[
        str | None,
        typer.Option("-b", "--initial-branch", metavar="NAME", help="The first branch (main)."),
    ] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Create an empty repository in a folder, which is made where it is missing.

    An existing repository is left as it is.
    """
    from mvc.repo import Repo

    if Path(path).exists() and not Path(path).is_dir():
        raise UsageError(f"{path!r} is not a folder")
    is_new = not Path(path, ".mvc").is_dir()
    repo = Repo.init(path, branch=branch or "main")
    if as_json:
        write_json({"git_dir": str(repo.git_dir), "branch": repo.head.branch, "created": is_new})
    elif not quiet:
        verb = "Initialized empty" if is_new else "Reinitialized existing"
        stdout().line(f"{verb} mvc repository in {printable(str(repo.git_dir))}/")


@app.command(cls=PlainCommand)
def config(
    context: typer.Context,
    key: Annotated[str | None, typer.Argument(metavar="[KEY")] = None,
    value: Annotated[str | None, typer.Argument(metavar="[VALUE]]")] = None,
    unset: Annotated[
        str | None, typer.Option("--unset", metavar="KEY", help="Take a setting away.")
    ] = None,
    listed: Annotated[bool, typer.Option("-l", "--list", help="Print all settings.")] = False,
    as_json: Json = False,
) -> None:
    """Read and change the repository's settings, written as section.key.

    user.name and user.email say who commits; where they are not set, the user's Git config does.
    mvc.chunkbytes is the length of chunks of files that are added from then on; mvc.delta says when
    they are stored as differences: never, auto (where that gains much) or always. mvc.autorepack
    true lets commits repack in the background.
    """
    if unset is not None and (key is not None or listed):
        raise usage("--unset takes one key and nothing else", context)
    repo = open_repo()
    if unset is not None:
        _find_setting(repo.config(), unset)
        repo.set_config(unset, None)
    elif key is not None and value is not None:
        repo.set_config(key, value)
    elif key is not None and not listed:
        _write_settings({key: _find_setting(repo.config(), key)}, alone=True, as_json=as_json)
    else:
        _write_settings(repo.config(), alone=False, as_json=as_json)


def _find_setting(settings: dict[str, str], key: str) -> str:
    """Section and name are the same in any case; only a subsection between them is not."""
    section, dot, rest = key.partition(".")
    middle, inner, name = rest.rpartition(".")
    spelled = section.lower() + dot + middle + inner + name.lower()
    if spelled not in settings:
        raise NotFoundError(f"{key!r} is not set", hint='"mvc config --list" shows what is')
    return settings[spelled]


def _write_settings(settings: dict[str, str], *, alone: bool, as_json: bool) -> None:
    if as_json:
        write_json(settings)
        return
    lines = settings.values() if alone else (f"{key}={text}" for key, text in settings.items())
    stdout().lines(map(printable, lines))


@app.command(cls=PlainCommand)
def fsck(
    data: Annotated[
        bool, typer.Option("--data", help="Also read, decode and hash every stored byte.")
    ] = False,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="First write lost pack indexes anew and save what is sound of damaged packs.",
        ),
    ] = False,
    quiet: Quiet = False,
    progress: ShowProgress = True,
    as_json: Json = False,
) -> None:
    """Check that the repository is sound: history, packs, indexes, and all that commits need.

    Nothing is changed without --repair. The exit code is 1 if there are problems.
    """
    repo = open_repo()
    with byte_progress("checking", wanted=progress and not quiet) as bar:
        report = repo.fsck(data=data, repair=repair, progress=bar)
    if as_json:
        write_json(_fsck_fields(report))
    else:
        _write_fsck(stdout(), report, quiet=quiet)
    if not report.ok:
        raise typer.Exit(NEGATIVE)


def _fsck_fields(report: FsckReport) -> dict[str, object]:
    return {
        "ok": report.ok,
        "problems": [
            {key: value for key, value in asdict(problem).items() if value not in (None, ())}
            for problem in report.problems
        ],
        "commits": report.commits,
        "files": report.files,
        "chunks": report.chunks,
        "data": report.data,
        "notices": report.notices,
        "repaired": report.repaired,
        "released": report.released,
    }


def _write_fsck(out: Output, report: FsckReport, *, quiet: bool) -> None:
    for problem in report.problems:
        out.line(_problem_line(out, problem))
    for hint in dict.fromkeys(problem.hint for problem in report.problems if problem.hint):
        out.line(f"{out.style('hint:', 'cyan')} {printable(hint)}")
    if quiet:
        return
    for pack in report.repaired:
        out.line(f"repaired: the index of pack {printable(pack)} was written anew")
    for notice in report.notices:
        out.line(out.style(f"harmless: {printable(notice)}", "dim"))
    released = f", {report.released:,} released" if report.released else ""
    checked = (
        f"{count_text(report.commits, 'commit')}, {count_text(report.files, 'file version')}{released}, "
        f"{count_text(report.chunks, 'chunk')}"
    )
    how = "every byte read and hashed" if report.data else 'data not read; "--data" does'
    if report.ok:
        out.line(f"{out.style('ok:', 'green', 'bold')} {checked} ({how})")
    else:
        count = count_text(len(report.problems), "problem")
        out.line(f"{out.style(f'{count}:', 'red', 'bold')} {checked} checked ({how})")


def _problem_line(out: Output, problem: Problem) -> str:
    place = []
    if problem.pack is not None:
        place.append(f"pack {problem.pack}")
    if problem.offset is not None:
        place.append(f"offset {problem.offset:,}")
    if len(problem.commits) > 1:
        shown = ", ".join(map(short_id, problem.commits[:_SHOWN_COMMITS]))
        more = len(problem.commits) - _SHOWN_COMMITS
        place.append(f"commits {shown}{f' and {more:,} more' if more > 0 else ''}")
    elif problem.commit is not None:
        place.append(f"commit {problem.commit}")
    where = f" ({', '.join(place)})" if place else ""
    return f"{out.style(problem.kind, 'red')}: {printable(problem.detail + where)}"


@app.command(cls=PlainCommand)
def doctor(as_json: Json = False) -> None:
    """Show versions, the file system under the repository, and what is slow here.

    A file of 64 MiB is written and removed for it.
    """
    report = open_repo().doctor()
    if as_json:
        write_json(asdict(report))
        return
    out = stdout()
    for name, text in columns(_doctor_rows(report), "<<"):
        out.line(f"{out.style(name, 'bold')}  {text}".rstrip())
    for advice in report.advice:
        out.line(f"{out.style('slow or risky:', 'yellow', 'bold')} {printable(advice)}")
    if not report.advice:
        out.line(out.style("nothing here is slow", "green"))


def _doctor_rows(report: DoctorReport) -> list[tuple[str, str]]:
    rows = [
        ("python", report.python),
        *((name, version) for name, version in report.versions.items()),
        ("system", report.system),
        ("cores", f"{report.cores:,}"),
        ("file system", f"{report.filesystem}, {size_text(report.free_bytes)} free"),
        ("disk", f"{size_text(round(report.write_bytes_per_s))}/s written and synced"),
        ("one sync", f"{report.sync_s * 1e3:.1f} ms"),
        ("hashing", f"{size_text(round(report.hash_bytes_per_s))}/s on one core"),
    ]
    return [(name, printable(text)) for name, text in rows]
