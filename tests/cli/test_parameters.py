"""How command lines are read, and what is wrong with those that are not."""

from pathlib import Path

import pytest

from mvc.cli import HOMES, NAMES, commands, top
from mvc.cli.output import Shown
from mvc.cli.parameters import CommandUsageError, Line, load_command

QUIET = Shown(quiet=True)

READ = {
    "status": {"short": False, "untracked": True},
    "status -s -b": {"short": True, "branch": True},
    "status -sb --no-untracked": {"short": True, "branch": True, "untracked": False},
    "status --": {"short": False},
    "log -5 --oneline": {"max-count": 5, "oneline": True},
    "log -n 1 -n5 HEAD~2 -- a b": {"max-count": 5, "names": ["HEAD~2", "--", "a", "b"]},
    "log --max-count=3 main a/b": {"max-count": 3, "names": ["main", "a/b"]},
    "log -- -p": {"names": ["--", "-p"], "patch": False},
    "log --sort -loss": {"sort": "-loss"},
    "log --no-merges --grep a --grep=": {"merges": False, "grep": ["a", ""]},
    "tag -mtext v1": {"message": "text", "names": ["v1"]},
    "commit -m one -am two -q": {"messages": ["one", "two"], "everything": True, "shown": QUIET},
    "commit --message=x=y --step +12 --no-delta": {"messages": ["x=y"], "step": 12, "delta": False},
    "commit -m -x -e --no-edit": {"messages": ["-x"], "edit": False},
    "checkout - -b new": {"names": ["-"], "new_branch": "new"},
    "add a -q b": {"paths": ["a", "b"], "shown": QUIET},
    "add -- a -q": {"paths": ["a", "-q"], "shown": Shown(progress=True)},
    "rm a --json": {"paths": ["a"], "shown": Shown(as_json=True)},
    "gc --grace 1d": {"grace_s": 24 * 3600},
    "config user.name Ada": {"key": "user.name", "value": "Ada"},
    "fetch origin a b": {"remote": "origin", "refspecs": ["a", "b"]},
    "bisect --metric loss --above -1e-3": {"metric": "loss", "above": -0.001},
    "bisect run test -n --no-checkout": {"names": ["run", "test", "-n", "--no-checkout"]},
    "rollback": {"message": "", "revision": None},
    "follow a b c": {"keep": 1, "interval": "5s"},
}
REFUSED = {
    "status --shrot": "no such option: --shrot (Possible options: --json, --short)",
    "branch -dx": "no such option: -x",
    "branch -3": "no such option: -3",
    "status --json=yes": "option '--json' does not take a value",
    "log -pn": "option '-n' requires an argument",
    "commit --step=1.5": "invalid value for '--step': '1.5' is not a whole number",
    "log -n=3": "invalid value for '-n' / '--max-count': '=3' is not a whole number",
    "commit --step 1234567890123456789": "invalid value for '--step': '1234567890123456789' is not",
    "scale gate --recovery soon": "invalid value for '--recovery': 'soon' is not a number",
    "restore -S": "missing argument 'PATH...'",
    "follow a b": "missing argument 'DIR'",
    "config a b c": "unexpected argument 'c'",
    "status ": "unexpected argument ''",
}


def read(line):
    name, *words = line.split(" ")
    values = Line(load_command(name)).read(words)
    return values and {**values, **values.get("options", {})}


def test_lines_are_read_as_git_reads_them():
    for line, expected in READ.items():
        assert expected.items() <= read(line).items(), line


def test_what_is_wrong_with_a_line_is_named():
    for line, message in REFUSED.items():
        with pytest.raises(CommandUsageError) as caught:
            read(line)
        assert str(caught.value.message).startswith(message), line


def test_a_line_asks_for_help_whatever_else_it_says():
    assert read("restore --help") is None
    assert read("log -n 3 -h x") is None


def test_values_of_one_line_are_not_those_of_the_next():
    assert read("commit -m one")["messages"] == ["one"]
    assert read("commit")["messages"] == []


def test_the_table_of_commands_is_true():
    folder = Path(commands.__file__).parent
    homes = {HOMES.get(name, name) for name in (name.replace("-", "_") for name in NAMES)}
    assert sorted([*homes, "__init__"]) == sorted(path.stem for path in folder.glob("*.py"))
    assert len(NAMES) == len(set(NAMES))
    for name in NAMES:
        assert "--json" in Line(load_command(name)).options, name


def test_no_hint_for_a_mistyped_command_names_one_that_overwrites():
    words = [*top._INSTEAD, "resett", "restor", "rmm", "mvv", "remot", "prun", "gcc", "rolback"]
    for word in words:
        hint = top.hint_instead(word)
        assert not any(f"'{name}'" in hint or f'"mvc {name} ' in hint for name in _OVERWRITE), hint
        assert word not in NAMES


_OVERWRITE = ("restore", "reset", "rm", "mv", "gc")
