"""Show the history."""

from __future__ import annotations

import io
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from mvc.cli.options import JSON, LIMIT, STAT, check_clashes, check_limit, choose_one
from mvc.cli.output import Output, Shown, paged, write_json
from mvc.cli.parameters import CommandUsageError, arguments, flag, string, strings
from mvc.cli.render.log import entry_fields, write_full, write_oneline
from mvc.cli.session import open_repo, split_revisions
from mvc.history.revisions import split_range

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mvc.cli.log_filter import Test
    from mvc.cli.render.log import Below
    from mvc.operations.log import LogEntry
    from mvc.repo import Repo


def log(
    names: list[str] = arguments("[REV | A..B]... [[--] PATH...]"),
    oneline: bool = flag(
        "--oneline", "Print one line per commit, with step and metrics in columns."
    ),
    graph: bool = flag("--graph", "Draw branches and merges on the left."),
    everything: bool = flag("--all", "Start at every branch and tag, not only at HEAD."),
    limit: int | None = LIMIT,
    first_parent: bool = flag("--first-parent", "Follow only the first parent of merges."),
    decorate: bool = flag(
        "--decorate / --no-decorate", "Show the names of branches and tags.", default=True
    ),
    since: str | None = string(
        "--since, --after DATE", "From DATE on, or an age: 12h, 2 weeks ago."
    ),
    until: str | None = string("--until, --before DATE", "Up to DATE, or an age."),
    grep: list[str] = strings("--grep PATTERN", "The message matches (a regular expression)."),
    ignore_case: bool = flag("-i, --ignore-case", "--grep and --author ignore case."),
    all_match: bool = flag("--all-match", "Every --grep must match, not only one."),
    invert: bool = flag("--invert-grep", "The message must not match --grep."),
    merges: bool | None = flag(
        "--merges / --no-merges", "Only merges, or no merges.", default=None
    ),
    author: list[str] = strings("--author PATTERN", "NAME <EMAIL> matches."),
    metric: list[str] = strings("--metric NAME", 'Commits with this metric, or "NAME<2.5".'),
    sort: str | None = string(
        "--sort, --sort-by NAME", "Sort by step, date or a metric; -NAME: largest first."
    ),
    plot: bool = flag("--plot", "Draw each --metric (default: loss) as a curve."),
    log_scale: bool = flag("--log-scale", "With --plot: a logarithmic vertical axis."),
    reverse: bool = flag("--reverse", "Print the oldest first."),
    patch: bool = flag("-p, --patch", "Also show what each commit changed."),
    stat: bool = STAT,
    form: str | None = string("--format, --pretty TEXT", "TEXT for each: %h %s %(metric:loss)."),
    health: bool = flag("--health", "NaN, infinities, largest magnitude and norm of the weights."),
    shown: Shown = JSON,
) -> None:
    """Show the history, newest first, with training steps and metrics.

    A..B means the commits of B that A does not have. With PATHs, only commits that changed them
    are shown. Commits must pass every filter given; of several --grep or --author patterns one must
    match, of several --metric all.

    --plot draws one curve for each line of history (--all: for each branch). x marks commits that a
    rollback abandoned, ! marks NaN.

    --format takes Git's fields %H %h %P %p %T %s %b %B %an %ae %ad %aI %at %d %D %n %%, and
    %(step), %(metric:NAME), %(meta:NAME).
    """
    check_limit(limit)
    detail = choose_one({"stat": stat, "patch": patch}, "")
    check_clashes(
        _CLASHES,
        {"--plot": plot, "--health": health, "--graph": graph, "--oneline": oneline,
         "--format": form, f"--{detail}": detail, "--sort": sort, "--reverse": reverse,
         "--json": shown.as_json, "--log-scale": log_scale}
    )  # fmt: skip
    if log_scale and not plot:
        raise CommandUsageError("--log-scale needs --plot")
    if form is not None:
        from mvc.cli.render.log_format import check_format

        form = check_format(form)
    repo = open_repo()
    revisions, paths = split_revisions(repo, names)
    # What has one of the metrics is drawn, and only "NAME<2.5" chooses.
    kind = None if merges is None else "merges" if merges else "others"
    wanted = [one for one in metric or () if not plot or any(sign in one for sign in "<>=")]
    given = (since, until, grep or (), author or (), wanted, ignore_case, all_match, invert, kind)
    tests = _make_tests(repo, paths, given)
    options = {"everything": everything, "first_parent": first_parent}
    entries, parents = _select(repo, revisions, tests, limit, sort, options, is_drawn=graph or plot)
    entries = entries[::-1] if reverse else entries
    if shown.as_json:
        write_json([_fields(repo, entry, paths, detail) for entry in entries])
        return
    if plot:
        _draw(entries, parents, metric or (), log_scale=log_scale)
        return
    entries = [_shown(entry, metric or (), decorate=decorate) for entry in entries]
    if health:
        from mvc.cli.render.health import write_health

        write_health(paged(), entries)
        return
    out = paged()
    below = partial(_changed_lines, repo, out, paths, detail) if detail else None
    if form is not None:
        _write_format(out, entries, form, below)
        return
    write = write_oneline if oneline else write_full
    write(out, entries, parents if graph else None, below)


_CLASHES = {
    "--plot": ("--health", "--graph", "--oneline", "--format", "--stat", "--patch", "--sort",
               "--reverse", "--json"),
    "--health": ("--oneline", "--format", "--graph", "--stat", "--patch"),
    "--graph": ("--reverse", "--sort", "--format"),
    "--oneline": ("--format",),
}  # fmt: skip


def _fields(repo: Repo, entry: LogEntry, paths: Sequence[str], detail: str) -> dict[str, object]:
    from mvc.cli.render.files import diff_fields

    files = diff_fields(repo.changes(entry.info.id, paths=paths)) if detail else {}
    return {**entry_fields(entry), **files}


def _make_tests(
    repo: Repo,
    paths: Sequence[str],
    given: Sequence[Any],
) -> list[Test]:
    """Return what a commit must pass to be shown; ``given`` are the fields of a Filter."""
    tests: list[Test] = []
    if any(one not in (None, (), [], False) for one in given):
        from mvc.cli.log_filter import Filter

        tests = Filter(*given).tests()
    return [*tests, lambda entry: _touches(repo, entry, paths)] if paths else tests


def _draw(
    entries: Sequence[LogEntry],
    parents: Mapping[str, Sequence[str]],
    asked: Sequence[str],
    *,
    log_scale: bool,
) -> None:
    from mvc.cli.log_filter import metric_name
    from mvc.cli.render.plot import chosen_metrics, write_curves

    metrics = chosen_metrics(entries, [metric_name(one) for one in asked])
    write_curves(paged(), entries, parents, metrics, log_scale=log_scale)


def _shown(entry: LogEntry, metrics: Sequence[str], *, decorate: bool) -> LogEntry:
    """Return a commit without names, or with only the metrics that were asked for."""
    if not decorate:
        entry = replace(entry, refs=(), is_healthy=False)
    if not metrics:
        return entry
    from mvc.cli.log_filter import metric_name

    names = set(map(metric_name, metrics))
    kept = {name: value for name, value in entry.metrics.items() if name in names}
    return replace(entry, annotations=replace(entry.annotations, metrics=kept))


def _changed_lines(
    repo: Repo, out: Output, paths: Sequence[str], detail: str, entry: LogEntry
) -> list[str]:
    """Return what a commit changed as ``mvc show`` writes it."""
    from mvc.cli.render.files import write_diff
    from mvc.cli.render.text import short_id

    text = io.StringIO()
    form = "stat" if detail == "stat" else "rows"
    files = repo.changes(entry.info.id, paths=paths)
    see_all = f'"mvc show --all {short_id(entry.info.id)}"'
    write_diff(replace(out, stream=text), files, form, everything=False, see_all=see_all)
    return text.getvalue().splitlines()


def _write_format(out: Output, entries: Sequence[LogEntry], form: str, below: Below) -> None:
    from mvc.cli.render.log_format import format_entry

    for entry in entries:
        out.line(format_entry(form, entry))
        out.lines([] if below is None else ["", *below(entry), ""])


def _plain_ranges(repo: Repo, revisions: Sequence[str]) -> tuple[list[str], bool]:
    """Rewrite ``A...B`` as revisions that the log knows; also return whether any are excluded."""
    plain: list[str] = []
    for revision in revisions:
        parts = split_range(revision)
        if parts is None or parts[1] == "..":
            plain.append(revision)
            continue
        base = repo.merge_base(parts[0], parts[2])
        plain += [parts[0], parts[2], *([] if base is None else [f"^{base}"])]
    return plain, any(".." in revision or revision.startswith("^") for revision in plain)


def _select(
    repo: Repo,
    revisions: Sequence[str],
    tests: Sequence[Test],
    limit: int | None,
    sort: str | None,
    options: Mapping[str, bool],
    *,
    is_drawn: bool,
) -> tuple[list[LogEntry], dict[str, tuple[str, ...]]]:
    """Return the entries to show, in their order, and the parents to draw for each."""
    plain, hides_bases = _plain_ranges(repo, revisions)
    is_stream = not tests and sort is None
    found = repo.log(*plain, limit=limit if is_stream else None, **options)
    cut, first_parent = None if sort is not None else limit, options["first_parent"]
    entries, parents = _choose(found, tests, cut, first_parent=first_parent, drawn=is_drawn)
    is_cut = limit is not None and len(entries) == limit and is_stream
    if hides_bases and not is_cut:
        parents = {child: tuple(p for p in many if p in parents) for child, many in parents.items()}
    if sort is not None:
        from mvc.cli.log_filter import sort_entries

        entries = sort_entries(entries, sort)[:limit]
    return entries, parents


def _choose(
    found: Iterator[LogEntry],
    tests: Sequence[Test],
    limit: int | None,
    *,
    first_parent: bool,
    drawn: bool,
) -> tuple[list[LogEntry], dict[str, tuple[str, ...]]]:
    """Return the entries that pass all tests, and the parents to draw for each."""

    def parents_of(entry: LogEntry) -> tuple[str, ...]:
        return entry.info.parents[:1] if first_parent else entry.info.parents

    passing = (entry for entry in found if all(test(entry) for test in tests))
    if not tests or not drawn:
        entries = list(islice(passing, limit))
        return entries, {entry.info.id: parents_of(entry) for entry in entries}
    from mvc.cli.render.graph import close_gaps

    everything = list(found)
    entries = [one for one in everything if all(test(one) for test in tests)][:limit]
    shown: set[str] = {entry.info.id for entry in entries}
    history = [(str(entry.info.id), parents_of(entry)) for entry in everything]
    return entries, close_gaps(history, shown)


def _touches(repo: Repo, entry: LogEntry, paths: Sequence[str]) -> bool:
    """Return whether a commit differs from every parent in these paths."""
    info = entry.info
    if not info.parents:
        return bool(repo.changes(info.id, paths=paths, with_tensors=False))
    return all(
        repo.diff(parent, info.id, paths=paths, with_tensors=False) for parent in info.parents
    )
