"""Complete commands, options, branches and files in the shell."""

from __future__ import annotations

from mvc.cli.options import JSON
from mvc.cli.output import printable, stdout, write_json
from mvc.cli.parameters import CommandUsageError, arguments

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


def completion(
    names: list[str] = arguments("[bash | zsh | fish] [[--] WORD...]"),
    as_json: bool = JSON,
) -> None:
    """Print a completion script for your shell: commands, options, branches, tags and files.

    For bash, add this line to ~/.bashrc: eval "$(mvc completion bash)". For zsh, to ~/.zshrc:
    eval "$(mvc completion zsh)". For fish, to ~/.config/fish/config.fish: mvc completion fish |
    source.

    With the words of a line after --, print what the last one could be, each with what it is; a
    colon stands for files.
    """
    names = names or []
    if names[:1] == ["--"]:
        from mvc.cli.complete import FILES, candidates

        found = candidates(names[1:])
        if as_json:
            write_json([{"text": text, "about": about} for text, about in found])
        else:
            stdout().lines(
                text if (text, about) == FILES else f"{text}\t{printable(about)}"
                for text, about in found
            )
        return
    if len(names) != 1 or names[0] not in _SCRIPTS:
        raise CommandUsageError("name one shell: bash, zsh or fish")
    if as_json:
        write_json({"shell": names[0], "script": _SCRIPTS[names[0]]})
    else:
        stdout().line(_SCRIPTS[names[0]].strip())
