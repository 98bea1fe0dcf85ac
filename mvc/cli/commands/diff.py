"""Show which files and tensors changed."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from mvc.cli.comparing import (
    ALL,
    COMPARED,
    Compared,
    compare_values,
    find_models,
    in_history,
    open_repo_or_say,
)
from mvc.cli.errors import NEGATIVE
from mvc.cli.options import HTML, PROGRESS_JSON, check_alone
from mvc.cli.output import Output, Shown, paged, pick, printable, write_json
from mvc.cli.parameters import CommandUsageError, Exit, arguments, flag
from mvc.cli.progress import byte_progress
from mvc.cli.render.files import WITH_TENSORS, diff_fields, write_diff
from mvc.cli.render.text import count_text, number_text
from mvc.cli.session import split_revisions
from mvc.errors import NotFoundError
from mvc.history.revisions import split_range

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mvc.cli.render.comparison_rows import View
    from mvc.operations.compare import ModelDiff
    from mvc.operations.file_diff import FileDiff
    from mvc.operations.gate import GateReport
    from mvc.repo import Repo


def diff(
    names: list[str] = arguments("[REV [REV] | A..B | A...B] [[--] PATH...] | FILE FILE"),
    staged: bool = flag("--staged, --cached", "Compare the index with HEAD or REV."),
    compared: Compared = COMPARED,
    html: str | None = HTML,
    everything: bool = ALL,
    exit_code: bool = flag("--exit-code", "Exit with 1 if there are differences."),
    gate: bool = flag("--gate", "Check the newer side against the gates; exit with 1 if it fails."),
    shown: Shown = PROGRESS_JSON,
) -> None:
    """Show which files and tensors changed.

    Without a revision, compare the worktree with the index; with one, compare the worktree with it;
    with two, or A..B, compare the second with the first. A...B compares B with their merge base.

    Tensors are compared by id (dtype, shape, bytes). No tensor data is read, except that files that
    changed since they were added are hashed. --stats reads the tensors that differ once, and shows
    how far they moved.

    Two FILEs are compared by value, inside or outside a repository. Each is a checkpoint, a folder
    of checkpoints, REV:PATH, or a REV if the other FILE is outside the repository; after "--" both
    are ordinary PATHs.

    --html writes the results of --stats as a web page that needs no network.
    """
    if html is not None:
        from mvc.cli.pages.report import check_target

        check_target(html)
    view = compared.view(everything=everything)
    with_values = view is not None or html is not None
    values = "html" if view is None and with_values else "stats"
    form = compared.form(values, with_values=with_values)
    if gate:
        for option, value in ((f"--{form}", form != "rows"), ("--tensors", compared.tensors)):
            check_alone([("--gate", gate), (option, value)])
        _judge(names, shown, staged=staged)
        return
    compare, is_different = find_models(names), False
    if compare is not None and (staged or form not in ("rows", values)):
        option = "staged" if staged else form
        raise CommandUsageError(f"--{option} compares files of one repository")
    if compare is None:
        repo, old, new, paths = _open_sides(names)
        if staged and new is not None:
            raise CommandUsageError("--staged compares the index with one revision, not two")
        if with_values:
            old, new = in_history(repo, old), in_history(repo, new)
            compare = partial(repo.compare, old, new, staged=staged, paths=paths)
        else:
            find = partial(repo.diff, old, new, staged=staged, paths=paths)
            is_different = _show_files(find, compared, form, shown, everything=everything)
    if compare is not None:
        compare = partial(compare, tensors=compared.tensors, spectral=compared.spectral)
        found = compare_values(compare, progress=shown.progress)
        _write_values(found, view, html, shown)
        is_different = bool(found.differing)
    if exit_code and is_different:
        raise Exit(NEGATIVE)


def _show_files(
    find: Callable[..., Sequence[FileDiff]],
    compared: Compared,
    form: str,
    shown: Shown,
    *,
    everything: bool,
) -> bool:
    """Show which files differ; return whether any do."""
    tensors = compared.tensors
    reads = form in WITH_TENSORS or shown.as_json or tensors is not None
    with byte_progress("hashing", wanted=shown.progress):
        files = find(tensors=tensors, with_tensors=reads)
    shown.page(lambda: diff_fields(files), write_diff, files, form, everything=everything)
    return bool(files)


def _judge(names: list[str], shown: Shown, *, staged: bool) -> None:
    """Say what fails a gate; a negative answer is an exit code."""
    repo, old, new, paths = _open_sides(names)
    if paths:
        raise CommandUsageError("--gate judges whole commits, not single paths")
    report = repo.check_gates(old, new, staged=staged)
    shown.page(gate_fields(report), write_gates, report)
    if report.failures:
        raise Exit(NEGATIVE)


def _write_values(found: ModelDiff, view: View | None, html: str | None, shown: Shown) -> None:
    from mvc.cli.render.comparison import write_comparison
    from mvc.cli.render.comparison_rows import View, comparison_fields

    fields = comparison_fields(found, view) if shown.as_json or html is not None else {}
    if html is not None:
        from mvc.cli.pages.report import write_comparison_page

        write_comparison_page("diff", fields, html, quiet=shown.as_json)
    if shown.as_json:
        write_json(fields)
    elif view is not None or html is None:
        write_comparison(paged(), found, view or View())


def _open_sides(names: list[str]) -> tuple[Repo, str | None, str | None, list[str]]:
    """Return the repository, the revisions before and after, and paths; None is worktree or index."""
    repo = open_repo_or_say()
    revisions, paths = split_revisions(repo, names)
    if len(revisions) > 2:  # noqa: PLR2004  before and after
        raise CommandUsageError(f"expected at most two revisions, not {len(revisions)}")
    parts = split_range(revisions[0]) if len(revisions) == 1 else None
    if parts is None:
        for revision in revisions:
            if split_range(revision) is not None:
                raise CommandUsageError(f"{revision!r} is a range and must be the only revision")
        old, new = [*revisions, None, None][:2]
        return repo, old, new, paths
    old, dots, new = parts
    base = old if dots == ".." else repo.merge_base(old, new)
    if base is None:
        raise NotFoundError(f"{old} and {new} have no common ancestor")
    return repo, base, new, paths


def write_gates(out: Output, report: GateReport) -> None:
    """Write what fails, or that nothing does."""
    for failure in report.failures:
        out.line(f"{out.style('failed', 'red')} {failure.gate}: {printable(str(failure))}")
    if not report.failures:
        limits = ", ".join(f"{gate} {number_text(limit)}" for gate, limit in report.limits.items())
        judged = count_text(len(report.health), "checkpoint")
        out.line(f"{out.style('passed', 'green')} {limits} ({judged})")


def gate_fields(report: GateReport) -> dict[str, object]:
    """Return the report for ``--json``."""
    found = "health(path nan inf largest norm saturated) failures(gate value limit path tensor)"
    return {"gates": dict(report.limits), **pick(report, found)}
