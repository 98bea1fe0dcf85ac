"""Changed lines, against ``diff -u``."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.operations.text_diff import changed_lines

TEXTS = st.lists(st.sampled_from(["a", "b", "c", "", "}"]), max_size=30).map("\n".join)


@given(TEXTS, TEXTS)
def test_a_patch_of_the_lines_gives_the_new_text(old, new):
    lines, source, position = changed_lines(old.encode(), new.encode()), old.split("\n"), 0
    found: list[str] = []
    assert bool(lines) == (old != new)
    for line in lines:
        if line.startswith("@@"):
            start, _, count = line.split()[1][1:].partition(",")
            first = int(start) - (count != "0")
            found += source[position:first]
            position = first
        elif line[0] == "+":
            found.append(line[1:])
        elif line[0] != "\\":
            assert source[position] == line[1:]
            found += [line[1:]] * (line[0] == " ")
            position += 1
    rest = source[position:]
    assert "\n".join([*found, *rest]).rstrip("\n") == new.rstrip("\n")


@pytest.mark.parametrize(
    ("old", "new"),
    [("a\nb\nc\n", "a\nB\nc\n"), ("a", "a\n"), ("", "x\n"), ("x\ny", ""),
     ("".join(f"{n}\n" for n in range(50)), "".join(f"{n + n // 30}\n" for n in range(40)))],
)  # fmt: skip
def test_the_same_as_stock_diff(tmp_path, old, new):
    (tmp_path / "old").write_text(old)
    (tmp_path / "new").write_text(new)
    done = subprocess.run(
        ["diff", "-u", "old", "new"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert list(changed_lines(old.encode(), new.encode())) == done.stdout.splitlines()[2:]


def test_what_is_no_text_or_too_much():
    many = "".join(f"{n}\n" for n in range(3000)).encode()
    assert changed_lines(b"\0", b"a") == changed_lines(b"a", b"\xff") == ()
    assert changed_lines(b"", many) == ()
    assert changed_lines(many, many.replace(b"\n7\n", b"\nseven\n"))[0] == "@@ -5,7 +5,7 @@"
