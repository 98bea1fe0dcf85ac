import contextlib
import io

import pytest
from dulwich.config import ConfigFile
from hypothesis import given
from hypothesis import strategies as st

from mvc.errors import ConflictError, FormatError, NotFoundError, UnsupportedError, UsageError
from mvc.history import config
from mvc.history.config import encode_config, parse_config, read_user
from mvc.history.git import GitHistory
from support.stockgit import git, git_or_none, run_git

VALUES = [
    "plain", "", " leading", "trailing ", "a;b", "a # b", 'quo"te', "back\\slash", "tab\there",
    "new\nline", "é ü 模", "=x", "[section]", "a  b", "\\", '"', "true", "\\n", "cr\rx", "!x", "~/x",
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES)
def test_values_are_read_back_by_us_and_by_git(history, value):
    history.config.set("user.name", value)
    assert history.config.get("user.name") == value
    assert GitHistory.open(history.git_dir).config.get("USER.Name") == value
    assert run_git(history.git_dir, "config", "-z", "user.name").stdout == value.encode() + b"\0"


@pytest.mark.parametrize("value", [v for v in VALUES if "\r" not in v])
def test_what_git_writes_is_read(history, value):
    git(history.git_dir, "config", "mvc.value", value)
    git(history.git_dir, "config", "remote.Or Igin.url", value)
    assert history.config.get("mvc.value") == value
    assert history.config.read()["remote.Or Igin.url"] == value
    history.config.set("mvc.other", "x")
    assert git(history.git_dir, "config", "mvc.value") == value.removesuffix("\n")
    assert git(history.git_dir, "config", "remote.Or Igin.url") == value.removesuffix("\n")


def test_keys_are_set_replaced_and_removed(history):
    history.config.set("mvc.ChunkBytes", "4096")
    history.config.set("mvc.chunkbytes", "8192")
    assert git(history.git_dir, "config", "--get-all", "mvc.chunkbytes") == "8192"
    git(history.git_dir, "config", "--add", "mvc.chunkbytes", "1")
    assert history.config.get("mvc.chunkbytes") == "1"
    history.config.set("other.key", "v")
    assert git(history.git_dir, "config", "--get-all", "mvc.chunkbytes") == "8192\n1"
    history.config.unset("mvc.chunkbytes")
    assert history.config.get("mvc.chunkbytes") is None
    assert git_or_none(history.git_dir, "config", "mvc.chunkbytes") is None
    with pytest.raises(NotFoundError, match="not set"):
        history.config.unset("mvc.chunkbytes")
    assert history.config.get("core.bare") == "false"


@pytest.mark.parametrize("key", ["", "x", "x.", ".x", "a b.c", "a.b_c", "a.1x", "a.\n.b", "ü.x"])
def test_what_is_no_key_is_refused(history, key):
    for call in (history.config.get, history.config.unset, lambda k: history.config.set(k, "v")):
        with pytest.raises(UsageError, match="config key"):
            call(key)


def test_values_that_no_file_can_hold_are_refused(history):
    for value in ("a\0b", "\ud800"):
        with pytest.raises(UsageError):
            history.config.set("a.b", value)


def test_a_key_that_would_not_be_read_back_is_refused(history):
    with pytest.raises(UsageError, match="read back"):
        history.config.set('a.";.b', "x")
    assert GitHistory.open(history.git_dir).config.get("core.bare") == "false"
    history.config.set("a.;#.b", "x")
    assert git(history.git_dir, "config", "a.;#.b") == history.config.get("a.;#.b") == "x"


def test_a_config_that_git_has_locked_is_left_alone(history):
    (history.git_dir / "config.lock").write_bytes(b"")
    with pytest.raises(ConflictError):
        history.config.set("a.b", "c")


_NAMES = st.from_regex(r"[a-z][a-z0-9-]{0,5}", fullmatch=True)
_SUBSECTIONS = st.none() | st.text(alphabet='aB."\\ ]é', max_size=6)
_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)


@given(st.dictionaries(st.tuples(_NAMES, _SUBSECTIONS, _NAMES), st.lists(_TEXT, min_size=1)))
def test_any_config_comes_back(items):
    config = {
        f"{section}.{name}" if sub is None else f"{section}.{sub}.{name}": values
        for (section, sub, name), values in items.items()
    }
    assert parse_config(encode_config(config), "config") == config


@given(st.binary(max_size=150) | st.text('[]"a=\\\n;# .', max_size=60).map(str.encode))
def test_garbage_is_a_format_error_and_nothing_else(junk):
    with contextlib.suppress(FormatError):
        parse_config(junk, "config")


_PIECES = st.sampled_from(
    ["[core]\n", '[a "b c"]\n', "[X-y]\n", "k = v\n", "\tK=v w  x\n", "a=1", "\n", " ", "#c\n", ";d\n",
     "u.r = 5\n", "k = a=b\n", "[a.b]\n", "k\n", "n = é\n", "z = a\t b\n", "\r\n", "e = \n", "= 3\n"]
)  # fmt: skip


@given(st.lists(_PIECES, max_size=8).map("".join))
def test_a_plain_config_is_read_as_dulwich_reads_it(text):
    plain = config._parse_plain(text.encode())
    if plain is None:
        return
    found = {}
    parsed = ConfigFile.from_file(io.BytesIO(text.encode()), expand_includes=False)
    for section in parsed.sections():
        for key, value in parsed.items(section):
            name = b".".join([section[0].lower(), *section[1:], key.lower()]).decode()
            found.setdefault(name, []).append(value.decode())
    assert plain == found


def test_a_damaged_config_is_named_at_once(history):
    (history.git_dir / "config").write_bytes(b"[core\nbare = false\n")
    with pytest.raises(FormatError, match="config") as caught:
        GitHistory.open(history.git_dir)
    assert "correct or remove" in caught.value.hint
    (history.git_dir / "config").write_bytes(b"#" * (2 << 20))
    with pytest.raises(FormatError, match="longer"):
        GitHistory.open(history.git_dir)


@pytest.mark.parametrize(
    "text",
    [
        "[core]\n\trepositoryformatversion = 2\n",
        "[core]\n\trepositoryformatversion = 1\n[extensions]\n\tobjectformat = sha256\n",
        "[core]\n\trepositoryformatversion = 1\n[extensions]\n\trefstorage = reftable\n",
    ],
)
def test_repositories_of_another_kind_are_refused_not_misread(history, text):
    (history.git_dir / "config").write_text(text)
    with pytest.raises(UnsupportedError):
        GitHistory.open(history.git_dir)


def test_the_user_is_read_from_the_files_that_are_named(tmp_path):
    first, second, missing = tmp_path / "a", tmp_path / "b", tmp_path / "c"
    first.write_text("[user]\n\tname = Ann\n\temail = ann@x\n[include]\n\tpath = secret\n")
    second.write_text("# comment\n[user]\n\temail = ann@work ; really\n")
    (tmp_path / "secret").write_text("[user]\n\tname = Other\n")
    assert read_user([first, missing, second]) == ("Ann", "ann@work")
    assert read_user([missing]) == (None, None)
    assert read_user([]) == (None, None)
    second.write_text("[user\n")
    with pytest.raises(FormatError, match=str(second)):
        read_user([first, second])


def test_neither_home_nor_environment_is_looked_at(history, tmp_path, monkeypatch):
    home = tmp_path / "home"
    home.mkdir()
    (home / ".gitconfig").write_text("[broken\n")
    for name in ("HOME", "XDG_CONFIG_HOME", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"):
        monkeypatch.setenv(name, str(home / ".gitconfig" if "GIT" in name else home))
    for name, value in (("COUNT", "1"), ("KEY_0", "user.name"), ("VALUE_0", "Evil")):
        monkeypatch.setenv(f"GIT_CONFIG_{name}", value)
    monkeypatch.setenv("GIT_DIR", str(home))
    opened = GitHistory.open(history.git_dir)
    assert opened.config.get("user.name") is None
    assert opened.head().branch == "main"
