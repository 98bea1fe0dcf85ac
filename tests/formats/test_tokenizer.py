import base64
import json
import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mvc import FormatError
from mvc.formats.tokenizer import (
    TOKENIZER_FILES,
    Vocabulary,
    find_tokenizer,
    map_rows,
    parse_tokenizer,
)
from support.cases import for_each


def fast(model, added=()):
    return json.dumps({"model": model, "added_tokens": list(added)}).encode()


def varint(value):
    out = b""
    while value >= 128:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def field(number, data):
    return bytes([number << 3 | 2]) + varint(len(data)) + data


def piece(text):
    return field(1, field(1, text.encode()) + b"\x15" + struct.pack("<f", -1.5) + b"\x18\x01")


def test_all_models_of_tokenizer_json():
    added = {"id": 2, "content": "<s>", "special": True, "lstrip": False}
    bpe = {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}
    assert parse_tokenizer("tokenizer.json", fast(bpe, [added])).ids == {"a": 0, "b": 1, "<s>": 2}
    unigram = {"type": "Unigram", "vocab": [["<unk>", 0], ["▁a", -2.5]]}
    assert parse_tokenizer("tokenizer.json", fast(unigram)).ids == {"<unk>": 0, "▁a": 1}


def test_as_the_tokenizers_library_writes_it():
    tokenizers = pytest.importorskip("tokenizers")
    model = tokenizers.models.BPE({"h": 0, "i": 1, "hi": 2}, [("h", "i")])
    made = tokenizers.Tokenizer(model)
    made.add_special_tokens(["<pad>"])
    found = parse_tokenizer("tokenizer.json", made.to_str().encode())
    assert found == Vocabulary(made.get_vocab(), 4)


def test_other_files():
    assert parse_tokenizer("vocab.json", b'{"x": 4}') == Vocabulary({"x": 4}, 5)
    assert parse_tokenizer("vocab.txt", "[PAD]\nß\n".encode()).ids == {"[PAD]": 0, "ß": 1}
    lines = b"".join(
        base64.b64encode(one) + b" %d\n" % row for row, one in enumerate([b"a", b"\xff"])
    )
    assert parse_tokenizer("tokenizer.model", lines).ids == {"a": 0, "ÿ": 1}
    assert parse_tokenizer("vocab.json", b'{"x": 0}', b'{"new": 1}').size == 2


def test_sentencepiece_by_its_wire_format():
    trainer = field(2, b"\x08\x01")  # another field of the model, which is left out
    data = piece("<unk>") + piece("▁the") + trainer + piece("a" * 300)
    assert parse_tokenizer("tokenizer.model", data).ids == {"<unk>": 0, "▁the": 1, "a" * 300: 2}


def test_rows_follow_their_tokens():
    old = Vocabulary({"a": 0, "b": 1, "c": 2}, 3)
    new = Vocabulary({"c": 0, "d": 1, "a": 3}, 4)
    assert map_rows(old, new).tolist() == [2, -1, -1, 0]


def test_the_file_that_tells_most():
    assert find_tokenizer(["vocab.json", "tokenizer.json", "x"]) == "tokenizer.json"
    assert find_tokenizer(["config.json"]) is None


@for_each(
    ("name", "data"),
    [
        ("tokenizer.json", b"{}"),
        ("tokenizer.json", b"[1]"),
        ("tokenizer.json", b'{"model": {"vocab": {"a": -1}}}'),
        ("tokenizer.json", b'{"model": {"vocab": {"a": 1e99}}}'),
        ("tokenizer.json", b'{"model": {"vocab": {"a": true}}}'),
        ("tokenizer.json", b'{"model": {"vocab": {"a": 99999999999}}}'),
        ("tokenizer.json", b'{"model": {"vocab": [["a"]]}}'),
        ("tokenizer.json", b'{"model": {"vocab": {"a": 0}}, "added_tokens": [{"id": "x"}]}'),
        ("tokenizer.json", b"[" * 100_000),
        ("vocab.json", b"\xff\xfe"),
        ("vocab.txt", b"\xff\xfe"),
        ("tokenizer.model", b""),
        ("tokenizer.model", b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
        ("tokenizer.model", b"YQ== x\nYg== 1\n"),
        ("other.json", b"{}"),
    ],
)
def test_what_is_no_tokenizer_is_an_error(name, data):
    with pytest.raises(FormatError, match="token"):
        parse_tokenizer(name, data)


@given(name=st.sampled_from(TOKENIZER_FILES), data=st.binary(max_size=60))
@example("tokenizer.model", b"\x0a\x02\x0a\x00")
def test_any_bytes_give_a_vocabulary_or_a_format_error(name, data):
    try:
        found = parse_tokenizer(name, data)
    except FormatError:
        return
    assert found.size == max(found.ids.values()) + 1
