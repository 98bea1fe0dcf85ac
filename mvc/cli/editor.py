"""A message written in the user's editor, as Git does it; imported only when one is needed."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from mvc.errors import NotFoundError, UsageError
from mvc.fs import write_durable
from mvc.workspace.settings import read_user_settings

if TYPE_CHECKING:
    from pathlib import Path

    from mvc.repo import Repo

_NAME = "COMMIT_EDITMSG"
_COMMENT = "#"
_TEMPLATE = """{message}
# The message of the commit on {place}. Lines that begin with '#' are left out;
# an empty message stops the commit.
"""
MAX_MESSAGE_BYTES = 1 << 20


def can_edit() -> bool:
    """Return whether someone is there to write: a terminal, or an editor that is set for scripts."""
    return sys.stdin.isatty() or bool(os.environ.get("GIT_EDITOR"))


def edit_message(repo: Repo, message: str) -> str:
    """Return what the user makes of a message; UsageError if nothing is left of it."""
    path = repo.git_dir / _NAME
    head = repo.head
    place = "a detached HEAD" if head.branch is None else f"branch {head.branch}"
    template = _TEMPLATE.format(message=message.rstrip("\n"), place=place)
    write_durable(path, [template.encode()])
    named = (os.environ.get("GIT_EDITOR"), read_user_settings().get("core.editor"))
    others = (os.environ.get("VISUAL"), os.environ.get("EDITOR"))
    editor = next((command for command in (*named, *others) if command), "vi")
    # The shell splits the command, as it does for Git: an editor may be set with its options.
    shell = ["/bin/sh", "-c", f'{editor} "$@"', editor, str(path)]
    if subprocess.run(shell, check=False, env=os.environ).returncode:  # noqa: S603  the user's own
        raise UsageError(
            f"editor {editor!r} failed", hint='set GIT_EDITOR, or give the message with "-m"'
        )
    lines = read_message(path).split("\n")
    kept = [line.rstrip() for line in lines if not line.startswith(_COMMENT)]
    return "\n".join(kept).strip("\n")


def read_message(path: Path) -> str:
    """Return the text of a file; an error says that it is missing, too long or not text."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_MESSAGE_BYTES + 1)
    except FileNotFoundError as error:
        raise NotFoundError(f"file {str(path)!r} does not exist") from error
    if len(data) > MAX_MESSAGE_BYTES:
        raise UsageError(f"{path} is longer than {MAX_MESSAGE_BYTES:,} bytes: not a message")
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not UTF-8 text", hint="save it as UTF-8") from None
