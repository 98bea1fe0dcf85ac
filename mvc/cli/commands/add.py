"""add, rm, mv, commit: change the index and the worktree, and record what is staged."""

from __future__ import annotations

import re
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from mvc.cli.options import CommandUsageError, Delta, DryRun, Json, Quiet, ShowProgress
from mvc.cli.output import Output, pick, printable, stdout, warn, write_json
from mvc.cli.progress import byte_progress
from mvc.cli.render.text import count_text, seconds_text, short_id, size_text
from mvc.cli.session import find_identity, open_repo, shown_path, to_paths
from mvc.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mvc.repo import Repo
    from mvc.workspace.additions import AddPlan, AddResult
    from mvc.workspace.commits import CommitResult

_NUMBER = re.compile(
    r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,5})?|[+-]?(nan|inf|infinity)", re.ASCII | re.IGNORECASE
)
_WHOLE = re.compile(r"[+-]?\d{1,18}", re.ASCII)


def add(
    paths: Annotated[list[str] | None, Argument(metavar="[PATH]...")] = None,
    force: Annotated[bool, Option("-f", "--force", help="Add even what .mvcignore names.")] = False,
    everything: Annotated[
        bool, Option("-A", "--all", help="Add the whole worktree if no path is given.")
    ] = False,
    delta: Delta = None,
    dry_run: DryRun = False,
    quiet: Quiet = False,
    progress: ShowProgress = True,
    as_json: Json = False,
) -> None:
    """Store files and stage them for the next commit.

    A folder means everything in it; tracked files that are gone leave the index. Unchanged files
    are not read again. Only chunks that the repository does not have yet are stored, as differences
    from those of the last commit if that saves a lot.
    """
    if not paths and not everything:
        raise CommandUsageError('nothing specified, nothing added; "mvc add ." adds everything')
    repo = open_repo()
    chosen = to_paths(paths) if paths else [str(repo.worktree)]
    if dry_run:
        _show_plan(repo, repo.plan_add(chosen, force=force), quiet=quiet, as_json=as_json)
        return
    started_s = time.perf_counter()
    with byte_progress("adding", wanted=progress and not quiet) as bar:
        result = repo.add(chosen, force=force, delta=delta, progress=bar)
    if as_json:
        write_json(_add_fields(result))
        return
    for path, text in result.warnings:
        warn(f"{path}: {text}")
    if not quiet and (result.added or result.removed):
        stdout().line(_summary(result, time.perf_counter() - started_s))


def _show_plan(repo: Repo, plan: AddPlan, *, quiet: bool, as_json: bool) -> None:
    if as_json:
        write_json(pick(plan, "add=read remove=drop unchanged size_bytes"))
    elif not quiet:
        out = stdout()
        out.lines(f"add '{printable(shown_path(repo, path))}'" for path in plan.read)
        out.lines(f"remove '{printable(shown_path(repo, path))}'" for path in plan.drop)
        out.line(f"would read {count_text(len(plan.read), 'file')}, {size_text(plan.size_bytes)}")


def _add_fields(result: AddResult) -> dict[str, object]:
    counts = result.counts
    return {
        "added": [
            {
                "path": file.path,
                "format": None if file.manifest is None else file.manifest.format,
                **pick(file, "size_bytes warning"),
            }
            for file in result.added
        ],
        "removed": result.removed,
        "unchanged": result.unchanged,
        "chunks": {"total": counts.chunks, "new": counts.new_chunks},
        "bytes": {
            "plain": sum(file.size_bytes for file in result.added),
            "written": counts.stored_bytes,
            "reused": counts.plain_bytes - counts.new_plain_bytes,
        },
        "warnings": [{"path": path, "message": text} for path, text in result.warnings],
    }


def _summary(result: AddResult, seconds: float) -> str:
    counts = result.counts
    read_bytes = sum(file.size_bytes for file in result.added)
    parts = []
    if result.added:
        parts += [f"added {count_text(len(result.added), 'file')}", f"{size_text(read_bytes)} read"]
    if counts.chunks:
        reused_bytes = counts.plain_bytes - counts.new_plain_bytes
        parts += [f"{size_text(counts.stored_bytes)} written", f"{size_text(reused_bytes)} reused"]
    if result.removed:
        parts.append(f"removed {count_text(len(result.removed), 'file')}")
    return f"{', '.join(parts)} in {seconds_text(seconds)}"


def rm(
    paths: Annotated[list[str], Argument(metavar="PATH...", show_default=False)],
    cached: Annotated[
        bool, Option("--cached", help="Stop tracking the files but keep them on disk.")
    ] = False,
    force: Annotated[
        bool, Option("-f", "--force", help="Remove files even if no commit holds their changes.")
    ] = False,
    recursive: Annotated[
        bool, Option("-r", "--recursive", help="Remove folders with everything tracked in them.")
    ] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Remove files from the worktree and the index.

    Their committed versions stay in the history.
    """
    repo = open_repo()
    removed = repo.remove(to_paths(paths), cached=cached, force=force, recursive=recursive)
    if as_json:
        write_json({"removed": removed})
    elif not quiet:
        stdout().lines(f"rm '{printable(shown_path(repo, path))}'" for path in removed)


def mv(
    paths: Annotated[list[str], Argument(metavar="SOURCE... TARGET", show_default=False)],
    force: Annotated[bool, Option("-f", "--force", help="Overwrite an existing target.")] = False,
    verbose: Annotated[bool, Option("-v", "--verbose", help="Print every move.")] = False,
    as_json: Json = False,
) -> None:
    """Move or rename files in the worktree and the index.

    With several sources, the target must be a folder.
    """
    if len(paths) < 2:  # noqa: PLR2004  from and to
        raise CommandUsageError("name a source and a target")
    repo = open_repo()
    *sources, target = to_paths(paths)
    moved = repo.move(sources, target, force=force)
    if as_json:
        write_json({"renamed": [{"old_path": old, "path": new} for old, new in moved]})
    elif verbose:
        stdout().lines(
            f"{printable(shown_path(repo, old))} -> {printable(shown_path(repo, new))}"
            for old, new in moved
        )


def commit(
    paths: Annotated[list[str] | None, Argument(metavar="[PATH]...")] = None,
    messages: Annotated[
        list[str] | None,
        Option("-m", "--message", metavar="TEXT", help="The message; each -m is a paragraph."),
    ] = None,
    everything: Annotated[
        bool, Option("-a", "--all", help="First add every tracked file that changed.")
    ] = False,
    amend: Annotated[bool, Option("--amend", help="Replace the last commit.")] = False,
    allow_empty: Annotated[
        bool, Option("--allow-empty", help="Commit even if nothing changed.")
    ] = False,
    step: Annotated[
        int | None,
        Option("--step", metavar="N", help="Training step; main@N finds the commit by it."),
    ] = None,
    metrics: Annotated[
        list[str] | None,
        Option("--metric", metavar="NAME=NUMBER", help="A metric; the log shows it."),
    ] = None,
    meta: Annotated[
        list[str] | None,
        Option(
            "--meta", metavar="NAME=VALUE", help="A fact: a metric if VALUE is a number, else text."
        ),
    ] = None,
    delta: Delta = None,
    quiet: Quiet = False,
    progress: ShowProgress = True,
    as_json: Json = False,
) -> None:
    """Record what is staged in the history and move the branch to it.

    PATHs are added first. Step, metrics and other facts are stored as trailers of the message, so
    that stock Git shows them too.
    """
    if everything and paths:
        raise CommandUsageError("paths and -a cannot be used together")
    numbers, texts = parse_facts(metrics or (), meta or ())
    message = "\n\n".join(text.strip("\n") for text in messages) if messages else None
    if not (message or "").strip() and (message is not None or not amend):
        # Checked before files are read, which may take minutes.
        raise UsageError("a commit needs a message", hint='give one with "-m"')
    repo = open_repo()
    repo.identity, is_guessed = find_identity(repo.config())
    with byte_progress("adding", wanted=progress and not quiet) as bar:
        result = repo.commit(
            message,
            paths=to_paths(paths or ()),
            everything=everything,
            amend=amend,
            allow_empty=allow_empty,
            step=step,
            metrics=numbers or None,
            meta=texts or None,
            delta=delta,
            progress=bar,
        )
    if as_json:
        write_json(_commit_fields(result))
        return
    for path, text in result.warnings:
        warn(f"{path}: {text}")
    if is_guessed:
        author = f"{repo.identity.name} <{repo.identity.email}>"
        warn(
            f"the author {author} is guessed from the login name; "
            '"mvc config user.name NAME" and "mvc config user.email MAIL" set it'
        )
    if not quiet:
        _write_commit(stdout(), result)


def parse_facts(
    metrics: Sequence[str], meta: Sequence[str]
) -> tuple[dict[str, float], dict[str, str]]:
    """Return the metrics and the texts of ``--metric`` and ``--meta``."""
    numbers: dict[str, float] = {}
    texts: dict[str, str] = {}
    for option, fact in [*(("--metric", fact) for fact in metrics), *(("--meta", f) for f in meta)]:
        name, equals, value = fact.partition("=")
        if not equals or not name:
            raise UsageError(
                f"{option} {fact!r} is not NAME=VALUE", hint=f"such as {option} loss=2.5"
            )
        number = parse_number(value)
        if number is not None:
            numbers[name] = number
        elif option == "--metric":
            raise UsageError(
                f"metric {name!r} is {value!r}, not a number", hint="use --meta for text"
            )
        else:
            texts[name] = value
    return numbers, texts


def parse_number(text: str) -> float | None:
    """Return a text as int or float, or None if it is not a number."""
    if _WHOLE.fullmatch(text):
        return int(text)
    return float(text) if _NUMBER.fullmatch(text) else None


def _commit_fields(result: CommitResult) -> dict[str, object]:
    return {
        **pick(result, "commit branch subject parents"),
        "files": {"total": result.files_total, "changed": result.files_changed},
        "tensors": {"total": result.tensors_total, "new": result.tensors_new},
        "bytes": pick(result, "plain=plain_bytes written=written_bytes reused=reused_bytes"),
        "seconds": result.seconds,
        "warnings": [{"path": path, "message": text} for path, text in result.warnings],
        "identical_to": None if result.identical_to is None else asdict(result.identical_to),
    }


def _write_commit(out: Output, result: CommitResult) -> None:
    where = result.branch if result.branch is not None else "detached HEAD"
    if not result.parents:
        where += " (root-commit)"
    name = out.style(short_id(result.commit), "yellow")
    out.line(f"[{printable(where)} {name}] {printable(result.subject)}")
    out.line(" " + _stat_line(result))
    if result.identical_to is not None:
        twin = result.identical_to
        place = "" if twin.step is None else f" (step {twin.step:,})"
        out.line(
            f" bit-identical to released commit {short_id(twin.commit)}{place}: "
            f"{count_text(len(twin.paths), 'file')} of it restored"
        )


def _stat_line(result: CommitResult) -> str:
    parts = [f"{count_text(result.files_total, 'file')} ({result.files_changed:,} changed)"]
    if result.tensors_total:
        parts.append(f"{count_text(result.tensors_total, 'tensor')} ({result.tensors_new:,} new)")
    parts += [
        f"{size_text(result.plain_bytes)} plain",
        f"{size_text(result.written_bytes)} written",
        f"{size_text(result.reused_bytes)} reused",
    ]
    return f"{', '.join(parts)} in {seconds_text(result.seconds)}"
