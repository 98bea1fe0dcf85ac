import contextlib
import os
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.errors import FormatError
from mvc.history.ignore import IgnoreRules, parse_rules
from support.bounds import on_disk

RULES = r"""
# a comment
*.tmp
!keep.tmp
/anchored
build/
deep/**/leaf
**/anywhere/x
logs/**
!logs/keep
a/b/*.pt
\!bang
\#hash
trailing\SPACE
spacesSPACESPACE
[abc].bin
[!abc].dat
q?.txt
no/*/skip
x[[:digit:]]
literal\*star
!
/
""".replace("SPACE", " ")

NESTED = {
    "sub/.mvcignore": "*.log\n!important.log\n/only-here\n!*.tmp\n",
    "build/.mvcignore": "!*\n",
}

PATHS = [
    "a.tmp", "keep.tmp", "sub/a.tmp", "anchored", "sub/anchored", "build/x", "sub/build/x",
    "deep/leaf", "deep/a/leaf", "deep/a/b/leaf", "deep/a/leaf/x", "anywhere/x", "a/b/anywhere/x",
    "logs/a", "logs/keep", "logs/a/b", "a/b/m.pt", "a/b/c/m.pt", "!bang", "#hash", "trailing ",
    "spaces", "a.bin", "d.bin", "a.dat", "d.dat", "qx.txt", "q/x.txt", "qxx.txt", "no/1/skip",
    "no/1/2/skip", "no/skip", "x5", "xx", "sub/e.log", "sub/important.log", "sub/only-here",
    "sub/deeper/only-here", "sub/deeper/e.log", "literal*star", "literalXstar", "plain",
    "sub/keep.tmp", "a.tmp/inside", "é.tmp",
]  # fmt: skip


def make(root, rules):
    for name, text in rules.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def ask_git(root, paths, *options):
    subprocess.run(["git", "init", "-q", str(root)], check=True, env={**os.environ, "HOME": "/"})
    shown = subprocess.run(
        [
            "git",
            "-c",
            "core.excludesFile=",
            "check-ignore",
            "--no-index",
            "-z",
            "--stdin",
            *options,
        ],
        input="\0".join(paths).encode(),
        capture_output=True,
        check=False,
        cwd=root,
    )
    fields = shown.stdout.decode().split("\0")[:-1]
    return set(zip(*[iter(fields)] * 4, strict=True)) if options else set(fields)


def test_files_are_ignored_as_git_ignores_them(tmp_path):
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    make(ours, {".mvcignore": RULES, **NESTED})
    make(theirs, {".gitignore": RULES, **{k.replace("mvc", "git"): v for k, v in NESTED.items()}})
    rules = IgnoreRules(ours)
    assert {path for path in PATHS if rules.is_ignored(path, False)} == ask_git(theirs, PATHS)
    found = [(path, rules.find_rule(path, False)) for path in PATHS]
    told = {
        (rule.source.replace("mvc", "git"), str(rule.line), rule.pattern, path)
        for path, rule in found
        if rule is not None
    }
    assert told == {one for one in ask_git(theirs, PATHS, "-v") if not one[2].startswith("!")}


_PARTS = st.sampled_from(
    ["a", "b", "ab", "*", "**", "a*", "*b", "?", "[ab]", "[!a]", "\\*", "a*b*"]
)
_PATTERN = st.builds(
    lambda bang, root, parts, end: bang + root + "/".join(parts) + end,
    st.sampled_from(["", "", "!"]),
    st.sampled_from(["", "", "/"]),
    st.lists(_PARTS, min_size=1, max_size=3),
    st.sampled_from(["", "", "/"]),
)
SMALL = [
    "/".join(parts)
    for parts in [["a"], ["b"], ["ab"], ["*"], ["aab"], ["a", "b"], ["b", "a"], ["a", "a", "b"],
                  ["ab", "b", "a"], ["b", "ab"], ["a", "b", "ab", "a"]]
]  # fmt: skip


@on_disk
@given(st.lists(_PATTERN, min_size=1, max_size=4))
def test_random_patterns_mean_what_they_mean_to_git(tmp_path_factory, patterns):
    root = tmp_path_factory.mktemp("ignore")
    text = "\n".join(patterns) + "\n"
    make(root, {".gitignore": text, ".mvcignore": text})
    rules = IgnoreRules(root)
    assert {path for path in SMALL if rules.is_ignored(path, False)} == ask_git(root, SMALL)


def test_folders_are_told_from_files(tmp_path):
    make(tmp_path, {".mvcignore": "build/\nx*\n"})
    rules = IgnoreRules(tmp_path)
    assert rules.is_ignored("build", True)
    assert not rules.is_ignored("build", False)
    assert rules.is_ignored("a/xy", True)
    assert not rules.is_ignored("a", True)


def test_the_repository_itself_is_always_ignored(tmp_path):
    make(tmp_path, {".mvcignore": "!.mvc\n!.git\n!*\n"})
    rules = IgnoreRules(tmp_path)
    for path in (".mvc", ".mvc/HEAD", "sub/.mvc", "sub/.mvc/objects/x", ".git", "sub/.git/config"):
        assert rules.is_ignored(path, True)
        assert rules.is_ignored(path, False)
    assert not rules.is_ignored(".mvcignore", False)


def test_nothing_is_ignored_without_rules(tmp_path):
    assert not IgnoreRules(tmp_path).is_ignored("a/b.tmp", False)


def test_rule_files_behind_links_are_not_read(tmp_path):
    outside, root = tmp_path / "outside", tmp_path / "root"
    make(outside, {".mvcignore": "*\n"})
    make(root, {"real/file": ""})
    (root / ".mvcignore").symlink_to(outside / ".mvcignore")
    (root / "linked").symlink_to(outside)
    rules = IgnoreRules(root)
    assert not rules.is_ignored("file", False)
    assert not rules.is_ignored("linked/file", False)


def test_what_is_no_file_is_no_trap(tmp_path):
    (tmp_path / ".mvcignore").mkdir()
    (tmp_path / "sub").mkdir()
    os.mkfifo(tmp_path / "sub" / ".mvcignore")
    assert not IgnoreRules(tmp_path).is_ignored("sub/x", False)


def test_huge_and_endless_rules_are_refused(tmp_path):
    (tmp_path / ".mvcignore").write_bytes(b"#" * (2 << 20))
    with pytest.raises(FormatError, match="bytes"):
        IgnoreRules(tmp_path).is_ignored("x", False)
    with pytest.raises(FormatError, match=r"\*\*"):
        parse_rules(b"**/".join([b"a"] * 9))


def test_patterns_with_many_stars_take_no_time_to_speak_of(tmp_path):
    make(tmp_path, {".mvcignore": "*a" * 60 + "*b\n" + "?*" * 40 + "z\n"})
    assert not IgnoreRules(tmp_path).is_ignored("a" * 250, False)  # ends at all: that is the test


@given(st.binary(max_size=200))
def test_any_bytes_are_rules_or_a_format_error(data):
    with contextlib.suppress(FormatError):
        parse_rules(data)
