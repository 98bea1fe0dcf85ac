"""Read and change a repository's settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.cli.options import JSON
from mvc.cli.output import Output, Shown, printable
from mvc.cli.parameters import CommandUsageError, argument, flag, string
from mvc.cli.session import open_repo
from mvc.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable

    Settings = tuple[Callable[[], dict[str, str]], Callable[[str, str | None], None]]


def config(
    key: str | None = argument("[KEY"),
    value: str | None = argument("[VALUE]]"),
    unset: str | None = string("--unset KEY", "Remove a setting."),
    user: bool = flag("--global", "Your own settings, for all repositories."),
    listed: bool = flag("-l, --list", "Print all settings."),
    shown: Shown = JSON,
) -> None:
    """Read and change the repository's settings, written as section.key.

    user.name and user.email say who commits; they default to the user's Git config. mvc.chunkbytes
    is the chunk length for files added from then on. mvc.delta is when their chunks are stored as
    differences: never, auto (if that saves a quarter) or always. mvc.autorepack = true lets commits
    start a repack in the background. cache.size bounds what is kept of content read from remotes, such
    as 500M; the default is 10G. gate.nan, gate.inf, gate.max, gate.norm and gate.norm-growth
    are limits on the health of a commit; gate.mode sets whether a commit beyond a limit is refused
    (the default) or marked.

    Your own settings (--global) count where a repository says nothing. Only there are
    core.editor, core.pager and aliases: alias.ci = "commit -a" makes "mvc ci" mean "mvc commit -a".
    """
    if unset is not None and (key is not None or listed):
        raise CommandUsageError("--unset takes a key and nothing else")
    if user:
        from mvc.workspace.settings import read_user_settings as read
        from mvc.workspace.settings import set_user_setting as change
    else:
        repo = open_repo()
        read, change = repo.config, repo.set_config
    if unset is not None:
        _find_setting(read(), unset)
        change(unset, None)
    elif key is not None and value is not None:
        change(key, value)
    elif key is not None and not listed:
        setting = _find_setting(read(), key)
        shown.page({key: setting}, Output.line, printable(setting))
    else:
        settings = read()
        lines = (printable(f"{key}={text}") for key, text in settings.items())
        shown.page(settings, Output.lines, lines)


def _find_setting(settings: dict[str, str], key: str) -> str:
    """Find a setting; like Git, only the subsection in the middle is case-sensitive."""
    section, dot, rest = key.partition(".")
    middle, inner, name = rest.rpartition(".")
    spelled = section.lower() + dot + middle + inner + name.lower()
    if spelled not in settings:
        raise NotFoundError(f"{key!r} is not set", hint='"mvc config --list" shows all settings')
    return settings[spelled]
