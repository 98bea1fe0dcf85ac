"""du as a whole command: the summary, one list, a selection, JSON."""

import re

import pytest

from support.cli import plain
from support.models import write_model


@pytest.fixture
def long(shell):
    """The template's repository with more commits than the summary shows."""
    for number in range(12):
        write_model(shell.folder / "model.safetensors", seed=number + 10)
        shell.ok("commit", "-qam", f"epoch {number} with a subject that is longer than the line is")
    return shell


def headings(answer):
    found = (re.fullmatch(r" *alone +shared +raw +ratio  (\w+)", line) for line in answer.lines)
    return [match[1] for match in found if match]


def test_the_summary(long):
    answer = long.ok("du")
    assert headings(answer) == ["branch", "tag", "commit", "file"]
    assert [line.split()[0] for line in answer.lines[:4]] == ["raw", "stored", "indexes", "objects"]
    assert re.search(r"in \d+ packs; \d+ % of raw is needed$", answer.lines[1])
    assert 'and 6 more; "mvc du --by commit" lists all' in answer.out
    rows = [line for line in answer.lines if re.search("  [0-9a-f]{7} ", line)]
    assert len(rows) == 10
    assert not any(line.endswith(" ") for line in answer.lines)


def test_it_fits_a_terminal(long):
    for columns in (80, 120):
        long.environment["COLUMNS"] = str(columns)
        for arguments in ((), ("--by", "tensor"), ("--by", "commit"), ("HEAD",)):
            text = plain(long.ok("du", *arguments, terminal=True).out)
            assert max(map(len, text.splitlines())) <= columns


def test_one_list_is_whole(long):
    answer = long.ok("du", "--by", "commit")
    assert headings(answer) == ["commit"]
    assert len(answer.lines) == 1 + len(long.json("log", "--all"))
    cut = long.ok("du", "--by", "commit", "-n", "2")
    assert len(cut.lines) == 4
    assert cut.lines[-1].split() == ["and", "14", "more"]
    fields = long.json("du", "--by", "tensor", "--limit", "3")
    assert fields.keys() == {"totals", "selection", "tensors"}
    assert len(fields["tensors"]) == 3


def test_a_selection(shell):
    answer = shell.ok("du", "HEAD")
    assert [line.split()[0] for line in answer.lines[:3]] == ["raw", "alone", "shared"]
    fields = shell.json("du", "v1..main")
    assert len(fields["commits"]) == 2
    assert fields["selection"]["name"] == "v1..main"
    assert fields["branches"][0]["name"] == "main"
    assert fields["tags"] == []


def test_refusals(shell):
    for arguments, code, error in [
        (("--by", "colour"), 2, "cannot list by 'colour'"),
        (("v1", "config.json"), 2, "'config.json' is a path: --by file lists files"),
        (("-n", "-1"), 2, "-n -1 is negative"),
    ]:
        answer = shell("du", *arguments)
        assert (answer.code, answer.error) == (code, error)
