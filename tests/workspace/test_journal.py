import json

import msgspec
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from mvc import CorruptionError, FormatError, UnsupportedError
from mvc.workspace.journal import (
    EntryChange,
    FileRemoval,
    FileWrite,
    HeadMove,
    Mark,
    Transition,
    Undecided,
    Was,
    encode_journal,
    parse_journal,
    read_journal,
)

ID = "0123456789abcdef0123456789abcdef01234567"
STAGED = ".mvc/tmp/0123456789abcdef/fedcba9876543210.mvc-tmp"
FULL = Transition(
    writes=(FileWrite("d/caf\udce9", 0o100755, ID, True, STAGED, Was(5, 7), None),),
    removals=(FileRemoval("old", Was(1, 2)), FileRemoval("kept", None, from_index=False)),
    entries=(EntryChange("gone"), EntryChange("ü", 0o120000, ID, skip_worktree=True)),
    head=HeadMove("branch", "topic/a", "main", ID, "checkout: moving", "Ann", "a@b", ID),
)


def sealed(line):
    return line + b"\n" + blake3(line).hexdigest().encode() + b"\n"


def test_there_and_back():
    assert parse_journal(encode_journal(FULL)) == FULL
    assert parse_journal(encode_journal(Transition())) == Transition()
    assert FULL.paths() == ("d/caf\udce9", "old", "kept", "gone", "ü")


def test_one_line_and_its_hash():
    line, digest, rest = encode_journal(FULL).split(b"\n")
    assert json.loads(line)["version"] == 2
    assert (digest, rest) == (blake3(line).hexdigest().encode(), b"")


def test_every_flipped_byte_and_every_cut_is_seen():
    data = encode_journal(FULL)
    for at in range(len(data)):
        with pytest.raises(CorruptionError):
            parse_journal(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(CorruptionError):
            parse_journal(data[:at])
    with pytest.raises(CorruptionError):
        parse_journal(data + b"x")


def change(part, **fields):
    return msgspec.structs.replace(part, **fields)


WRITE, MOVE = FULL.writes[0], FULL.head


def test_what_no_mvc_would_do():
    for transition in [
        Transition(writes=(change(WRITE, path="../x"),)),
        Transition(writes=(change(WRITE, path=".mvc/HEAD"),)),
        Transition(writes=(change(WRITE, mode=0o40000),)),
        Transition(writes=(change(WRITE, blob="0" * 39),)),
        Transition(writes=(change(WRITE, staged="precious"),)),
        Transition(writes=(change(WRITE, staged=".mvc/HEAD"),)),
        Transition(writes=(change(WRITE, staged="../0123456789abcdef.mvc-tmp"),)),
        Transition(writes=(change(WRITE, staged="other/0123456789abcdef.mvc-tmp"),)),
        Transition(removals=(FileRemoval("/etc/passwd"),)),
        Transition(removals=(FileRemoval(""),)),
        Transition(entries=(EntryChange(".git/config"),)),
        Transition(entries=(EntryChange("a", 0o100644, "nope"),)),
        Transition(head=change(MOVE, kind="jump")),
        Transition(head=change(MOVE, kind="detach", target="main")),
        Transition(head=change(MOVE, expected="main")),
        Transition(head=change(MOVE, branch_at="main")),
    ]:
        with pytest.raises(FormatError) as caught:
            parse_journal(encode_journal(transition))
        assert not isinstance(caught.value, CorruptionError)


def test_a_staged_file_beside_its_place():
    """Where the target is on another file system than the repository."""
    write = change(WRITE, path="disk/d/x", staged="disk/0123456789abcdef.mvc-tmp")
    assert parse_journal(encode_journal(Transition(writes=(write,)))).writes == (write,)


def test_of_a_newer_mvc():
    with pytest.raises(UnsupportedError, match="version 3"):
        parse_journal(sealed(b'{"version":3,"what":"ever"}'))


STAGE = (0o100644, ID)


def test_of_a_merge():
    merge = Transition(
        undecided=(Undecided("d/caf\udce9", True, (None, STAGE, STAGE)),),
        marks=(Mark("MERGE_HEAD", ID + "\n"), Mark("MERGE_MSG", "\xe9"), Mark("REVERT_HEAD")),
    )
    read = parse_journal(encode_journal(merge))
    assert read == merge
    assert read.paths() == ("d/caf\udce9",)


@pytest.mark.parametrize(
    "transition",
    [
        Transition(marks=(Mark("config", "x"),)),
        Transition(marks=(Mark("../MERGE_HEAD", "x"),)),
        Transition(undecided=(Undecided("../a", False, (None, STAGE, STAGE)),)),
        Transition(undecided=(Undecided("a", False, (None, (0o100644, "x"), STAGE)),)),
        Transition(undecided=(Undecided("a", False, (None, (0o160000, ID), STAGE)),)),
    ],
)
def test_a_merge_that_no_mvc_wrote(transition):
    with pytest.raises(FormatError):
        parse_journal(encode_journal(transition))


@given(st.binary(max_size=200))
def test_sealed_garbage(line):
    try:
        parse_journal(sealed(line.replace(b"\n", b"")))
    except (FormatError, UnsupportedError):
        pass
    else:
        assert msgspec.json.decode(line.replace(b"\n", b""), type=Transition)


def test_read(tmp_path):
    path = tmp_path / "transition.json"
    assert read_journal(path) is None
    assert read_journal(path / "below") is None
    path.write_bytes(encode_journal(FULL))
    assert read_journal(path) == FULL
    assert read_journal(path / "below") is None
    path.write_bytes(b"torn")
    with pytest.raises(CorruptionError, match="journal") as caught:
        read_journal(path)
    assert str(path) in caught.value.hint
    path.unlink()
    path.mkdir()
    with pytest.raises(CorruptionError, match="folder"):
        read_journal(path)
