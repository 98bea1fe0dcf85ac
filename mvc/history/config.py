"""Git's config files: ``section.key`` or ``section.sub section.key`` → value.

A plain file is read here, and one with quotes, escapes or comments after values by dulwich, which
takes longer to import than to read it. Includes are never followed: only the file that was named is
read. Writing is done here, because dulwich leaves a value with ``;`` unquoted and would read half of it back.
Comments of a config that mvc rewrites are lost.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from mvc import fs
from mvc.errors import FormatError, NotFoundError, UsageError
from mvc.history.locks import RepositoryLock, git_lock
from mvc.history.translate import translate_damage

MAX_CONFIG_BYTES = 1 << 20
_PLAIN_HEADER = re.compile(rb'\[([A-Za-z0-9-]+)(?: "([^"\\\]\0]+)")?\]')
_PLAIN_LINE = re.compile(
    rb"([A-Za-z][A-Za-z0-9-]*)[ \t]*=[ ]*([^\s\0\"\\#;]+(?: +[^\s\0\"\\#;]+)*)"
)
_SECTION = re.compile(r"[A-Za-z0-9.-]+")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]*")
_PLAIN = re.compile(r"[A-Za-z0-9_./:@+,=-]([A-Za-z0-9_./:@+,= -]*[A-Za-z0-9_./:@+,=-])?")
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\b": "\\b"})

Config = dict[str, list[str]]
"""Key (section and name in small letters, subsection as written) → all its values, in order."""


TRUE = ("true", "yes", "on", "1")
"""What switches a setting on, in any case; other words do not."""


def is_true(value: str | None) -> bool:
    """Return whether a setting, if it is there, is on."""
    return value is not None and value.lower() in TRUE


def parse_config(data: bytes, name: str) -> Config:
    """Return what a config file says."""
    if len(data) > MAX_CONFIG_BYTES:
        raise FormatError(f"{name} is longer than {MAX_CONFIG_BYTES:,} bytes")
    plain = _parse_plain(data)
    if plain is not None:
        return plain
    from dulwich.config import ConfigFile  # noqa: PLC0415  see the module's text

    config: Config = {}
    with translate_damage(name, FormatError, f"correct or remove {name}"):
        parsed = ConfigFile.from_file(io.BytesIO(data), expand_includes=False)
        for section in parsed.sections():
            for key, value in parsed.items(section):
                config.setdefault(_join_key(section, key), []).append(_decode(value))
    return config


def _parse_plain(data: bytes) -> Config | None:
    """Return what a config file says, or None if not every line of it is plain."""
    config: Config = {}
    section: tuple[bytes, ...] = ()
    for line in map(bytes.strip, data.split(b"\n")):
        header, pair = _PLAIN_HEADER.fullmatch(line), _PLAIN_LINE.fullmatch(line)
        if header is not None:
            section = tuple(part for part in header.groups() if part is not None)
        elif pair is not None and section:
            config.setdefault(_join_key(section, pair[1]), []).append(_decode(pair[2]))
        elif line and not line.startswith((b"#", b";")):
            return None
    return config


def _join_key(section: tuple[bytes, ...], name: bytes) -> str:
    first, *rest = (_decode(part) for part in section)
    return ".".join([first.lower(), *rest, _decode(name).lower()])


def _decode(text: bytes) -> str:
    return text.decode("utf-8", "surrogateescape")


def encode_config(config: Config) -> bytes:
    """Return the bytes of a config file that says this, one block per section."""
    blocks: dict[str, list[str]] = {}
    for key, values in config.items():
        section, subsection, name = split_key(key)
        header = f"[{section}]\n"
        if subsection is not None:
            escaped = subsection.replace("\\", "\\\\").replace('"', '\\"')
            header = f'[{section} "{escaped}"]\n'
        block = blocks.setdefault(header, [])
        for value in values:
            shown = value if _PLAIN.fullmatch(value) else f'"{value.translate(_ESCAPES)}"'
            block.append(f"\t{name} = {shown}\n")
    text = "".join(header + "".join(lines) for header, lines in blocks.items() if lines)
    data = text.encode("utf-8", "surrogateescape")
    # Read back, since dulwich loses its way in ``[a "\\";"]``, which Git allows.
    with contextlib.suppress(FormatError):
        if parse_config(data, "config") == {key: v for key, v in config.items() if v}:
            return data
    raise UsageError("a config with such a subsection cannot be read back")


def split_key(key: str) -> tuple[str, str | None, str]:
    """Return (section, subsection or None, name) of a key."""
    section, dot, rest = key.partition(".")
    subsection, inner, name = rest.rpartition(".")
    bad = "\n" in subsection or "\0" in subsection
    if not dot or not _SECTION.fullmatch(section) or not _NAME.fullmatch(name) or bad:
        raise UsageError(f"{key!r} is not a config key", hint='write it as "section.name"')
    return section.lower(), subsection if inner else None, name.lower()


def normal_key(key: str) -> str:
    """Return a key as ``parse_config`` spells it."""
    section, subsection, name = split_key(key)
    return f"{section}.{name}" if subsection is None else f"{section}.{subsection}.{name}"


def check_value(value: str) -> str:
    """Return a value that a config file can hold."""
    if "\0" in value:
        raise UsageError("a config value cannot hold a NUL character")
    try:
        value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise UsageError("the config value is not valid text") from error
    return value


def read_config_file(path: Path) -> Config:
    """Return what a config file says; nothing if there is no file."""
    with translate_damage(str(path), FormatError, f"correct or remove {path}"):
        try:
            with fs.open_file(path) as file:
                data = file.read(MAX_CONFIG_BYTES + 1)
        except FileNotFoundError:
            return {}
    return parse_config(data, str(path))


def find_user_file() -> Path | None:
    """Return where the user's own settings of mvc are, or None without a home."""
    environment = os.environ
    home = environment.get("HOME")
    folder = environment.get("XDG_CONFIG_HOME") or (f"{home}/.config" if home else None)
    return None if folder is None else Path(folder, "mvc", "config")


class RepositoryConfig:
    """The settings of a repository, and the user's own where it says nothing."""

    def __init__(self, path: Path, lock: RepositoryLock) -> None:
        self._path, self._lock = path, lock

    def read(self) -> dict[str, str]:
        """Return ``section.key`` → value; the last one if there are several."""
        return {key: values[-1] for key, values in self.read_all().items()}

    def read_all(self) -> Config:
        """Return ``section.key`` → all its values."""
        user, own = find_user_file(), Config()
        if user is not None and os.access(
            user, os.R_OK
        ):  # Git passes over what it may not read, too
            own = read_config_file(user)
        return {**own, **self.parse()}

    def parse(self) -> Config:
        """Return what the repository's own file says."""
        return read_config_file(self._path)

    def get(self, key: str) -> str | None:
        """Return one value, or None."""
        return last_value(self.read_all(), normal_key(key))

    def set(self, key: str, value: str) -> None:
        """Set a value durably; it replaces all values of that key."""
        self._change(normal_key(key), [check_value(value)])

    def unset(self, key: str) -> None:
        """Remove a key durably."""
        key = normal_key(key)
        with self._lock.hold():
            if key not in self.parse():
                raise NotFoundError(f"{key} is not set")
            self._change(key, [])

    def _change(self, key: str, values: list[str]) -> None:
        with self._lock.writing([self._path.name]), git_lock(self._path) as file:
            config = self.parse()
            config[key] = values
            file.write([encode_config(config)])
            file.publish(self._path)


def read_user(paths: Iterable[Path]) -> tuple[str | None, str | None]:
    """Return (user.name, user.email) from Git config files, later files winning.

    Files that do not exist say nothing.
    """
    name = email = None
    for path in paths:
        config = read_config_file(path)
        name = last_value(config, "user.name") or name
        email = last_value(config, "user.email") or email
    return name, email


def last_value(config: Mapping[str, list[str]], key: str) -> str | None:
    """Return the value that counts, the last one, or None."""
    values = config.get(key)
    return values[-1] if values else None
