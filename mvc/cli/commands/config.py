"""Read and change settings."""

from __future__ import annotations

from typing import Annotated

import typer

from mvc.cli.group import usage
from mvc.cli.options import Json
from mvc.cli.output import printable, stdout, write_json
from mvc.cli.session import open_repo
from mvc.errors import NotFoundError


def config(
    context: typer.Context,
    key: Annotated[str | None, typer.Argument(metavar="[KEY")] = None,
    value: Annotated[str | None, typer.Argument(metavar="[VALUE]]")] = None,
    unset: Annotated[
        str | None, typer.Option("--unset", metavar="KEY", help="Take a setting away.")
    ] = None,
    listed: Annotated[bool, typer.Option("-l", "--list", help="Print all settings.")] = False,
    as_json: Json = False,
) -> None:
    """Read and change the repository's settings, written as section.key.

    user.name and user.email say who commits; where they are not set, the user's Git config does.
    mvc.chunkbytes is the length of chunks of files that are added from then on; mvc.delta says when
    they are stored as differences: never, auto (where that gains much) or always. mvc.autorepack
    true lets commits repack in the background.
    """
    if unset is not None and (key is not None or listed):
        raise usage("--unset takes one key and nothing else", context)
    repo = open_repo()
    if unset is not None:
        _find_setting(repo.config(), unset)
        repo.set_config(unset, None)
    elif key is not None and value is not None:
        repo.set_config(key, value)
    elif key is not None and not listed:
        _write_settings({key: _find_setting(repo.config(), key)}, alone=True, as_json=as_json)
    else:
        _write_settings(repo.config(), alone=False, as_json=as_json)


def _find_setting(settings: dict[str, str], key: str) -> str:
    """Section and name are the same in any case; only a subsection between them is not."""
    section, dot, rest = key.partition(".")
    middle, inner, name = rest.rpartition(".")
    spelled = section.lower() + dot + middle + inner + name.lower()
    if spelled not in settings:
        raise NotFoundError(f"{key!r} is not set", hint='"mvc config --list" shows what is')
    return settings[spelled]


def _write_settings(settings: dict[str, str], *, alone: bool, as_json: bool) -> None:
    if as_json:
        write_json(settings)
        return
    lines = settings.values() if alone else (f"{key}={text}" for key, text in settings.items())
    stdout().lines(map(printable, lines))
