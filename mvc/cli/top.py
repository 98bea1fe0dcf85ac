"""Lines that do not begin with a command: options of ``mvc`` itself, help, aliases, and mistakes.

Most lines do begin with one, so this is imported only when it is needed.
"""

from __future__ import annotations

import difflib
import os
import shlex
import sys
from typing import TYPE_CHECKING

import mvc
from mvc.cli import NAMES
from mvc.cli.output import turn_off_pager
from mvc.cli.parameters import Exit, Line, arguments, flag, name_in_hint, string
from mvc.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

_PICK = (
    '"mvc merge BRANCH" brings the changes of a branch here, "mvc diff A...B" compares two, and '
    '"mvc export REV PATH -o FILE" takes tensors of one'
)
_STOCK = "stock Git reads the history: git --git-dir=.mvc {}"
_INSTEAD = {
    **dict.fromkeys(("rebase", "apply", "am", "merge-base"), _PICK),
    **dict.fromkeys(("describe", "rev-parse", "notes", "cat-file", "for-each-ref"), _STOCK),
    "clean": '"mvc status" lists untracked files; remove them yourself',
    "grep": '"mvc ls --tensors GLOB" finds tensors by name',
    "archive": '"mvc export REV DIR/" writes the files of a revision',
    "ls-files": '"mvc ls" lists what HEAD holds, "mvc status" what differs',
    "ls-tree": '"mvc ls REV" lists what a revision holds',
    "rev-list": '"mvc log --oneline REV" lists commits',
    "shortlog": '"mvc log --oneline" lists commits',
    "whatchanged": '"mvc log" lists commits, "mvc show REV" what one changed',
    "format-patch": '"mvc diff A B" shows what differs',
    "count-objects": '"mvc du" shows what the store holds',
    "filter-branch": '"mvc prune" releases old content and keeps the history',
    "version": '"mvc --version" prints it',
    "save": '"mvc add PATH" and "mvc commit -m TEXT" store files',
    "load": '"mvc checkout REV" brings files back',
}
_OVERWRITES = frozenset({"restore", "reset", "rm", "mv", "prune", "gc", "rollback"})


def top(
    folder: str | None = string("-C PATH", "Run as if started in PATH."),
    unpaged: bool = flag("-P, --no-pager", "Show long results without a pager."),
    version: bool = flag("--version", "Print version."),
    words: list[str] = arguments("COMMAND [ARGS]...", raw_after=None),
) -> list[str]:
    """Carry out the options of ``mvc`` itself; return the words of the command, if there is one."""
    if version:
        sys.stdout.write(f"mvc {mvc.__version__}\n")
        raise Exit
    if unpaged:
        turn_off_pager()
    if folder is not None:
        try:
            os.chdir(folder)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NotFoundError(f"folder {folder!r} does not exist") from error
    return [*words[1:2], *["--help"] * len(words[1:2])] if words[:1] == ["help"] else words


def find_command(words: Sequence[str]) -> list[str]:
    """Return the words from the name of a command on; without a command, show what there is."""
    with name_in_hint("mvc"):
        values = Line(top).read(words)
    command = [] if values is None else top(**values)
    if command:
        return expand_alias(command)
    from mvc.cli.help import mvc_help

    sys.stdout.write(mvc_help(Line(top)))
    raise Exit


def hint_instead(name: str) -> str:
    """Return what to do instead of a command; never proposes one that overwrites or removes."""
    if name in _INSTEAD:
        return _INSTEAD[name].format(name)
    safe = [one for one in NAMES if one not in _OVERWRITES]
    close = difflib.get_close_matches(name, safe, n=3)
    did_you_mean = f"did you mean {' or '.join(map(repr, close))}? " if close else ""
    return f'{did_you_mean}"mvc --help" lists the commands'


def expand_alias(arguments: list[str]) -> list[str]:
    """Return a command line with the user's aliases in its first word replaced."""
    if arguments[0] in NAMES:
        return arguments
    from mvc.workspace.settings import read_user_settings

    settings, seen = read_user_settings(), set[str]()
    while arguments[0] not in NAMES:
        name = arguments[0]
        meaning = settings.get(f"alias.{name.lower()}")
        if meaning is None:
            raise UsageError(f"{name!r} is not an mvc command", hint=hint_instead(name))
        words = _split_alias(name, meaning)
        if name in seen:
            raise UsageError(
                f"alias {name!r} refers to itself", hint='correct it with "mvc config"'
            )
        seen.add(name)
        arguments = [*words, *arguments[1:]]
    return arguments


def _split_alias(name: str, meaning: str) -> list[str]:
    try:
        words = shlex.split(meaning)
    except ValueError:
        words = []
    if not words or words[0].startswith(("-", "!")):
        raise UsageError(
            f"alias {name!r} is {meaning[:80]!r}, not a command of mvc",
            hint=f"such as \"mvc config --global alias.{name} 'log --oneline'\"",
        )
    return words
