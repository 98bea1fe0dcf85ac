"""Files that the next commit has: added, removed, moved, ignored."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from mvc.cli.errors import NEGATIVE
from mvc.cli.options import DELTA, DRY_RUN, JSON, QUIET_JSON, QUIET_PROGRESS_JSON, check_alone
from mvc.cli.output import Output, Shown, pick, printable, warn
from mvc.cli.parameters import CommandUsageError, Exit, arguments, flag
from mvc.cli.progress import byte_progress
from mvc.cli.render.text import count_text, seconds_text, size_text
from mvc.cli.session import open_repo, shown_path, to_paths

if TYPE_CHECKING:
    from mvc.operations.add import AddPlan, AddResult
    from mvc.repo import Repo


def add(
    paths: list[str] = arguments("[PATH]..."),
    force: bool = flag("-f, --force", "Add even what .mvcignore names."),
    everything: bool = flag("-A, --all", "Add the whole worktree if no path is given."),
    update: bool = flag("-u, --update", "Add only files that are tracked already."),
    delta: bool | None = DELTA,
    dry_run: bool = DRY_RUN,
    shown: Shown = QUIET_PROGRESS_JSON,
) -> None:
    """Store files and stage them for the next commit.

    A folder means everything in it; tracked files that are gone leave the index. Unchanged files
    are not read again. Only chunks that the repository does not have yet are stored, as differences
    from those of the last commit if that saves a quarter. After Ctrl-C, run the command again: it goes on from
    there.
    """
    check_alone([("-A", everything), ("-u", update)])
    if not paths and not everything and not update:
        raise CommandUsageError('nothing specified, nothing added; "mvc add ." adds everything')
    repo = open_repo()
    chosen = to_paths(paths) if paths else [str(repo.worktree)]
    if dry_run:
        plan = repo.plan_add(chosen, force=force, tracked_only=update)
        fields = pick(plan, "add=read remove=drop unchanged size_bytes")
        shown.answer(fields, _write_plan, repo, plan)
        return
    started_s = time.perf_counter()
    with byte_progress("adding", wanted=shown.progress):
        result = repo.add(chosen, force=force, tracked_only=update, delta=delta)
    seconds = time.perf_counter() - started_s
    for path, text in () if shown.as_json else result.warnings:
        warn(f"{path}: {text}")
    shown.answer(lambda: _add_fields(result), _write_added, result, seconds)


def _write_plan(out: Output, repo: Repo, plan: AddPlan) -> None:
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


def _write_added(out: Output, result: AddResult, seconds: float) -> None:
    if not (result.added or result.removed):
        return
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
    out.line(f"{', '.join(parts)} in {seconds_text(seconds)}")


def rm(
    paths: list[str] = arguments("PATH...", required=True),
    cached: bool = flag("--cached", "Stop tracking the files but keep them on disk."),
    force: bool = flag("-f, --force", "Remove files even if no commit holds their changes."),
    recursive: bool = flag("-r, --recursive", "Remove folders with everything tracked in them."),
    shown: Shown = QUIET_JSON,
) -> None:
    """Remove files from the worktree and the index.

    Their committed versions stay in the history.
    """
    repo = open_repo()
    removed = repo.remove(to_paths(paths), cached=cached, force=force, recursive=recursive)
    lines = (f"rm '{printable(shown_path(repo, path))}'" for path in removed)
    shown.answer({"removed": removed}, Output.lines, lines)


def mv(
    paths: list[str] = arguments("SOURCE... TARGET", required=True),
    force: bool = flag("-f, --force", "Overwrite an existing target."),
    verbose: bool = flag("-v, --verbose", "Print every move."),
    shown: Shown = JSON,
) -> None:
    """Move or rename files in the worktree and the index.

    With several sources, the target must be a folder.
    """
    if len(paths) < 2:  # noqa: PLR2004  from and to
        raise CommandUsageError("name a source and a target")
    repo = open_repo()
    *sources, target = to_paths(paths)
    moved = repo.move(sources, target, force=force)
    lines = (" -> ".join(printable(shown_path(repo, path)) for path in pair) for pair in moved)
    fields = {"renamed": [{"old_path": old, "path": new} for old, new in moved]}
    shown.answer(fields, Output.lines, lines if verbose else ())


def check_ignore(
    paths: list[str] = arguments("[PATH]..."),
    verbose: bool = flag("-v, --verbose", "Also print the rule: FILE:LINE:PATTERN."),
    stdin: bool = flag("--stdin", "Read the paths from stdin, one a line."),
    shown: Shown = JSON,
) -> None:
    """Print those PATHs that .mvcignore keeps from being added.

    They need not exist; one that ends with / is a folder. What is tracked is not ignored. The exit
    code is 1 if none of them is ignored.
    """
    names = sys.stdin.read().splitlines() if stdin else paths or []
    if stdin == bool(paths):
        raise CommandUsageError("name paths, or pass --stdin")
    rules = open_repo().check_ignore(to_paths(names))
    found = [(name, rule) for name, rule in zip(names, rules, strict=True) if rule is not None]
    fields = [{"path": name, **pick(rule, "source line pattern")} for name, rule in found]
    wheres = [f"{rule.source}:{rule.line}:{rule.pattern}" for _, rule in found]
    lines = [
        (printable(where) + "\t" if verbose else "") + printable(name)
        for where, (name, _) in zip(wheres, found, strict=True)
    ]
    shown.answer(fields, Output.lines, lines)
    if not found:
        raise Exit(NEGATIVE)
