"""Check that the repository is sound."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from mvc.cli.errors import NEGATIVE
from mvc.cli.options import QUIET_PROGRESS_JSON
from mvc.cli.output import Output, Shown, pick, printable
from mvc.cli.parameters import Exit, flag, string, strings
from mvc.cli.progress import byte_progress
from mvc.cli.render.text import count_text, short_id, size_text, some_text
from mvc.cli.session import open_repo

if TYPE_CHECKING:
    from mvc.operations.fsck import FsckReport, Problem


_SHOWN_COMMITS = 3


def fsck(
    data: bool = flag("--data", "Also read, decode and hash every stored byte."),
    repair: bool = flag(
        "--repair", "First rebuild lost pack indexes and save what is sound in damaged packs."
    ),
    sources: list[str] = strings(
        "--from REMOTE",
        "With --repair: bring lost chunks and Git objects back from here (repeatable).",
    ),
    remote: str | None = string("--remote REMOTE", "Check a remote, not this repository."),
    shown: Shown = QUIET_PROGRESS_JSON,
) -> None:
    """Check that the repository is sound: history, packs, indexes, and all that commits need.

    Nothing is changed without --repair. --remote checks that a remote has all that its refs need, by
    listings, indexes and its history; with --data every byte comes and is hashed. --repair --from
    reads all data here, brings what is damaged or missing from remotes, and checks again. The exit code is 1 if problems are found.
    """
    repo = open_repo()
    with byte_progress("checking", wanted=shown.progress):
        report = repo.upkeep.fsck(data=data, repair=repair, sources=sources, remote=remote)
    shown.aloud().answer(_fsck_fields(report), _write_fsck, report, quiet=shown.quiet)
    if not report.ok:
        raise Exit(NEGATIVE)


def _fsck_fields(report: FsckReport) -> dict[str, object]:
    return {
        "ok": report.ok,
        "problems": [
            {key: value for key, value in asdict(problem).items() if value not in (None, ())}
            for problem in report.problems
        ],
        **pick(
            report, "commits files chunks data notices repaired released promised promised_bytes"
        ),
    }


def _write_fsck(out: Output, report: FsckReport, *, quiet: bool) -> None:
    for problem in report.problems:
        out.line(_problem_line(out, problem))
    for hint in dict.fromkeys(problem.hint for problem in report.problems if problem.hint):
        out.line(f"{out.style('hint:', 'cyan')} {printable(hint)}")
    if quiet:
        return
    for pack in report.repaired:
        out.line(f"repaired: the index of pack {printable(pack)} was rebuilt")
    for notice in report.notices:
        out.line(out.style(f"harmless: {printable(notice)}", "dim"))
    files = count_text(report.files, "file version")
    if report.released:
        files += f", {report.released:,} released"
    checked = (
        f"{count_text(report.commits, 'commit')}, {files}, {count_text(report.chunks, 'chunk')}"
    )
    if report.promised:
        size = size_text(report.promised_bytes)
        checked += f", {report.promised:,} of them ({size}) on a remote and not here"
    how = "every byte read and hashed" if report.data else "data not read; --data reads it"
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
        place.append(f"commits {some_text([*map(short_id, problem.commits)], _SHOWN_COMMITS)}")
    elif problem.commit is not None:
        place.append(f"commit {problem.commit}")
    where = f" ({', '.join(place)})" if place else ""
    return f"{out.style(problem.kind, 'red')}: {printable(problem.detail + where)}"
