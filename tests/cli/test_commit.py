"""commit: messages, facts, amending, and what it prints."""

import pytest

from mvc.cli.commands.commit import parse_facts, parse_number
from mvc.errors import UsageError
from support.models import write_config, write_model


def test_prints_where_what_and_how_much(empty):
    write_model(empty.folder / "model.safetensors")
    write_config(empty.folder / "config.json")
    empty.ok("add", ".")
    first, second = empty.ok("commit", "-m", "base model").lines
    commit = empty.json("log")[0]["commit"]
    assert first == f"[main (root-commit) {commit[:7]}] base model"
    assert second.startswith(" 2 files (2 changed), 8 tensors (8 new), ")
    assert second.endswith(" s")
    write_config(empty.folder / "config.json", lr=1)
    first, second = empty.ok("commit", "-am", "config").lines
    assert first.startswith("[main ")
    assert second.startswith(" 2 files (1 changed), 8 tensors (0 new), ")


def test_facts_become_trailers_metrics_and_step(shell):
    shell.ok(
        "commit", "--allow-empty", "-m", "x", "--step", "3000", "--metric", "loss=1.5",
        "--meta", "acc=0.75", "--meta", "data=pile v2", "--meta", "bad=nan",
    )  # fmt: skip
    (entry,) = shell.json("log", "-n", "1")
    assert entry["step"] == 3000
    assert entry["metrics"] == {"loss": 1.5, "acc": 0.75, "bad": "nan"}
    assert entry["meta"] == {"data": "pile v2"}
    assert shell.json("log", "main@3000")[0]["commit"] == entry["commit"]


def test_a_guessed_author_is_warned_of(shell):
    def author(*words):
        shell.ok("commit", "-q", "--allow-empty", "-m", *words)
        return shell.json("show")

    shown = author("subject", "-m", "first", "-m", "second")
    assert (shown["author"], shown["body"]) == ("Ada Lovelace <ada@example.org>", "first\n\nsecond")
    for name in ("GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL"):
        del shell.environment[name]
    answer = shell.ok("commit", "--allow-empty", "-m", "x")
    assert answer.err.startswith("warning: the author ")
    assert "mvc config user.name" in answer.err
    shell.ok("config", "user.name", "Here")
    assert author("x")["author"].startswith("Here <")


def test_what_counts_as_a_number():
    for text, number in [
            ("12", 12), ("-3", -3), ("1.5", 1.5), (".5", 0.5), ("1e-3", 1e-3), ("inf", float("inf")),
            ("1_000", None), ("0x10", None), ("", None), ("abc", None), ("١٢", None), ("1e", None),
            ("9" * 30, 1e30),
        ]:  # fmt: skip
        assert parse_number(text) == number
        assert type(parse_number(text)) is type(number)


def test_facts_that_are_none():
    assert parse_facts(["a=1"], ["b=2", "c=x=y", "d="]) == ({"a": 1, "b": 2}, {"c": "x=y", "d": ""})
    with pytest.raises(UsageError, match="not a number"):
        parse_facts(["a=x"], [])
    with pytest.raises(UsageError, match="NAME=VALUE"):
        parse_facts([], ["novalue"])
    with pytest.raises(UsageError, match="NAME=VALUE"):
        parse_facts([], ["=5"])


def _set_editor(shell, script):
    editor = shell.folder.parent / "editor"
    editor.write_text(f"#!/bin/sh\n{script}\n")
    editor.chmod(0o755)
    shell.environment["GIT_EDITOR"] = f"{editor} --wait"


def test_commit_with_an_editor(shell, monkeypatch):
    (shell.folder / "config.json").write_text("{}")
    monkeypatch.delenv(
        "OPENBLAS_NUM_THREADS", raising=False
    )  # what a command sets for itself alone
    plain = 'test "$1" = --wait -a -z "$OPENBLAS_NUM_THREADS"'
    _set_editor(shell, f'{plain} && printf "# no\\nfirst\\n\\nsecond\\n#x\\n" > "$2"')
    shell.ok("commit", "-a")
    assert [shell.json("show")[key] for key in ("subject", "body")] == ["first", "second"]
    answer = shell("commit")
    assert (answer.code, answer.error) == (4, "nothing to commit")
    _set_editor(shell, 'sed -i "s/second/third/" "$2"')
    shell.ok("commit", "--amend", "--edit")
    assert shell.json("show")["body"] == "third"
    shell.ok("commit", "--amend", "--no-edit", "--step", "7")
    assert [shell.json("show")[key] for key in ("subject", "body")] == ["first", "third"]
    _set_editor(shell, ': > "$2"')
    assert shell("commit", "--allow-empty").error == "a commit needs a message"
    _set_editor(shell, "exit 3")
    assert shell("commit", "--allow-empty").error.endswith("failed")
    assert shell("commit", "--allow-empty", "--no-edit").error == "a commit needs a message"
    assert len(shell.json("log")) == 4


def test_commit_with_the_message_of_a_file(shell):
    (shell.folder / "text").write_bytes("\ufeffgrün\r\n\r\nmore\r\n".encode())
    shell.ok("commit", "--allow-empty", "-F", "text")
    assert [shell.json("show")[key] for key in ("subject", "body")] == ["grün", "more"]
    found = shell.process("commit", "--allow-empty", "-F", "-", input=b"piped\n")
    assert found.returncode == 0, found.stderr
    assert shell.json("show")["subject"] == "piped"
    assert shell("commit", "--allow-empty", "-F", "missing").code == 3
    assert shell("commit", "--allow-empty", "-F", "text", "-m", "x").code == 2
    (shell.folder / "text").write_bytes(b"\xff\xfe")
    assert "not UTF-8" in shell("commit", "--allow-empty", "-F", "text").error
