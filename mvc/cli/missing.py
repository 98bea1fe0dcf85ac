"""Words that are not commands: aliases, and what to do instead; imported only when one is typed."""

from __future__ import annotations

import difflib
import shlex

from mvc.cli import NAMES
from mvc.errors import UsageError
from mvc.workspace.settings import read_user_settings

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
