"""Show which commit last changed each tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.cli.options import PROGRESS_JSON, TENSORS
from mvc.cli.output import Shown
from mvc.cli.parameters import CommandUsageError, arguments, flag, string
from mvc.cli.progress import byte_progress
from mvc.cli.session import is_revision, open_repo, to_paths

if TYPE_CHECKING:
    from mvc.repo import Repo


def blame(
    names: list[str] = arguments("[REV] [GLOB] [[--] PATH...]"),
    tensors: str | None = TENSORS,
    by: str = string("--by KIND", "One line for each: tensor or module.", default="tensor"),
    stats: bool = flag("--stats", "Compute and cache the drift that is not known yet."),
    everything: bool = flag("--all", "List every tensor, even if they do not fit on the screen."),
    shown: Shown = PROGRESS_JSON,
) -> None:
    """Show for each tensor the commit that last changed it, and its drift along history.

    GLOB selects tensors by name, or a whole module: model.layers.0.mlp. REV defaults to HEAD. Blame
    follows renamed tensors; at a merge it passes to the parent with the same bits.

    The curve is the relative distance from the first version of the tensor, as far as earlier
    comparisons cached it. A dot marks a version not yet compared, ! one with NaN or infinities.
    """
    if by not in ("tensor", "module"):
        raise CommandUsageError(f"--by {by!r} is not tensor or module")
    repo = open_repo()
    revision, pattern, paths = _sort_out(repo, names)
    if pattern is not None and tensors is not None:
        raise CommandUsageError(f"{pattern!r} and --tensors cannot be used together")
    from mvc.cli.render.blame import blame_fields, write_blame

    with byte_progress("comparing", wanted=stats and shown.progress and not shown.as_json):
        found = repo.blame(revision, tensors=pattern or tensors, paths=paths, compute=stats)
    shown.page(lambda: blame_fields(found, by), write_blame, found, by, everything=everything)


def _sort_out(repo: Repo, names: list[str]) -> tuple[str, str | None, list[str]]:
    """Return (revision, wildcard of tensors, paths) of the arguments."""
    at = names.index("--") if "--" in names else len(names)
    words, paths = names[:at], to_paths(names[at + 1 :])
    revision = words.pop(0) if words and is_revision(repo, words[0]) else "HEAD"
    files = [word for word in words if _holds(repo, revision, word)]
    patterns = [word for word in words if word not in files]
    if len(patterns) > 1:
        raise CommandUsageError(f"unexpected argument {patterns[1]!r}")
    return revision, patterns[0] if patterns else None, [*to_paths(files), *paths]


def _holds(repo: Repo, revision: str, word: str) -> bool:
    from mvc.errors import NotFoundError, UsageError

    try:
        return bool(repo.ls(revision, paths=to_paths([word])))
    except (NotFoundError, UsageError):
        return False
