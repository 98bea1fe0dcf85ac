"""commit: what is staged becomes a commit."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from mvc.cli.options import DELTA, NO_GATE, QUIET_PROGRESS_JSON, check_alone
from mvc.cli.output import Output, Shown, pick, printable, warn
from mvc.cli.parameters import (
    CommandUsageError,
    arguments,
    flag,
    integer,
    parse_number,
    string,
    strings,
)
from mvc.cli.progress import byte_progress
from mvc.cli.render.text import count_text, seconds_text, short_id, size_text, step_text
from mvc.cli.session import open_repo, to_paths
from mvc.errors import ConflictError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mvc.repo import Repo
    from mvc.workspace.commits import CommitResult


def commit(
    paths: list[str] = arguments("[PATH]..."),
    messages: list[str] = strings("-m, --message TEXT", "The message; each -m is a paragraph."),
    everything: bool = flag("-a, --all", "First add every tracked file that changed."),
    file: str | None = string("-F, --file FILE", "Read the message; - is stdin."),
    edit: bool | None = flag(
        "-e, --edit / --no-edit",
        "Write the message in an editor; without -m or -F this is the default, except with --amend.",
        default=None,
    ),
    amend: bool = flag("--amend", "Replace the last commit."),
    allow_empty: bool = flag("--allow-empty", "Commit even if nothing changed."),
    step: int | None = integer("--step N", "Training step; main@N finds the commit by it."),
    metrics: list[str] = strings("--metric NAME=NUMBER", "A metric; the log shows it."),
    meta: list[str] = strings(
        "--meta NAME=VALUE", "A fact: a metric if VALUE is a number, else text."
    ),
    delta: bool | None = DELTA,
    no_gate: bool = NO_GATE,
    shown: Shown = QUIET_PROGRESS_JSON,
) -> None:
    """Record what is staged in the history and move the branch to it.

    Without -m or -F, a terminal opens the editor: GIT_EDITOR, core.editor, VISUAL, EDITOR or vi.
    PATHs are added first. Step, metrics and other facts are stored as trailers of the message, so
    that stock Git shows them too.
    """
    if everything and paths:
        raise CommandUsageError("paths and -a cannot be used together")
    numbers, texts = parse_facts(metrics, meta)
    check_alone([("-m", messages), ("-F", file)])
    from mvc.workspace.settings import find_identity

    repo = open_repo()
    may_be_empty = bool(everything or paths or amend or allow_empty)
    message = _find_message(repo, messages, file, edit=edit, amend=amend, may_be_empty=may_be_empty)
    who, is_guessed = find_identity(repo.config())
    repo.identity = who
    with byte_progress("adding", wanted=shown.progress):
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
            no_gate=no_gate,
        )
    if not shown.as_json:
        _warn(result)
        if is_guessed:
            warn(
                f"the author {who.name} <{who.email}> is guessed from the login name; "
                '"mvc config user.name NAME" and "mvc config user.email MAIL" set it'
            )
    shown.answer(_commit_fields(result), _write_commit, result)


def _warn(result: CommitResult) -> None:
    for path, text in result.warnings:
        warn(f"{path}: {text}")
    for reason in result.failed_gates:
        warn(f"marked as failed {reason}")
    if result.unsent is not None:
        warn(f"the commit is here, but not on the store: {result.unsent}")


def _find_message(
    repo: Repo,
    messages: Sequence[str],
    file: str | None,
    *,
    edit: bool | None,
    amend: bool,
    may_be_empty: bool,
) -> str | None:
    """Return the message, before files are read, which may take minutes; None keeps the last."""
    message = "\n\n".join(text.strip("\n") for text in messages) if messages else None
    if file is not None:
        from mvc.cli.editor import read_message

        message = read_message(Path("/dev/stdin" if file == "-" else file)).strip("\n")
    if edit or (edit is None and message is None and not amend):
        from mvc.cli.editor import can_edit, edit_message

        if edit or can_edit():
            if not may_be_empty and not repo.diff(staged=True, with_tensors=False):
                raise ConflictError("nothing to commit", hint='stage files with "mvc add" first')
            last = repo.show().info if amend and message is None else None
            old = message if last is None else f"{last.subject}\n\n{last.body}"
            message = edit_message(repo, old or "")
    if (message or "").strip() or (message is None and amend):
        return message
    raise UsageError("a commit needs a message", hint='give one with "-m"')


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


def _commit_fields(result: CommitResult) -> dict[str, object]:
    return {
        **pick(result, "commit branch subject parents"),
        "files": {"total": result.files_total, "changed": result.files_changed},
        "tensors": {"total": result.tensors_total, "new": result.tensors_new},
        "bytes": pick(result, "plain=plain_bytes written=written_bytes reused=reused_bytes"),
        "seconds": result.seconds,
        "warnings": [{"path": path, "message": text} for path, text in result.warnings],
        "identical_to": None if result.identical_to is None else asdict(result.identical_to),
        "failed_gates": result.failed_gates,
        "unsent": result.unsent,
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
        out.line(
            f" bit-identical to released commit {short_id(twin.commit)}{step_text(twin.step)}: "
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
