"""The history: commits, and where branches have been."""

from __future__ import annotations

import io
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from mvc.cli.options import JSON, LIMIT, STAT, check_clashes, check_limit, choose_one
from mvc.cli.output import Output, Shown, paged, pick, printable
from mvc.cli.parameters import CommandUsageError, argument, arguments, flag, named, string, strings
from mvc.cli.render.log import entry_fields, write_full, write_health, write_oneline
from mvc.cli.render.text import iso_date, short_id
from mvc.cli.session import open_repo, split_revisions
from mvc.history.revisions import split_range

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mvc.cli.log_filter import Test
    from mvc.operations.log import LogEntry
    from mvc.repo import Repo


_OPTIONS = named(
    flag("--oneline", "Print one line per commit, with step and metrics in columns."),
    flag("--graph", "Draw branches and merges on the left."),
    flag("--all", "Start at every branch and tag, not only at HEAD."),
    LIMIT,
    flag("--first-parent", "Follow only the first parent of merges."),
    flag("--decorate / --no-decorate", "Show the names of branches and tags.", default=True),
    string("--since, --after DATE", "From DATE on, or an age: 12h, 2 weeks ago."),
    string("--until, --before DATE", "Up to DATE, or an age."),
    strings("--grep PATTERN", "The message matches (a regular expression)."),
    flag("-i, --ignore-case", "--grep and --author ignore case."),
    flag("--all-match", "Every --grep must match, not only one."),
    flag("--invert-grep", "The message must not match --grep."),
    flag("--merges / --no-merges", "Only merges, or no merges.", default=None),
    strings("--author PATTERN", "NAME <EMAIL> matches."),
    strings("--metric NAME", 'Commits with this metric, or "NAME<2.5".'),
    string("--sort, --sort-by NAME", "Sort by step, date or a metric; -NAME: largest first."),
    flag("--plot", "Draw each --metric (default: loss) as a curve."),
    flag("--log-scale", "With --plot: a logarithmic vertical axis."),
    flag("--reverse", "Print the oldest first."),
    flag("-p, --patch", "Also show what each commit changed."),
    STAT,
    string("--format, --pretty TEXT", "TEXT for each: %h %s %(metric:loss)."),
    flag("--health", "NaN, infinities, largest magnitude and norm of the weights."),
)
_CLASHES = {
    "--plot": ("--health", "--graph", "--oneline", "--format", "--stat", "--patch", "--sort",
               "--reverse", "--json"),
    "--health": ("--oneline", "--format", "--graph", "--stat", "--patch"),
    "--graph": ("--reverse", "--sort", "--format"),
    "--oneline": ("--format",),
}  # fmt: skip


def log(
    names: list[str] = arguments("[REV | A..B]... [[--] PATH...]"),
    options: dict[str, Any] = _OPTIONS,
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
    check_limit(options["max-count"])
    detail = choose_one({name: options[name] for name in ("stat", "patch")}, "")
    given = {f"--{name}": value for name, value in options.items()}
    check_clashes(_CLASHES, {**given, "--json": shown.as_json})
    if options["log-scale"] and not options["plot"]:
        raise CommandUsageError("--log-scale needs --plot")
    if options["format"] is not None:
        from mvc.cli.render.log_format import check_format

        options["format"] = check_format(options["format"])
    repo = open_repo()
    revisions, paths = split_revisions(repo, names)
    entries, parents = _select(repo, revisions, _make_tests(repo, paths, options), options)
    entries = entries[::-1] if options["reverse"] else entries

    def fields() -> list[dict[str, object]]:
        from mvc.cli.render.files import diff_fields

        if not detail:
            return list(map(entry_fields, entries))
        changes = (repo.changes(entry.info.id, paths=paths) for entry in entries)
        files = map(diff_fields, changes)
        return [{**entry_fields(entry), **more} for entry, more in zip(entries, files, strict=True)]

    if options["plot"]:
        _draw(entries, parents, options)
    else:
        below = partial(_changed_lines, repo, paths, detail) if detail else None
        shown.page(fields, _write, entries, parents, options, below)


def _make_tests(repo: Repo, paths: Sequence[str], options: Mapping[str, Any]) -> list[Test]:
    """Return what a commit must pass to be shown."""
    tests: list[Test] = []
    # What has one of the metrics is drawn, and only "NAME<2.5" chooses.
    signs = "<>=" if options["plot"] else ""
    metrics = [text for text in options["metric"] if not signs or set(signs) & set(text)]
    names = ("since", "until", "grep", "author")
    given = [options[name] for name in ("merges", *names)]
    if metrics or any(value is not None and value != [] for value in given):
        from mvc.cli.log_filter import make_tests

        tests = make_tests({**options, "metric": metrics})
    return [*tests, lambda entry: _touches(repo, entry, paths)] if paths else tests


def _draw(
    entries: Sequence[LogEntry], parents: Mapping[str, Sequence[str]], options: Mapping[str, Any]
) -> None:
    from mvc.cli.log_filter import metric_name
    from mvc.cli.render.plot import chosen_metrics, write_curves

    metrics = chosen_metrics(entries, [metric_name(text) for text in options["metric"]])
    write_curves(paged(), entries, parents, metrics, log_scale=options["log-scale"])


def _write(
    out: Output,
    entries: Sequence[LogEntry],
    parents: Mapping[str, Sequence[str]],
    options: Mapping[str, Any],
    changes: Callable[[Output, LogEntry], list[str]] | None,
) -> None:
    """Write commits in the form that options choose; ``changes`` has what goes below each."""
    below = None if changes is None else partial(changes, out)
    metrics, decorate = options["metric"], options["decorate"]
    entries = [_shown(entry, metrics, decorate=decorate) for entry in entries]
    if options["health"]:
        write_health(out, entries)
    elif options["format"] is not None:
        from mvc.cli.render.log_format import format_entry

        for entry in entries:
            out.line(format_entry(options["format"], entry))
            out.lines([] if below is None else ["", *below(entry), ""])
    else:
        write = write_oneline if options["oneline"] else write_full
        write(out, entries, parents if options["graph"] else None, below)


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
    repo: Repo, paths: Sequence[str], detail: str, out: Output, entry: LogEntry
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
    repo: Repo, revisions: Sequence[str], tests: Sequence[Test], options: Mapping[str, Any]
) -> tuple[list[LogEntry], dict[str, tuple[str, ...]]]:
    """Return the entries to show, in their order, and the parents to draw for each."""
    limit, sort, first_parent = (options[name] for name in ("max-count", "sort", "first-parent"))
    plain, hides_bases = _plain_ranges(repo, revisions)
    is_stream = not tests and sort is None
    how = {"everything": options["all"], "first_parent": first_parent}
    found = repo.log(*plain, limit=limit if is_stream else None, **how)
    cut = None if sort is not None else limit

    def parents_of(entry: LogEntry) -> tuple[str, ...]:
        return entry.info.parents[:1] if first_parent else entry.info.parents

    if tests and (options["graph"] or options["plot"]):
        from mvc.cli.render.graph import close_gaps

        everything = list(found)
        entries = [entry for entry in everything if all(test(entry) for test in tests)][:cut]
        history = [(str(entry.info.id), parents_of(entry)) for entry in everything]
        parents = close_gaps(history, {entry.info.id for entry in entries})
    else:
        passing = (entry for entry in found if all(test(entry) for test in tests))
        entries = list(islice(passing, cut))
        parents = {entry.info.id: parents_of(entry) for entry in entries}
    is_cut = limit is not None and len(entries) == limit and is_stream
    if hides_bases and not is_cut:
        parents = {child: tuple(p for p in many if p in parents) for child, many in parents.items()}
    if sort is not None:
        from mvc.cli.log_filter import sort_entries

        entries = sort_entries(entries, sort)[:limit]
    return entries, parents


def _touches(repo: Repo, entry: LogEntry, paths: Sequence[str]) -> bool:
    """Return whether a commit differs from every parent in these paths."""
    info = entry.info
    if not info.parents:
        return bool(repo.changes(info.id, paths=paths, with_tensors=False))
    return all(
        repo.diff(parent, info.id, paths=paths, with_tensors=False) for parent in info.parents
    )


def reflog(
    ref: str = argument("[REF]", default="HEAD"),
    limit: int | None = LIMIT,
    shown: Shown = JSON,
) -> None:
    """Show where a branch or HEAD has been, newest first.

    REF@{N} is a revision: "mvc checkout HEAD@{1}" goes back to where HEAD was before its last move.
    """
    repo = open_repo()
    entries = list(enumerate(repo.reflog(ref)))[:limit]
    fields = [
        {
            "ref": f"{ref}@{{{number}}}",
            **pick(entry, "old new"),
            "who": f"{entry.who.name} <{entry.who.email}>",
            "date": iso_date(entry.time_s, entry.timezone_s),
            "message": entry.message,
        }
        for number, entry in entries
    ]

    def write(out: Output) -> None:
        for number, entry in entries:
            name = out.style(short_id(entry.new), "yellow")
            out.line(f"{name} {printable(ref)}@{{{number}}}: {printable(entry.message)}")

    shown.page(fields, write)
