"""Complete commands, options, branches and files in the shell."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from mvc.cli import COMMANDS, NAMES
from mvc.cli.options import JSON
from mvc.cli.output import Output, Shown, printable
from mvc.cli.parameters import (
    HELP,
    Argument,
    CommandUsageError,
    Line,
    Option,
    arguments,
    load_command,
)
from mvc.cli.session import open_repo
from mvc.workspace.settings import OWN, read_user_settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    Candidates = Iterable[tuple[str, str]]


_SCRIPTS = {
    "bash": r"""# eval "$(mvc completion bash)"
_mvc() {
    local line=${COMP_LINE:0:COMP_POINT} breaks=${COMP_WORDBREAKS//[[:space:]]/} one IFS=$' \t\n'
    local -a words
    read -a words <<<"$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    local word=${words[${#words[@]} - 1]}
    local split=${word%"${word##*["$breaks"]}"} path=$word  # bash takes what it splits for words
    [[ $word == -*=* ]] && path=${word#*=}
    local split_path=${path%"${path##*["$breaks"]}"}
    COMPREPLY=()
    while IFS=$'\t' read -r one _; do
        if [[ $one == : ]]; then
            compopt -o filenames 2>/dev/null
            while read -r one; do
                COMPREPLY+=("${one#"$split_path"}")
            done < <(compgen -f -- "$path")
        else
            COMPREPLY+=("${one#"$split"}")
        fi
    done < <(mvc completion -- "${words[@]:1}" 2>/dev/null)
}
complete -F _mvc mvc
""",
    "zsh": r"""#compdef mvc
# eval "$(mvc completion zsh)", or in a file _mvc of a folder in fpath
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
_mvc() {
    local -a values
    local one files
    for one in ${(f)"$(mvc completion -- "${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null)"}; do
        if [[ $one == : ]]; then
            files=1
        else
            values+=("${${one%%$'\t'*}//:/\\:}:${one#*$'\t'}")
        fi
    done
    (( $#values )) && _describe mvc values
    [[ -n $files ]] && { compset -P '-*='; _files }
}
if [[ $funcstack[1] == _mvc ]]; then _mvc "$@"; else compdef _mvc mvc; fi
""",
    "fish": r"""# mvc completion fish | source
function __mvc_complete
    set -l word (commandline -ct)
    set -l words (commandline -opc) "$word"
    for one in (mvc completion -- $words[2..] 2>/dev/null)
        if test "$one" = :
            __fish_complete_path "$word"
        else
            echo $one
        end
    end
end
complete -c mvc -f -a "(__mvc_complete)"
""",
}

FILES = (":", "")
"""Stands for the files, which the shell finds itself."""
_GLOBAL = {"-C": "Run as if started in PATH", "--no-pager": "", "--version": "", "--help": ""}
_SETTINGS = (*OWN, "user.name", "user.email", "core.editor", "core.pager")
_KIND = re.compile(r"[A-Z]+")
_WITH_VERBS = {"remote": "REMOTE", "scale": "REV", "data": "MAP FILE"}
_REVISIONS = {"REV", "REF", "START"}
_FILES = {"PATH", "FILE", "DIR", "SOURCE"}


def completion(
    names: list[str] = arguments("[bash | zsh | fish] [[--] WORD...]"),
    shown: Shown = JSON,
) -> None:
    """Print a completion script for your shell: commands, options, branches, tags and files.

    For bash, add this line to ~/.bashrc: eval "$(mvc completion bash)". For zsh, to ~/.zshrc:
    eval "$(mvc completion zsh)". For fish, to ~/.config/fish/config.fish: mvc completion fish |
    source.

    With the words of a line after --, print what the last one could be, each with what it is; a
    colon stands for files.
    """
    if names[:1] == ["--"]:
        found = candidates(names[1:])
        lines = (
            text if (text, about) == FILES else f"{text}\t{printable(about)}"
            for text, about in found
        )
        fields = [{"text": text, "about": about} for text, about in found]
        shown.answer(fields, Output.lines, lines)
        return
    if len(names) != 1 or names[0] not in _SCRIPTS:
        raise CommandUsageError("name one shell: bash, zsh or fish")
    script = _SCRIPTS[names[0]]
    shown.answer({"shell": names[0], "script": script}, Output.line, script.strip())


def candidates(words: Sequence[str]) -> list[tuple[str, str]]:
    """Return (text, what it is) of all that could be the last word, which may be begun or empty."""
    *before, word = words or [""]
    while before and before[0].startswith("-"):
        if before.pop(0) == "-C" and before:
            os.chdir(before.pop(0))
        elif words[-2] == "-C":
            return [FILES]
    if before and before[0] not in (*NAMES, "help"):
        from mvc.cli.top import expand_alias

        before = expand_alias(before)
    found = _of_command(before, word) if before and before[0] != "help" else _commands(word)
    return [one for one in found if one == FILES or one[0].startswith(word)]


def _commands(word: str) -> Candidates:
    if word.startswith("-"):
        return _GLOBAL.items()
    known = {name: about for group in COMMANDS.values() for name, about in group.items()}
    settings = read_user_settings().items()
    aliases = {
        key.removeprefix("alias."): text for key, text in settings if key.startswith("alias.")
    }
    return {**aliases, **known, "help": "Explain a command"}.items()


def _of_command(words: Sequence[str], word: str) -> Candidates:
    """Return what may follow a command and the words after it."""
    name, *before = words
    line = Line(load_command(name))
    if "--" in before:
        return [FILES]
    waiting, places = None, 0
    for one in before:
        if waiting is None and one.startswith("-") and one != "-":
            waiting = _find_waiting(line, one)
        else:
            places += waiting is None
            waiting = None
    if waiting is not None:
        return _values(waiting, word)
    if word.startswith("-"):
        return _options(line, word)
    arguments = list(line.arguments.values())[: places + 1][-1:]  # the last one takes all the rest
    if name in _WITH_VERBS:
        verbs = [(verb, "") for verb in load_command(name).__globals__["VERBS"].split()]
        kinds = Argument(_WITH_VERBS[name], list, [], required=False)
        return verbs if not places else _values(kinds, word)
    if not places and name == "bisect":
        from mvc.workspace.bisection import SUBCOMMANDS

        return [(verb, "") for verb in SUBCOMMANDS]
    return [value for argument in arguments for value in _values(argument, word)]


def _options(line: Line, word: str) -> Candidates:
    spelling, equals, _ = word.partition("=")
    if equals and spelling in line.options:
        values = _values(line.options[spelling][1], word)
        return [
            value if value == FILES else (f"{spelling}={value[0]}", value[1]) for value in values
        ]
    return [
        (spelling, option.help)
        for spelling, (_, option) in line.options.items()
        if option is not HELP
    ]


def _find_waiting(line: Line, word: str) -> Option | None:
    """Return the option that the next word is the value of."""
    spellings = [word] if word.startswith("--") else [f"-{letter}" for letter in word[1:]]
    for spelling in spellings:
        _, option = line.options.get(spelling, ("", HELP))
        if option.kind is not bool:
            return option if spelling == spellings[-1] else None
    return None


def _values(declared: Option | Argument, word: str) -> Iterator[tuple[str, str]]:
    """Yield the values of an option or argument, as its place in the usage line names them."""
    kinds = set(_KIND.findall(declared.metavar))
    names, help_text = (declared.names, declared.help) if isinstance(declared, Option) else ((), "")
    if kinds & _FILES:
        yield FILES
    if "REMOTE" in kinds:
        yield from ((name, str(remote.url)) for name, remote in open_repo().remotes.list().items())
    if "MAP" in kinds:
        yield from ((path, "") for path in open_repo().data.names())
    if "REFSPEC" in kinds:
        yield from _references(tags=True)
    if "BRANCH" in kinds or "--branch" in names:
        yield from _references(tags=False)
    elif kinds & _REVISIONS:
        begun, dots, _ = word.rpartition("..")
        yield from ((begun + dots + text, about) for text, about in _references(tags=True))
    elif {"--sort", "--metric", "--by"} & set(names) and kinds == {"NAME"}:
        metrics = (entry.metrics for entry in open_repo().log(limit=1))
        yield from ((name, "metric") for names in metrics for name in names)
    elif "KEY" in kinds:
        yield from ((key, "") for key in _SETTINGS)
    elif "KIND" in kinds or "WORD" in kinds:
        listed = declared.metavar if "WORD" in kinds else help_text.rpartition(":")[2]
        yield from ((word, "") for word in re.findall(r"[a-z]+", listed))


def _references(*, tags: bool) -> Iterator[tuple[str, str]]:
    repo = open_repo()
    yield from ((ref.name, ref.subject) for ref in repo.branches.list())
    if tags:
        yield "HEAD", "what is checked out"
        yield from ((ref.name, ref.subject) for ref in repo.branches.list(remote=True))
        for ref in repo.tags.list():
            yield ref.name, ref.subject
            if ref.is_alias:
                yield f"@{ref.name}", ref.subject
