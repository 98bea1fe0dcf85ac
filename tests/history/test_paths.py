from hypothesis import given
from hypothesis import strategies as st

from mvc.history.names import decode_path, encode_path, find_name_fault, find_path_fault
from support.cases import for_each

HOSTILE = [
    "",
    "/etc/passwd",
    "a//b",
    "a/",
    ".",
    "..",
    "../x",
    "a/../b",
    "a/./b",
    ".mvc",
    ".mvc/HEAD",
    "a/.mvc/x",
    ".MVC/x",
    ".Mvc",
    ".git",
    ".GIT/config",
    "a/.git",
    ".mvc ",
    ".mvc.",
    ".mvc. .",
    ".git::$INDEX_ALLOCATION/x",
    ".mvc:stream",
    "mvc~1",
    "MVC~1/x",
    "git~2",
    ".m\u200cvc",
    ".\u200dmvc",
    ".mvc\ufeff",
    "\u200e.mvc/x",
    ".mv\u206ac",
    "\uff0emvc",
    ".\uff4dvc",
    ".\u24dc\u24e5\u24d2",
    ".g\u2060it",
    "a\\b",
    "..\\x",
    "a\0b",
    "x" * 4095,
    "\ud800",
]
HARMLESS = [
    "a",
    "a/b/c.safetensors",
    ".mvcignore",
    ".gitignore",
    "mvc",
    "git",
    "a.mvc",
    ".mvcx",
    "..a",
    "...",
    "a b/c",
    "mvc~x",
    "~1",
    "naïve/模型.pt",
    "e\u0301",
    "emoji \U0001f600",
    decode_path(b"latin-\xe9.bin"),
    "x" * 255,
    "new\nline",
    "C:x",
    " lead",
    "-dash",
]


@for_each("path", HOSTILE)
def test_paths_that_could_do_harm_have_a_fault(path):
    assert find_path_fault(path)


@for_each("path", HARMLESS)
def test_paths_of_ordinary_files_have_none(path):
    assert find_path_fault(path) is None


_ALPHABET = ".mvcgitMVC~1/\\: \u200c\ufeff\x00ab"


@given(st.text(alphabet=_ALPHABET, max_size=12))
def test_the_fast_look_at_a_path_agrees_with_the_look_at_each_name(path):
    slow = not path or any(find_name_fault(name) for name in path.split("/"))
    assert bool(find_path_fault(path)) == bool(slow)


@given(st.binary(min_size=1, max_size=40))
def test_any_bytes_of_a_file_name_survive(raw):
    assert encode_path(decode_path(raw)) == raw
