import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.errors import CorruptionError, FormatError, NotFoundError, UsageError
from mvc.history import object_formats as trees
from mvc.history.git import GitHistory
from mvc.history.object_formats import parse_commit, parse_identity, parse_stamp, parse_tag
from mvc.history.values import EMPTY_BLOB, Identity, Stamp, TreeEntry
from support.cases import for_each
from support.stockgit import WHO, at, git, git_or_none, write_commit

FILE = 0o100644


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    made = GitHistory.init(tmp_path_factory.mktemp("commits") / ".mvc")
    made.write_tree({})
    return made


def tree_of(history, *items):
    """Store a tree object of raw (mode, name, id) items, whatever they are."""
    data = b"".join(b"%o %s\0" % (mode, name) + bytes.fromhex(one) for mode, name, one in items)
    return history.objects.write("tree", data)


_NAMES = st.sampled_from(["a", "b", "a.b", "ab", "a-b", "z", "é", "Z", "a b", "\udce9"])
_PATHS = st.lists(_NAMES, min_size=1, max_size=4).map("/".join)


def has_clash(paths):
    return any(other.startswith(path + "/") for path in paths for other in paths)


@given(
    st.dictionaries(
        _PATHS, st.tuples(st.sampled_from([0o100644, 0o100755, 0o120000]), st.binary(max_size=3))
    )
)
def test_a_tree_comes_back_and_is_the_one_git_makes(shared, files):
    entries = {p: TreeEntry(mode, shared.write_blob(data)) for p, (mode, data) in files.items()}
    if has_clash(entries):
        with pytest.raises(UsageError):
            shared.write_tree(entries)
        return
    tree = shared.write_tree(entries)
    assert shared.read_tree(tree) == entries


def test_trees_are_those_of_git(history):
    paths = ["a/b/c", "a/b.txt", "a.txt", "a-b", "z/1", "z/2/3", "ab", "é/ü", "a/b-c"]
    entries = {path: TreeEntry(FILE, history.write_blob(path.encode())) for path in paths}
    entries["run.sh"] = TreeEntry(0o100755, history.write_blob(b"x"))
    entries["link"] = TreeEntry(0o120000, history.write_blob(b"a.txt"))
    tree = history.write_tree(entries)
    lines = "".join(f"{e.mode:o} {e.blob}\t{path}\n" for path, e in entries.items())
    git(history.git_dir, "update-index", "--index-info", data=lines.encode())
    assert git(history.git_dir, "write-tree") == tree
    git(history.git_dir, "fsck", "--strict", tree)


def test_the_empty_tree_is_git_s(history):
    assert history.write_tree({}) == "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
    assert history.read_tree(history.write_tree({})) == {}


def test_a_commit_a_tag_and_a_tree_have_the_same_files(history):
    commit = write_commit(history, [], "x", time_s=1, files={"a/b": "1", "c": "2"})
    tag = history.create_tag("v1", commit, message="m", stamp=at())
    tree = history.read_commit(commit).tree
    assert history.read_tree(commit) == history.read_tree(tag) == history.read_tree(tree)
    assert sorted(history.read_tree(commit)) == ["a/b", "c"]
    with pytest.raises(NotFoundError, match="is a blob"):
        history.read_tree(history.write_blob(b"no tree"))


@pytest.mark.parametrize("path", ["../x", ".mvc/HEAD", "/abs", "a//b", ".GIT/x", "", "a\\b"])
def test_hostile_paths_are_not_written(history, path):
    with pytest.raises(UsageError):
        history.write_tree({path: TreeEntry(FILE, history.write_blob(b""))})


def test_modes_that_git_does_not_know_are_not_written(history):
    with pytest.raises(UsageError, match="160000"):
        history.write_tree({"sub": TreeEntry(0o160000, history.write_blob(b""))})


HOSTILE_NAMES = [
    b"..", b".", b"", b".mvc", b".MVC", b".git", b"a/b", b"/abs", b"a\\b", b"mvc~1", b".mvc. ",
    ".m\u200cvc".encode(), "\uff0emvc".encode(), b".git::$INDEX_ALLOCATION",
]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE_NAMES)
@pytest.mark.parametrize("is_folder", [False, True])
def test_hostile_names_are_not_read(history, name, is_folder):
    blob = history.write_blob(b"evil")
    inner = tree_of(history, (FILE, b"x", blob))
    item = (0o40000, name, inner) if is_folder else (FILE, name, blob)
    for tree in (tree_of(history, item), tree_of(history, (0o40000, b"d", tree_of(history, item)))):
        with pytest.raises(FormatError, match="not allowed"):
            history.read_tree(tree)


def test_a_name_may_not_stand_twice(history):
    blob, other = history.write_blob(b"1"), history.write_blob(b"2")
    inner = tree_of(history, (FILE, b"x", blob))
    for second in ((FILE, b"a", other), (0o40000, b"a", inner)):
        with pytest.raises(FormatError, match="twice"):
            history.read_tree(tree_of(history, (FILE, b"a", blob), second))


def test_submodules_and_strange_modes_are_named(history):
    for mode in (0o160000, 0o20000, 0o140000, 0):
        with pytest.raises(FormatError, match="not a file, link or folder"):
            history.read_tree(tree_of(history, (mode, b"s", "ab" * 20)))


def test_permission_bits_of_old_gits_are_read_as_git_reads_them(history):
    blob = history.write_blob(b"")
    tree = tree_of(history, (0o100664, b"a", blob), (0o100775, b"b", blob))
    assert [entry.mode for entry in history.read_tree(tree).values()] == [0o100644, 0o100755]


def test_a_tree_that_unfolds_without_end_is_refused(history, monkeypatch):
    monkeypatch.setattr(trees, "MAX_ENTRIES", 5000)
    for leaf in (tree_of(history, (FILE, b"f", history.write_blob(b""))), tree_of(history)):
        tree = leaf
        for _ in range(12):
            tree = tree_of(history, *((0o40000, b"%d" % number, tree) for number in range(8)))
        with pytest.raises(FormatError, match="unfolds"):
            history.read_tree(tree)


def test_a_very_deep_tree_ends_in_an_error_not_in_a_crash(history):
    tree = tree_of(history, (FILE, b"f", history.write_blob(b"")))
    for _ in range(2100):
        tree = tree_of(history, (0o40000, b"d", tree))
    with pytest.raises(FormatError, match="longer"):
        history.read_tree(tree)


def test_a_deep_path_can_be_written_and_read(history):
    path = "/".join(["d"] * 1100) + "/f"
    entries = {path: TreeEntry(FILE, history.write_blob(b"deep"))}
    assert history.read_tree(history.write_tree(entries)) == entries


@given(st.binary(max_size=80))
def test_garbage_as_a_tree_is_a_format_error_and_nothing_else(shared, junk):
    tree = shared.objects.write("tree", junk)
    with contextlib.suppress(FormatError):
        shared.read_tree(tree)


def test_a_missing_subtree_is_named(history):
    with pytest.raises(CorruptionError, match="cd" * 20):
        history.read_tree(tree_of(history, (0o40000, b"d", "cd" * 20)))


def test_undecodable_names_are_those_of_the_file_system(history):
    blob = history.write_blob(b"")
    tree = tree_of(history, (FILE, b"latin-\xe9", blob))
    assert list(history.read_tree(tree)) == ["latin-\udce9"]
    assert history.write_tree(history.read_tree(tree)) == tree
    assert git_or_none(history.git_dir, "fsck", "--strict", tree) is not None


EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"


def commit_with(history, **changes):
    options = {
        "tree": EMPTY_TREE,
        "parents": [],
        "message": "m",
        "author": at(1, 0),
    }
    return history.write_commit(**{**options, **changes})


def test_a_commit_is_byte_for_byte_the_one_git_makes(history):
    tree = history.write_tree({})
    message = "subject é\n\nbody\n\nStep: 4\n"
    author = Identity("Ann", "ann@x.org")
    made = commit_with(
        history,
        tree=tree,
        message=message,
        author=Stamp(author, 1_700_000_123, -5400),
        committer=Stamp(Identity("Bob B. Jr", "bob@x.org"), 1_700_000_123, -5400),
    )
    data = git(history.git_dir, "cat-file", "commit", made)
    assert data == (
        f"tree {tree}\nauthor Ann <ann@x.org> 1700000123 -0130\n"
        f"committer Bob B. Jr <bob@x.org> 1700000123 -0130\n\n{message}"
    ).removesuffix("\n")
    info = history.read_commit(made)
    assert (info.tree, info.parents, info.author) == (tree, (), author)
    assert (info.author_time_s, info.author_timezone_s) == (1_700_000_123, -5400)
    assert (info.commit_time_s, info.message) == (1_700_000_123, message)
    git(history.git_dir, "fsck", "--strict", made)


@pytest.mark.parametrize(
    ("name", "email", "stored"),
    [
        ("A <evil> B", "a@b", "A evil B <a@b>"),
        ("A\nB", "a\n@b", "AB <a@b>"),
        ("  Ann.", "<a@b>", "Ann <a@b>"),
        ("Ann", "", "Ann <>"),
        ("Änne", "ä@b", "Änne <ä@b>"),
    ],
)
def test_identities_are_cleaned_as_git_does(history, name, email, stored):
    who = Identity(name, email)
    history.write_tree({})
    commit = commit_with(history, author=Stamp(who, 1, 0))
    assert git(history.git_dir, "log", "-1", "--format=%an <%ae>", commit) == stored
    git(history.git_dir, "fsck", "--strict", commit)


@pytest.mark.parametrize(
    "change",
    [
        {"author": Stamp(Identity("", "a@b"), 1, 0)},
        {"author": Stamp(Identity("<>", "a@b"), 1, 0)},
        {"author": Stamp(Identity("a\ud800", "a@b"), 1, 0)},
        {"message": "a\0b"},
        {"message": "\udcff"},
        {"author": at(-1)},
        {"author": at(2**60)},
        {"author": at(1, 400_000)},
        {"committer": at(-1)},
    ],
)
def test_what_git_cannot_store_is_refused(shared, change):
    with pytest.raises(UsageError):
        commit_with(shared, **change)


_WORDS = st.text(alphabet=st.characters(exclude_categories=["Cs", "Cc"]), max_size=30)


@given(
    message=st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    name=_WORDS,
    time_s=st.integers(0, 2**39),
    zone=st.integers(-720, 840),
)
def test_any_commit_comes_back(shared, message, name, time_s, zone):
    who = Identity("N" + name, "mail@x.org")
    info = shared.read_commit(
        commit_with(shared, message=message, author=Stamp(who, time_s, zone * 60), committer=at(1))
    )
    assert info.message == message + ("\n" if message and not message.endswith("\n") else "")
    assert (info.author_time_s, info.author_timezone_s) == (time_s, zone * 60)
    assert info.committer == WHO
    assert info.author.email == "mail@x.org"
    assert info.author.name.startswith("N")


def test_other_encodings_are_read_and_wrong_ones_do_no_harm(history):
    head = f"tree {EMPTY_TREE}\nauthor A <a@b> 1 +0000\ncommitter A <a@b> 1 +0000\n".encode()
    latin = history.objects.write("commit", head + b"encoding ISO-8859-1\n\nna\xefve\n")
    assert history.read_commit(latin).message == "naïve\n"
    for label in (b"utf-7", b"unicode_escape", b"punycode", b"nonsense", b"ascii", b"\xff"):
        raw = history.objects.write("commit", head + b"encoding " + label + b"\n\n\xe9+\\x\n")
        assert history.read_commit(raw).message.endswith("+\\x\n")


def test_identities_of_any_shape_are_read():
    assert parse_identity(b"A B <a@b>") == Identity("A B", "a@b")
    assert parse_identity(b"<a@b>") == Identity("", "a@b")
    assert parse_identity(b"A B") == Identity("A B", "")
    assert parse_identity(b"A <b") == Identity("A b", "")
    assert parse_identity(b"<" * 100_000).email == ""


_LINES = st.sampled_from(
    [
        b"tree " + EMPTY_TREE.encode(), b"tree 12", b"parent " + b"ab" * 20, b"parent x",
        b"author A <a@b> 1 +0000", b"author A <a@b> 99999999999999999999999 +0000",
        b"author A", b"committer A <a@b> -5 +9999", b"committer A <a@b> 1 +0000", b"", b" folded",
        b"encoding x", b"gpgsig y", b"mergetag z", b"object " + b"ab" * 20, b"type commit",
        b"type moon", b"tag v1", b"tagger A <a@b> 1 +0000", b"\xff\xfe",
    ]
)  # fmt: skip


@given(st.lists(_LINES, max_size=9).map(b"\n".join) | st.binary(max_size=60))
def test_garbage_as_a_commit_or_tag_is_a_format_error_and_nothing_else(data):
    for parse in (parse_commit, parse_tag):
        with contextlib.suppress(FormatError):
            parse(EMPTY_BLOB, data)


_COMMIT = b"""tree %s
parent %s
parent %s
author A B <a@b> 123 +0130
committer C <c@d> 456 -0200
encoding latin-1
gpgsig -----
 x
 \x20
 y

hello

world
""" % (EMPTY_TREE.encode(), b"ab" * 20, b"cd" * 20)


def test_headers_that_mvc_does_not_write_are_passed_over():
    info = parse_commit(EMPTY_BLOB, _COMMIT)
    assert (info.tree, info.parents) == (EMPTY_TREE, ("ab" * 20, "cd" * 20))
    assert (info.author, info.author_time_s) == (Identity("A B", "a@b"), 123)
    assert (info.committer, info.commit_time_s) == (Identity("C", "c@d"), 456)
    assert (info.author_timezone_s, info.message) == (5400, "hello\n\nworld\n")
    for line in (b"author X <x@y> 9 +0000", b"parent " + b"ef" * 20):  # only the first counts
        again = parse_commit(EMPTY_BLOB, _COMMIT.replace(b"encoding latin-1", line))
        assert (again.author, again.parents) == (info.author, info.parents)
    assert parse_stamp(b"A <a@b> 7 --700") == (b"A <a@b>", 7, 25_200)  # as Git reads it


@for_each(
    ("old", "new"),
    [
        (b"tree ", b"three "),
        (b"tree ", b" tree "),
        (b"\nauthor ", b"\nmaker "),
        (b"\ncommitter ", b"\nmaker "),
        (b"B <a@b> 123", b"B <a@b 123"),
        (b"123 +0130", b"12x +0130"),
        (b"+0130", b"*0130"),
        (b"+0130", b"+01x0"),
        (b"cdcd", b"cdcg"),
        (b"encoding latin-1", b"encoding"),
    ],
)
def test_a_commit_with_a_damaged_header_is_refused(old, new):
    assert old in _COMMIT
    with pytest.raises(FormatError):
        parse_commit(EMPTY_BLOB, _COMMIT.replace(old, new, 1))
