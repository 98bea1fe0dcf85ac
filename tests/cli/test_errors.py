"""What people get wrong: one clear line, a hint, the right exit code, never a traceback."""

import errno
import hashlib
import json
import re
import shutil

import pytest

from mvc import errors as library
from mvc.cli import errors
from support.cli import IDENTITY, Shell
from support.models import digests
from support.stockgit import git

# command line, exit code, part of the error, part of the hint
MISTAKES = [
    (["comit"], 2, "'comit' is not an mvc command", "'commit'"),
    (["frobnicate"], 2, "'frobnicate' is not an mvc command", "mvc --help"),
    (["push"], 3, "the repository has no remote 'origin'; it has none", "mvc remote add origin"),
    (["rebase", "main"], 2, "'rebase' is not an mvc command", "mvc merge BRANCH"),
    (["stash", "pop"], 3, "there is no stash", "mvc stash"),
    (["--frobnicate"], 2, "no such option: --frobnicate", "mvc --help"),
    (["log", "--frobnicate"], 2, "no such option: --frobnicate", "mvc log --help"),
    (["log", "-n", "-5"], 2, "-5", "mvc log --help"),
    (["-C", "nowhere", "log"], 3, "folder 'nowhere' does not exist", ""),
    (["add"], 2, "nothing specified, nothing added", "mvc add --help"),
    (["add", "missing.bin"], 3, "'missing.bin' does not exist", ""),
    (["rm", "missing.bin"], 3, "missing.bin", "mvc ls"),
    (["mv", "config.json"], 2, "name a source and a target", "mvc mv --help"),
    (["mv", "missing.bin", "x"], 3, "'missing.bin' is not tracked", "mvc add"),
    (["commit"], 2, "a commit needs a message", "-m"),
    (["commit", "-m", "x"], 4, "nothing to commit", "mvc add"),
    (["commit", "-a", "-m", "x", "config.json"], 2, "-a cannot be used together", "--help"),
    (["commit", "-m", "x", "--meta", "loss"], 2, "'loss' is not NAME=VALUE", "loss=2.5"),
    (["commit", "-m", "x", "--metric", "loss=low"], 2, "not a number", "--meta"),
    (["log", "--since", "soon"], 2, "--since 'soon' is not a date or an age", "2 weeks ago"),
    (["log", "--until", ""], 2, "--until '' is not a date or an age", "7d"),
    (["log", "--grep", "("], 2, "--grep '(' is not a valid pattern", "backslash"),
    (["log", "--metric", "loss<low"], 2, "'loss<low' is not a metric", "loss<2.5"),
    (["log", "--format", "%Q"], 2, "no field '%Q'", "%(metric:NAME)"),
    (["log", "--format", "short"], 2, "'short' names no field", "%h"),
    (["log", "--graph", "--reverse"], 2, "--graph and --reverse cannot be used", "--help"),
    (["log", "nope"], 3, "'nope' is neither a revision nor a path", "mvc branch"),
    (["log", "mian"], 3, "'mian' is neither a revision nor a path", "'main'"),
    (["log", "main@77"], 3, "no commit of step 77", "nearest step"),
    (["show", "nope"], 3, "'nope' is neither a revision nor a path", 'write "--" before a path'),
    (["show", "HEAD:missing"], 3, "has no file 'missing'", "mvc ls"),
    (["show", "HEAD:"], 2, "names no path", "mvc ls"),
    (["show", "--stat", "--name-only"], 2, "--stat and --name-only cannot be used", "--help"),
    (["diff", "main", "side", "v1"], 2, "expected at most two revisions, not 3", "--help"),
    (["diff", "main..side", "v1"], 2, "is a range", "--help"),
    (["diff", "--staged", "main", "side"], 2, "one revision, not two", "--help"),
    (["diff", "--stat", "--name-status"], 2, "cannot be used together", "--help"),
    (["checkout", "main", "side"], 2, "one revision", "--help"),
    (["checkout", "-b", "main"], 4, "'main' already exists", "mvc switch main"),
    (["checkout", "-b", "new", "--", "config.json"], 2, "-b and --detach cannot be used", "--help"),
    (["switch", "nope"], 3, "no branch 'nope'", "-c"),
    (["switch"], 2, "name a branch", "--help"),
    (["switch", "-c", "x", "--detach"], 2, "-c and --detach cannot be used together", "--help"),
    (["reset", "--soft", "--hard"], 2, "--soft and --hard cannot be used together", "--help"),
    (["reset", "--hard", "--", "config.json"], 2, "--hard cannot be used with paths", "--help"),
    (["branch", "main"], 4, "'main' already exists", "-f"),
    (["branch", "a", "b", "c"], 2, "unexpected argument 'c'", "--help"),
    (["branch", "-d"], 2, "name a branch", "--help"),
    (["branch", "-d", "side"], 4, "not merged", "-D"),
    (["branch", "-d", "nope"], 3, "no branch 'nope'", "mvc branch"),
    (["branch", "-d", "-D", "side"], 2, "-d and -D cannot be used together", "--help"),
    (["branch", "-m"], 2, "-m takes [OLD] NEW", "--help"),
    (["tag", "v1"], 4, "'v1' already exists", "-f"),
    (["tag", "-d", "nope"], 3, "no tag 'nope'", "mvc tag"),
    (["tag", "-d"], 2, "name a tag", "--help"),
    (["ls", "main", "side"], 2, "one revision", "--help"),
    (["cat", "HEAD", "embed"], 3, "'HEAD' is a revision: name one of", "mvc cat HEAD PATH embed"),
    (["cat", "v1"], 3, "'v1' is a revision: name one of its files", "mvc ls v1"),
    (["cat", "config.json", "w"], 3, "'config.json' has no tensors", ""),
    (["cat", "model.safetensors"], 3, "has 9 tensors: name one", "mvc ls"),
    (["cat", "model.safetensors", "nope"], 3, "has no tensor 'nope'", "mvc ls"),
    (["cat", "a", "b", "c", "d"], 2, "unexpected argument 'd'", "--help"),
    (["export", "HEAD"], 2, "name a folder", "mvc export --help"),
    (["config", "name"], 3, "'name' is not set", "--list"),
    (["config", "name", "x"], 2, "'name' is not a config key", "section.name"),
    (["config", "mvc.delta", "sometimes"], 2, "mvc.delta must be one of never, auto,", "always"),
    (["config", "mvc.dleta", "auto"], 2, "mvc has no setting 'mvc.dleta'", "'mvc.delta'"),
    (["config", "mvc.chunkbytes", "4k"], 2, "not a number of bytes", "4194304"),
    (["config", "alias.ci", "commit"], 2, "a user setting", "--global alias.ci"),
    (["config", "--unset", "a.b", "c.d"], 2, "--unset takes a key", "--help"),
    (["init", "config.json"], 2, "config.json", ""),
]


@pytest.fixture(scope="module")
def prepared(template, tmp_path_factory):
    """One copy for all mistakes: a mistake changes nothing."""
    folder = tmp_path_factory.mktemp("mistakes")
    shutil.copytree(template, folder, dirs_exist_ok=True)
    shell = Shell(folder, {"HOME": str(folder), **IDENTITY})
    shell.ok("status")
    return shell


def test_mistakes(prepared):
    for arguments, code, message, hint in MISTAKES:
        before = _state(prepared.folder)
        answer = prepared(*arguments)
        assert answer.code == code, answer
        assert answer.out == ""
        assert message in answer.error
        assert hint in answer.hint
        named = re.findall(r'"(--[a-z-]+)"', answer.hint)
        assert not named or set(named) <= set(
            re.findall(r"--[a-z-]+", prepared(arguments[0], "-h").out)
        )
        assert "Traceback" not in answer.err
        assert not answer.error.endswith(".")
        assert not answer.error[0].isupper() or answer.error.startswith("HEAD ")
        assert len(answer.err.splitlines()) <= 2
        assert _state(prepared.folder) == before


def _state(folder):
    """Return the files, HEAD and refs of a repository."""
    refs = {
        path: path.read_bytes() for path in (folder / ".mvc" / "refs").rglob("*") if path.is_file()
    }
    return digests(folder), (folder / ".mvc" / "HEAD").read_bytes(), refs


def test_outside_a_repository(bare):
    for arguments in [
            ["status"], ["log"], ["add", "."], ["commit", "-m", "x"], ["diff"], ["checkout", "main"],
            ["fsck"], ["branch"], ["config"], ["doctor"], ["ls"],
        ]:  # fmt: skip
        answer = bare(*arguments)
        assert answer.code == 10
        assert answer.error.startswith("not an mvc repository")
        assert "mvc init" in answer.hint


def test_before_the_first_commit(empty):
    for arguments, message in [
            (["log"], ""), (["show"], "no commit yet"), (["ls"], "no commit yet"),
            (["diff", "HEAD"], "no commit yet"), (["tag", "v1"], "no commit yet"),
            (["commit", "--amend", "-m", "x"], "no commit to amend"),
            (["commit", "-m", "x"], "nothing to commit"),
        ]:  # fmt: skip
        answer = empty(*arguments)
        if not message:
            assert (answer.code, answer.out) == (0, "")
        else:
            assert message in answer.error


def test_an_ambiguous_id_is_named(shell):
    git_dir = shell.folder / ".mvc"
    content = git(git_dir, "cat-file", "commit", "HEAD").encode()
    seen = {}
    for number in range(5000):
        data = content + b"\n%d\n" % number
        name = hashlib.sha1(b"commit %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
        if name[:4] in seen:
            break
        seen[name[:4]] = data
    for one in (data, seen[name[:4]]):
        git(git_dir, "hash-object", "-t", "commit", "-w", "--stdin", data=one)
    for command in ("show", "log", "diff", "ls", "checkout"):
        answer = shell(command, name[:4])
        assert answer.code == 3
        assert f"short id {name[:4]!r} is ambiguous" in answer.error
        assert answer.hint == "give more digits"
    assert shell.ok("show", name[:12]).out


def test_errors_as_json(prepared):
    answer = prepared("log", "nope", "--json")
    assert answer.out == ""
    told = json.loads(answer.err)["error"]
    assert told["kind"] == "not-found"
    assert told["message"] == "'nope' is neither a revision nor a path"
    assert told["hint"]
    assert answer.code == 3
    answer = prepared("log", "--json", "--frobnicate")
    assert json.loads(answer.err)["error"]["kind"] == "usage"
    assert answer.code == 2
    answer = prepared("log", "nope", "--", "--json")
    assert answer.err.startswith("error: ")


def test_a_file_called_json_is_no_option(prepared):
    assert prepared("add", "--", "--json").err.startswith("error: ")


def test_every_class_of_the_library_keeps_its_code():
    for name in library.MvcError.__subclasses__():
        told = errors.describe(name("it happened", hint="do this"))
        assert (told.message, told.hint) == ("it happened", "do this")
        assert told.exit_code == name.exit_code
        assert told.kind == name.kind


def test_the_machine_said_no():
    told = errors.describe(OSError(errno.ENOSPC, "No space left on device", "/x/y"))
    assert (told.kind, told.exit_code) == ("storage", 6)
    assert told.message == "no space left on device: /x/y"
    assert errors.describe(MemoryError()).message == "out of memory"


def test_messages_cannot_drive_a_terminal(prepared):
    answer = prepared("log", "\x1b7nope")
    assert "\x1b" not in answer.err
    assert "\\x1b7nope" in answer.err


def test_mistakes_are_coloured_on_a_terminal(prepared):
    answer = prepared("log", "nope", terminal=True)
    assert answer.err.startswith("\x1b[31;1merror:\x1b[0m ")
