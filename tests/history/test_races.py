"""Processes that change one repository at once: one winner each time, and nothing is lost."""

import subprocess
import sys

from mvc.history.check import check
from mvc.history.git import GitHistory
from support.stockgit import at, git, write_commit

ADDER = """
import sys
from pathlib import Path
from mvc.errors import ConflictError
from mvc.history.git import GitHistory
from mvc.history.values import Identity, Stamp, TreeEntry

git_dir, name, count, ref = sys.argv[1:]
history = GitHistory.open(Path(git_dir))
who = Identity(name, "a@b")
done = lost = 0
while done < int(count):
    old = history.find_ref(ref)
    files = {} if old is None else history.read_tree(old)
    files[f"{name}-{done}"] = TreeEntry(0o100644, history.write_blob(f"{name}-{done}".encode()))
    files["shared"] = TreeEntry(0o100644, history.write_blob(b"%d" % len(files)))
    new = history.write_commit(
        tree=history.write_tree(files), parents=[] if old is None else [old],
        message=f"{name} {done}", author=Stamp(who, 1_700_000_000 + len(files), 0)
    )
    try:
        history.update_ref(ref, new, expected=old, message="add", stamp=Stamp.now(who))
        done += 1
    except ConflictError:
        lost += 1
print(done, lost)
"""

STAGER = """
import sys
from dataclasses import replace
from pathlib import Path
from mvc.history.git import GitHistory
from mvc.history.values import Index, IndexEntry

git_dir, name, count = sys.argv[1:]
history = GitHistory.open(Path(git_dir))
for number in range(int(count)):
    path = f"{name}-{number}"
    blob = history.write_blob(path.encode())
    with history.lock():
        entries = dict(history.read_index().entries)
        entries[path] = IndexEntry(path, blob, 0o100644)
        history.write_index(Index(entries))
"""


def run_all(script, commands):
    running = [
        subprocess.Popen(
            [sys.executable, "-c", script, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for command in commands
    ]
    results = [(child.communicate(), child.returncode) for child in running]
    assert all(code == 0 for _, code in results), results
    return [out for (out, _), _ in results]


def test_every_commit_of_every_process_is_in_the_history(history):
    names, count = ["a", "b", "c", "d"], 8
    ref = "refs/heads/main"
    run_all(ADDER, [[str(history.git_dir), name, str(count), ref] for name in names])
    commits = list(history.walk([history.find_ref(ref)]))
    assert len(commits) == len(names) * count
    assert all(len(commit.parents) <= 1 for commit in commits)
    files = set(history.read_tree(history.find_ref(ref)))
    assert files == {f"{name}-{number}" for name in names for number in range(count)} | {"shared"}
    moves = history.read_reflog(ref)
    assert [entry.new for entry in moves] == [commit.id for commit in commits]
    assert [entry.old for entry in moves[:-1]] == [commit.id for commit in commits[1:]]
    assert len(history.read_reflog("HEAD")) == len(commits)
    assert list(check(history)) == []
    git(history.git_dir, "fsck", "--strict")


def test_no_entry_of_the_index_is_lost(history):
    names, count = ["a", "b", "c"], 10
    run_all(STAGER, [[str(history.git_dir), name, str(count)] for name in names])
    wanted = sorted(f"{name}-{number}" for name in names for number in range(count))
    assert sorted(history.read_index().entries) == wanted
    assert git(history.git_dir, "ls-files").split() == wanted


def test_a_reader_sees_whole_states_only(history):
    ref = "refs/heads/main"
    first = write_commit(history, [], "first", time_s=1)
    history.update_ref(ref, first, expected=None, message="m", stamp=at())
    writer = subprocess.Popen(
        [sys.executable, "-c", ADDER, str(history.git_dir), "w", "25", ref],
        stdout=subprocess.DEVNULL,
    )
    reader, seen = GitHistory.open(history.git_dir), set()
    while writer.poll() is None:
        head = reader.head().commit
        seen.add(head)
        commit = reader.read_commit(head)
        assert reader.list_refs()[ref]
        assert reader.read_reflog(ref)
        for entry in reader.read_tree(commit.id).values():
            reader.read_blob(entry.blob)
    assert writer.returncode == 0
    assert len(list(reader.walk([reader.head().commit]))) == 26
    assert seen


def test_stock_git_and_mvc_take_turns(history):
    ref = "refs/heads/main"
    first = write_commit(history, [], "first", time_s=1)
    history.update_ref(ref, first, expected=None, message="m", stamp=at())
    writer = subprocess.Popen(
        [sys.executable, "-c", ADDER, str(history.git_dir), "w", "15", ref],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    moves = 0
    while writer.poll() is None:
        name = f"refs/heads/git-{moves}"
        git(history.git_dir, "update-ref", name, first, "0" * 40)
        if moves % 3 == 0:
            subprocess.run(
                ["git", f"--git-dir={history.git_dir}", "pack-refs", "--all"],
                check=False,
                capture_output=True,
            )
        moves += 1
    assert writer.returncode == 0, writer.stderr.read().decode()
    writer.stdout.close()
    writer.stderr.close()
    assert len(list(history.walk([history.find_ref(ref)]))) == 16
    assert len(history.list_refs("refs/heads/git-")) == moves
    assert list(check(history)) == []
