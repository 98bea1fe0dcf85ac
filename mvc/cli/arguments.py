"""Arguments that commands read alike: what follows ``--``, and combinations that make no sense."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import typer

PATHS_KEY = "mvc.paths"


def paths_after(context: typer.Context) -> list[str] | None:
    """Return the arguments after ``--``, or None if there was no ``--``."""
    found: list[str] | None = context.meta.get(PATHS_KEY)
    return found


def usage(message: str, context: typer.Context) -> UsageError:
    """Return the error for arguments that make no sense together."""
    return UsageError(message, hint=f'"{context.command_path} --help" shows its usage')


def check_alone(context: typer.Context, chosen: Sequence[tuple[str, object]]) -> None:
    """Check that at most one of these (option, value) pairs was given."""
    given = [name for name, value in chosen if value]
    if len(given) > 1:
        raise usage(f"{given[0]} and {given[1]} cannot be used together", context)


def check_limit(context: typer.Context, limit: int | None) -> None:
    """Check that ``-n`` is not negative."""
    if limit is not None and limit < 0:
        raise usage(f"-n {limit} is negative", context)


def single_revision(context: typer.Context, revisions: Sequence[str]) -> str | None:
    """Return the only revision that was given, or None."""
    if len(revisions) > 1:
        raise usage(f"expected one revision, not {len(revisions)}", context)
    return revisions[0] if revisions else None


def name_and_start(context: typer.Context, names: Sequence[str]) -> tuple[str, str]:
    """Return a new name and the revision to give it to: HEAD if omitted."""
    if len(names) > 2:  # noqa: PLR2004  name and start
        raise usage(f"unexpected argument {names[2]!r}", context)
    name, start = [*names, "HEAD"][:2]
    return name, start
