"""Settings: which ones exist, what values they take, and the user's own beside the repository's.

The user's own are in ``$XDG_CONFIG_HOME/mvc/config`` (``~/.config/mvc/config``) and count where a
repository says nothing. What runs programs or rewrites command lines is the user's alone: a repository
may come from anywhere.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from mvc import fs
from mvc.errors import FormatError, MvcError, NotFoundError, UsageError
from mvc.history.config import (
    TRUE,
    check_value,
    encode_config,
    find_user_file,
    normal_key,
    read_config_file,
    read_user,
)
from mvc.history.locks import git_lock
from mvc.history.values import Identity

_SWITCHES = (*TRUE, "false", "no", "off", "0")
CACHE_SIZE = "cache.size"
_SIZE = re.compile(r"([1-9][0-9]{0,11})([KMGT]?)", re.ASCII | re.IGNORECASE)
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_DEFAULT_CACHE = "10G"
_MAX_DIGITS = 12
OWN = ("mvc.chunkbytes", "mvc.delta", "mvc.autorepack", "mvc.store")
"""The settings of mvc itself."""
_USERS = ("alias.", "core.editor", "core.pager")

_SECRET = re.compile(r"(https?|s3|gs|az|hf)://\S*@|[a-z0-9+.-]+://(\S*:\S*@|\S*\?)", re.IGNORECASE)

_TRUST = re.compile(
    r"(http|https|remote|s3|aws|storage|ssl|tls)\.(?:.*\.)?[^.]*"
    r"(ssl|tls|verify|insecure|invalid|allow-?http|certificate|ca-?(bundle|file|info|path))[^.]*"
)


def check_trust(keys: Iterable[str]) -> None:
    """Refuse settings that would decide which servers are believed: no config of mvc does."""
    for key in filter(_TRUST.fullmatch, keys):
        raise UsageError(
            f"the setting {key} is refused: the config does not decide which servers are trusted",
            hint=f'"mvc config --unset {key}" removes it; SSL_CERT_FILE in the environment names a '
            "file of further certificate authorities",
        )


def check_setting(key: str, value: str, *, is_users: bool) -> str:
    """Return a key as it is stored; UsageError if there is no such setting, or not with this value."""
    key = normal_key(key)
    check_trust([key])
    if key.startswith("mvc.") and key not in OWN:
        import difflib  # noqa: PLC0415  only to help after a mistake

        close = difflib.get_close_matches(key, OWN, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(OWN)}"
        raise UsageError(f"mvc has no setting {key!r}", hint=hint)
    if key.startswith("gate."):
        from mvc.workspace.health import check_gate  # noqa: PLC0415  few commands need it

        check_gate(key, value)
    if key.startswith(_USERS) and not is_users:
        raise UsageError(
            f"{key} is a user setting; a repository cannot set it",
            hint=f'"mvc config --global {key} VALUE" sets it',
        )
    _check_choice(key, value)
    if key.startswith("remote.") and _SECRET.match(value):
        raise UsageError(
            f"the value of {key} holds credentials",
            hint="they come from the environment or the platform's own files, never from a URL",
        )
    if key == "mvc.chunkbytes":
        try:
            parse_chunk_bytes(value)
        except FormatError as error:
            raise UsageError(error.message, hint=error.hint) from None
    if key in ("user.name", "user.email") and (
        not value.strip() or any(s in value for s in "<>\n")
    ):
        raise UsageError(f"{key} {value[:80]!r} is empty or has <, > or a line feed")
    return key


def _check_choice(key: str, value: str) -> None:
    if key == "mvc.autorepack":
        check_switch(key, value)
    elif key == "mvc.delta":
        _check_among(key, value, ("never", "auto", "always"), shown=("never", "auto", "always"))
    elif key == CACHE_SIZE:
        parse_cache_size(value)


def check_switch(key: str, value: str) -> None:
    """Check a setting that is on or off."""
    _check_among(key, value.lower(), _SWITCHES, shown=("true", "false"))


def _check_among(key: str, value: str, choices: Sequence[str], *, shown: Sequence[str]) -> None:
    if value not in choices:
        raise UsageError(
            f"{key} must be one of {', '.join(shown)}, not {value[:80]!r}",
            hint=f'such as "mvc config {key} {shown[-1]}"',
        )


def parse_cache_size(text: str | None) -> int:
    """Return how many bytes the cache of what is on remotes may take, by ``cache.size`` or default."""
    match = _SIZE.fullmatch(text or _DEFAULT_CACHE)
    if match is None:
        raise UsageError(
            f"{CACHE_SIZE} is {(text or '')[:80]!r}, not a size such as 500M or 10G",
            hint=f'set it with "mvc config {CACHE_SIZE} {_DEFAULT_CACHE}"',
        )
    return int(match[1]) * _UNITS[match[2].upper()]


def parse_chunk_bytes(text: str) -> int:
    """Return the chunk length that ``mvc.chunkbytes`` says; FormatError if it is not a valid one."""
    from mvc.formats.manifest import check_chunk_bytes  # noqa: PLC0415  few commands need it

    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS):
        raise FormatError(
            f"mvc.chunkbytes is {text[:80]!r}, not a number of bytes",
            hint='set it with "mvc config mvc.chunkbytes 4194304"',
        )
    check_chunk_bytes(int(text))
    return int(text)


def read_user_settings() -> dict[str, str]:
    """Return the user's own settings."""
    path = find_user_file()
    return {} if path is None else {k: v[-1] for k, v in read_config_file(path).items()}


def set_user_setting(key: str, value: str | None) -> None:
    """Set one of the user's settings durably, or remove it with None."""
    path = find_user_file()
    if path is None:
        raise UsageError("there is no place for your settings", hint="set HOME")
    key = normal_key(key) if value is None else check_setting(key, value, is_users=True)
    fs.make_dirs(path.parent)
    with git_lock(path) as file:
        config = read_config_file(path)
        if value is None and key not in config:
            raise NotFoundError(f"{key} is not set")
        config[key] = [] if value is None else [check_value(value)]
        file.write([encode_config(config)])
        file.publish(path)


def find_identity(settings: Mapping[str, str]) -> tuple[Identity, bool]:
    """Return who acts, by a repository's settings, and whether it was guessed from the login name.

    The first place that has a name counts, and likewise for the address: ``GIT_AUTHOR_NAME`` and
    ``GIT_AUTHOR_EMAIL``, the settings of the repository, the user's Git config, ``EMAIL``.
    """
    environment = os.environ
    name = environment.get("GIT_AUTHOR_NAME") or settings.get("user.name")
    email = environment.get("GIT_AUTHOR_EMAIL") or settings.get("user.email")
    if not name or not email:
        user_name = user_email = None
        with contextlib.suppress(MvcError):  # another program's broken file must not stop a commit
            user_name, user_email = read_user(_config_paths(environment))
        name, email = name or user_name, email or user_email or environment.get("EMAIL")
    if name and email:
        return Identity(name, email), False
    login = _login()
    return Identity(name or login, email or f"{login}@{os.uname().nodename}"), True


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
