"""mvc data: whole command lines, with folders, patterns and stores."""

import os
import shutil

import pytest

from mvc.sources import FileSource
from support.s3_server import KEYS, make_store, new_prefix
from support.shard_files import make_tar, write_jsonl


@pytest.fixture
def shell(empty):
    """A repository with a data set of three shards that is not in it yet."""
    train = empty.folder / "data" / "train"
    (train / "sub").mkdir(parents=True)
    write_jsonl(train / "a.jsonl", 100)
    write_jsonl(train / "b.jsonl.gz", 20, "gz")
    (train / "sub" / "c.tar").write_bytes(make_tar([("1.x", b"1"), ("2.x", b"2")]))
    return empty


@pytest.fixture
def read(monkeypatch):
    """Counts the bytes of shards that are read."""
    counted = [0]
    real = FileSource.read_into

    def read_into(self, offset, buffer):
        if "/train/" in str(self.path):
            counted[0] += len(buffer)
        real(self, offset, buffer)

    monkeypatch.setattr(FileSource, "read_into", read_into)
    return counted


def test_add_makes_a_map_and_leaves_the_data_where_it_is(shell):
    first, second = shell.ok("data", "add", "data/train").lines
    assert first == "data/train.shards: 3 shards added (+122 records)"
    assert second.startswith("  3 shards, 122 records, 12")
    assert "3 shards read" in second
    assert shell.ok("status", "--porcelain").lines == ["A  .mvcignore", "A  data/train.shards"]
    shell.ok("add", ".")
    shell.ok("commit", "-m", "data")
    assert shell.ok("ls", "--name-only").lines == [".mvcignore", "data/train.shards"]


def test_only_what_changed_is_read_again(shell, read):
    shell.ok("data", "add", "data/train")
    train = shell.folder / "data" / "train"
    assert read[0] == sum(path.stat().st_size for path in train.rglob("*") if path.is_file())
    read[0] = 0
    assert "nothing was read" in shell.ok("data", "add", "data/train").out
    assert shell.ok("data", "verify").code == 0
    assert read[0] == 0
    write_jsonl(train / "a.jsonl", 101)
    done = shell.ok("data", "add", "data/train", "--json").json
    assert read[0] == (train / "a.jsonl").stat().st_size == done["read_bytes"]
    assert (done["records"], done["changes"]["more_records"]) == (123, 1)
    shell.ok("data", "verify", "--full")
    assert read[0] > 2 * done["read_bytes"]


def test_history_says_which_data_changed(shell):
    shell.ok("data", "add", "data/train")
    shell.ok("commit", "-m", "one")
    train = shell.folder / "data" / "train"
    write_jsonl(train / "a.jsonl", 1304)
    write_jsonl(train / "d.jsonl", 1)
    (train / "b.jsonl.gz").rename(train / "e.jsonl.gz")
    shell.ok("data", "add", "data/train")
    packed_bytes = (train / "e.jsonl.gz").stat().st_size
    line = "1 shard added, 1 changed, 1 moved (+1,205 records)"
    assert shell.ok("diff", "--staged").lines == [f"modified: data/train.shards  {line}"]
    shell.ok("commit", "-m", "two")
    assert f" data/train.shards | {line}" in shell.ok("log", "--stat").lines
    assert f"modified: data/train.shards  {line}" in shell.ok("show").lines
    (found,) = shell.ok("diff", "HEAD~1", "HEAD", "--json").json["files"]
    assert found["shards"]["more_records"] == 1205
    assert shell.ok("data", "diff", "HEAD~1", "HEAD").lines == [
        f"data/train.shards: {line}",
        "  M a.jsonl  1.9 KiB, 100 records -> 26.9 KiB, 1,304 records",
        f"  R b.jsonl.gz -> e.jsonl.gz  {packed_bytes} B, 20 records",
        "  A d.jsonl  19 B, 1 record",
    ]
    for words in (["HEAD~1..HEAD"], ["HEAD~1", "train"], ["HEAD~1", "HEAD", "data/train.shards"]):
        assert shell.ok("data", "diff", *words).lines[0] == f"data/train.shards: {line}"
    assert shell.ok("data", "diff").out == ""
    assert shell.ok("data", "ls", "HEAD~1", "--json").json["maps"][0]["records"] == 122


def test_numbers_of_token_files_are_counted_once_their_type_is_known(shell):
    tokens = shell.folder / "data" / "tokens"
    tokens.mkdir()
    (tokens / "a.bin").write_bytes(b"12345678")
    for words, message in (
        (["data/tokens", "--dtype", "unt16"], "did you mean uint16?"),
        (["data/train", "--dtype", "uint16"], "holds no .bin files"),
    ):
        assert message in shell("data", "add", *words).err
    assert shell.ok("data", "add", "data/tokens", "--json").json["records"] is None
    done = shell.ok("data", "add", "data/tokens", "--dtype", "uint16", "--json").json
    assert (done["records"], done["read"]) == (4, 0)
    (tokens / "b.bin").write_bytes(b"12")
    assert shell.ok("data", "add", "data/tokens", "--json").json["records"] == 5
    (tokens / "b.bin").write_bytes(b"123")
    assert "3 bytes, not a multiple of 2" in shell.ok("data", "add", "data/tokens").err
    assert shell.ok("data", "ls", "--json").json["maps"][0]["records"] is None


def test_a_map_is_not_moved_to_where_it_would_not_find_its_shards(shell):
    shell.ok("data", "add", "data/train")
    found = shell("mv", "data/train.shards", "train.shards")
    assert found.code == 2
    assert found.err == (
        "error: 'data/train.shards' is the map of 'data/train', which it would not find from 'train.shards'\n"
        'hint: "mvc data rm data/train.shards", then "mvc data add data/train --name train.shards"\n'
    )
    shell.ok("mv", "data/train.shards", "data/other.shards")
    shell.ok("data", "verify", "other")
    shell.ok("mv", "data", "moved")  # the shards move along
    shell.ok("data", "verify", "moved/other")


def test_ls_lists_maps_and_their_shards(shell):
    shell.ok("data", "add", "data/train")
    head, row = shell.ok("data", "ls").lines
    assert shell.ok("data").lines == [head, row]
    assert head.split() == ["map", "shards", "records", "size", "tree"]
    assert row.split()[:3] == ["data/train.shards", "3", "122"]
    rows = shell.ok("data", "ls", "train").lines[1:]
    assert [row.split()[:2] for row in rows] == [
        ["a.jsonl", "100"],
        ["b.jsonl.gz", "20"],
        ["sub/c.tar", "2"],
    ]
    assert shell.ok("data", "ls", "train.shards", folder="data").lines[1:] == rows
    (found,) = shell.ok("data", "ls", "train", "--json").json["maps"]
    assert [one["records"] for one in found["list"]] == [100, 20, 2]
    (shell.folder / "odd.shards").write_text("no map")
    shell.ok("add", "odd.shards")
    assert "not a shard map" in shell.ok("data", "ls").out
    assert shell("data", "ls", "odd").code == 5


def test_a_file_that_is_no_map_hides_nothing_of_the_others(shell):
    shell.ok("data", "add", "data/train")
    shell.ok("commit", "-m", "data")
    (shell.folder / "data" / "train" / "a.jsonl").write_text("{}\n")
    shell.ok("data", "add", "data/train")
    (shell.folder / "data" / "odd.shards").write_text("no map")
    shell.ok("add", "data/odd.shards")
    for told in (shell.ok("data", "diff"), shell("data", "verify")):
        assert "odd.shards" in told.lines[0]
        assert "not a shard map" in told.lines[0]
    assert told.code == 1
    assert told.lines[0].startswith("unreadable: data/odd.shards not a shard map")
    assert told.lines[1].startswith("data/odd.shards: 1 unreadable")
    assert told.lines[2].startswith("ok: data/train.shards")
    odd, train = shell.ok("data", "diff", "--json").json["maps"]
    assert "not a shard map" in odd["fault"]
    assert [one["new"]["path"] for one in train["changed"]] == ["a.jsonl"]
    assert shell("data", "verify", "odd").code == shell("data", "diff", "odd").code == 5


def test_a_clone_without_the_data_verifies_by_size_and_by_content(shell):
    shell.ok("data", "add", "data/train")
    (shell.folder / ".mvc" / "shards.db").unlink()
    assert "3 by their size alone" in shell.ok("data", "verify", "--quick").out
    assert "3 read" in shell.ok("data", "verify").out
    assert "3 not read" in shell.ok("data", "verify").out


def test_store_adds_the_shards_too(shell):
    shell.ok("data", "add", "data/train")
    told = shell.ok("data", "add", "data/train", "--store").lines
    assert "nothing was read" in told[1]
    shell.ok("commit", "-m", "stored")
    names = shell.ok("ls", "--name-only").lines
    assert names == [
        "data/train.shards",
        *(f"data/train/{one}" for one in ("a.jsonl", "b.jsonl.gz", "sub/c.tar")),
    ]
    shutil.rmtree(shell.folder / "data")
    shell.ok("restore", ".")
    assert shell.ok("data", "verify", "--full").code == 0


def test_a_pattern_a_file_and_a_name(shell):
    shell.ok("data", "add", "data/train/**/*.jsonl*", "--name", "maps/lines")
    (found,) = shell.ok("data", "ls", "--json").json["maps"]
    assert (found["path"], found["root"], found["shards"]) == (
        "maps/lines.shards",
        "../data/train",
        2,
    )
    assert (shell.folder / ".mvcignore").read_text() == "/data/train/**/*.jsonl*\n"
    write_jsonl(shell.folder / "data" / "train" / "sub" / "n.jsonl", 1)
    (shell.folder / "data" / "train" / "other").write_text("x")
    assert "extra: data/train/sub/n.jsonl is" in shell("data", "verify").out
    shell.ok("data", "add", "train/sub/c.tar", "--name", "c", folder="data")
    assert shell.ok("data", "ls", "c", "--json").json["maps"][0]["records"] == 2
    shell.ok("data", "rm", "data/c")


def test_a_folder_elsewhere_is_named_by_its_url(shell):
    shutil.move(shell.folder / "data", shell.folder.parent / "elsewhere")
    url = (shell.folder.parent / "elsewhere" / "train").as_uri()
    for source in ("../elsewhere/train", url):
        shell.ok("data", "add", source)
        (found,) = shell.ok("data", "ls", "--json").json["maps"]
        assert (found["path"], found["root"]) == ("train.shards", url)
    assert "nothing was read" in shell.ok("data", "add", url).out
    assert shell.ok("data", "verify", "--full").code == 0
    (shell.folder.parent / "elsewhere" / "train" / "a.jsonl").unlink()
    assert shell("data", "verify").lines[0] == f"missing: {url}/a.jsonl does not exist"
    told = shell("data", "add", url, "--store")
    assert (told.error, told.hint) == (
        f"{url!r} is not in the worktree",
        '"--store" takes what is there',
    )


def test_a_record_count_that_is_not_known_is_said(shell):
    (shell.folder / "data" / "train" / "bad.tar").write_bytes(b"x" * 600)
    told = shell.ok("data", "add", "data/train")
    assert told.err == (
        "warning: bad.tar: the number of records is not known: "
        "it is not a tar file, or a header of it is damaged\n"
    )
    assert "records not known" in told.out


def test_wrong_use_gets_one_line(shell):
    shell.ok("data", "add", "data/train")
    shell.ok("commit", "-m", "one")
    before = shell.ok("status", "--json").out
    for words, message in [
        (["add"], "add takes one folder, pattern or URL"),
        (["add", "a", "b"], "add takes one folder, pattern or URL: quote the pattern"),
        (["add", "nope"], "there is no folder 'nope'"),
        (["add", "."], "the whole worktree cannot be one data set"),
        (["add", ".mvc"], "is inside .mvc, the repository itself"),
        (["add", "data/train/*.zip", "--name", "z"], "'data/train/*.zip' holds no shards"),
        (["add", "data/train", "--name", "x/"], "'x/' cannot name a map"),
        (["add", "data/train", "--name", "/tmp/x"], "is outside the repository"),
        (["add", "data/train.shards"], "'data/train.shards' is a shard map, not data"),
        (
            ["add", "data/train/*.jsonl", "--name", "data/train"],
            "'data/train.shards' is the map of 'train'",
        ),
        (["add", "ftp://x/y"], "'ftp://x/y' is not the URL of a store"),
        (["add", "s3://u:p@bucket/x"], "holds credentials"),
        (["add", "data/train", "--quick"], "--quick does not go with add"),
        (["verify", "--store"], "--store does not go with verify"),
        (["verify", "--quick", "--full"], "--quick and --full cannot be used together"),
        (["verify", "a", "b"], "unexpected argument 'b'"),
        (["verify", "nope"], "there is no map 'nope'"),
        (["ls", "nope"], "'nope' is neither a revision nor a map"),
        (["ls", "HEAD", "train", "x"], "unexpected argument 'x'"),
        (["rm"], "rm takes a map"),
        (["rm", "nope"], "there is no map 'nope'"),
        (["rm", "train", "--full"], "--full does not go with rm"),
        (["frob"], "'frob' is not one of add, ls, diff, verify, rm"),
        (["add", ""], "the source is empty"),
    ]:
        told = shell("data", *words)
        assert told.code in (2, 3, 4)
        assert message in (told.error or told.err)
        assert told.out == ""
        assert shell.ok("status", "--json").out == before


def test_names_that_a_line_cannot_hold(shell):
    train = shell.folder / "data" / "train"
    (train / "line\nbreak \x1b[31m.bin").write_text("x")
    with open(os.fsencode(train) + b"/\xff.bin", "wb") as file:
        file.write(b"y")
    shell.ok("data", "add", "data/train")
    assert "line\\x0abreak \\x1b[31m.bin" in shell.ok("data", "ls", "train").out
    assert "\\xff.bin" in shell.ok("data", "ls", "train").out
    assert shell.ok("data", "verify", "--full").code == 0


def test_a_map_that_cannot_be_read_as_a_file(shell):
    os.mkfifo(shell.folder / "x.shards")
    assert shell("data", "add", "data/train", "--name", "x").code == 4
    (shell.folder / "y.shards").symlink_to("data/train.shards")
    assert shell("data", "add", "data/train", "--name", "y").code == 4


def test_completion_knows_verbs_and_maps(shell):
    shell.ok("data", "add", "data/train")
    assert "verify" in shell.ok("completion", "--", "data", "v").out
    assert "data/train.shards" in shell.ok("completion", "--", "data", "verify", "").out


def test_shards_of_a_bucket_are_read_once(shell, moto):
    import obstore

    prefix = f"{new_prefix()}/train"
    store = make_store(moto, "mvc", prefix)
    big = os.urandom((9 << 20) + 5)
    for key, content in {
        "a.jsonl": b"{}\n" * 7,
        "year=2024/b c.bin": big,
        "d.jsonl": b"{}\n",
    }.items():
        obstore.put(store, key, content)
    shell.environment |= {**KEYS, "AWS_ENDPOINT_URL": moto}
    url = f"s3://mvc/{prefix}"
    done = shell.ok("data", "add", url, "--json").json
    assert (done["path"], done["root"], done["shards"], done["read"]) == ("train.shards", url, 3, 3)
    assert done["bytes"] == done["read_bytes"] == len(big) + 24
    assert shell.ok("data", "add", url, "--json").json["read"] == 0
    assert "3 not read" in shell.ok("data", "verify").out
    assert "3 read" in shell.ok("data", "verify", "--full").out
    obstore.put(store, "d.jsonl", b"[]\n")
    obstore.put(store, "e.jsonl", b"[]\n")
    obstore.delete(store, "a.jsonl")
    for level in ("--quick", "--full", "--progress"):
        told = shell("data", "verify", level)
        assert told.code == 1
        assert told.lines[0] == f"missing: {url}/a.jsonl does not exist"
        assert told.lines[1].startswith(f"changed: {url}/d.jsonl ")
        assert told.lines[2] == f"extra: {url}/e.jsonl is not in the map"
    done = shell.ok("data", "add", url, "--json").json
    assert (done["read"], done["read_bytes"], done["shards"]) == (2, 6, 3)
    shell.ok("data", "add", f"{url}/*.jsonl", "--name", "lines")
    assert [row.split()[0] for row in shell.ok("data", "ls", "lines").lines[1:]] == [
        "d.jsonl",
        "e.jsonl",
    ]
    assert shell("data", "add", f"s3://mvc/{new_prefix()}", "--name", "none").code == 3


def test_a_bucket_that_does_not_answer_gets_one_line(shell):
    shell.environment |= {**KEYS, "AWS_ENDPOINT_URL": "http://127.0.0.1:1"}
    told = shell("data", "add", "s3://mvc/none")
    assert told.code == 6
    assert "cannot list the store" in told.error


def test_verify_names_each_fault_with_its_path(shell):
    shell.ok("data", "add", "data/train")
    train = shell.folder / "data" / "train"
    (train / "a.jsonl").rename(train / "new")
    (train / "sub" / "c.tar").unlink()
    told = shell("data", "verify")
    assert told.code == 1
    assert told.lines[:2] == [
        "missing: data/train/a.jsonl does not exist",
        "extra: data/train/new is not in the map",
    ]
    assert told.lines[3].startswith("data/train.shards: 1 extra, 2 missing")
    quick = shell.json("data", "verify", "train", "--quick", code=1)
    assert [fault["kind"] for fault in quick["maps"][0]["faults"]] == [
        "missing",
        "extra",
        "missing",
    ]


def test_rm_takes_shards_out_of_the_map_and_leaves_content_and_other_rules(shell):
    (shell.folder / ".mvcignore").write_text("*.log\n")
    shell.ok("data", "add", "data/train")
    assert (shell.folder / ".mvcignore").read_text() == "*.log\n/data/train/\n"
    shell.ok("commit", "-m", "one")
    (line,) = shell.ok("data", "rm", "train", "a.jsonl", "data/train/sub/c.tar").lines
    said = "2 shards removed (-102 records)"
    assert line == f"data/train.shards: {said}; their content is left where it is"
    assert shell.json("data", "ls")["maps"][0]["shards"] == 1
    assert f"data/train.shards  {said}" in shell.ok("diff", "--staged").out
    told = shell("data", "rm", "train", "a.jsonl")
    assert told.error == "data/train.shards has no shard 'a.jsonl'"
    shell.ok("data", "rm", "train")
    assert not (shell.folder / "data" / "train.shards").exists()
    assert (shell.folder / ".mvcignore").read_text() == "*.log\n"
    assert (shell.folder / "data" / "train" / "a.jsonl").exists()
