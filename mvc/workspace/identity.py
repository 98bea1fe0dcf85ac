"""Who acts, where no caller says so: found in Git's order of places."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from mvc.errors import MvcError
from mvc.history.config import read_user
from mvc.history.values import Identity

if TYPE_CHECKING:
    from collections.abc import Mapping


def find_identity(settings: Mapping[str, str]) -> tuple[Identity, bool]:
    """Return who acts, by a repository's settings, and whether it was guessed from the login name.

    The first place that has a name counts, and likewise for the address: ``GIT_AUTHOR_NAME`` and
    ``GIT_AUTHOR_EMAIL``, the settings of the repository, the user's Git config, ``EMAIL``.
    """
    environment = os.environ
    name = environment.get("GIT_AUTHOR_NAME") or settings.get("user.name")
    email = environment.get("GIT_AUTHOR_EMAIL") or settings.get("user.email")
    if not name or not email:
        user_name, user_email = _read_user_config(environment)
        name, email = name or user_name, email or user_email or environment.get("EMAIL")
    if name and email:
        return Identity(name, email), False
    login = _login()
    return Identity(name or login, email or f"{login}@{os.uname().nodename}"), True


def _read_user_config(environment: Mapping[str, str]) -> tuple[str | None, str | None]:
    try:
        return read_user(_config_paths(environment))
    except MvcError:
        return None, None  # another program's broken file must not keep anyone from committing


def _config_paths(environment: Mapping[str, str]) -> list[Path]:
    """Return the user's Git config files in the order in which Git reads them; later ones win."""
    if environment.get("GIT_CONFIG_GLOBAL"):
        return [Path(environment["GIT_CONFIG_GLOBAL"])]
    home = environment.get("HOME")
    config_home = environment.get("XDG_CONFIG_HOME") or (f"{home}/.config" if home else None)
    paths = [Path(config_home, "git", "config")] if config_home else []
    if home:
        paths.append(Path(home, ".gitconfig"))
    return paths


def _login() -> str:
    import getpass  # noqa: PLC0415  it brings the terminal's settings

    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return "nobody"  # in a container, the user may have no name
