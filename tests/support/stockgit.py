"""Stock Git as the oracle of the history tests, cut off from the user's own settings."""

from __future__ import annotations

import os
import random
import subprocess
from dataclasses import replace
from pathlib import Path

from mvc.history.git import GitHistory
from mvc.history.values import Identity, Index, IndexEntry, Stamp, TreeEntry

WHO = Identity("Ann Example", "ann@example.org")
START_S = 1_700_000_000

ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "Stock",
    "GIT_AUTHOR_EMAIL": "stock@example.org",
    "GIT_COMMITTER_NAME": "Stock",
    "GIT_COMMITTER_EMAIL": "stock@example.org",
    "LC_ALL": "C",
}


def run_git(git_dir: Path, *arguments: str, data: bytes | None = None, check: bool = True):
    return subprocess.run(
        ["git", f"--git-dir={git_dir}", *arguments],
        input=data,
        capture_output=True,
        check=check,
        env=ENVIRONMENT,
        cwd=git_dir.parent,
    )


def git(git_dir: Path, *arguments: str, data: bytes | None = None) -> str:
    """Return what a successful command prints, without the last line feed."""
    return run_git(git_dir, *arguments, data=data).stdout.decode().removesuffix("\n")


def git_or_none(git_dir: Path, *arguments: str) -> str | None:
    """Return what a command prints, or None where it fails."""
    result = run_git(git_dir, *arguments, check=False)
    return result.stdout.decode().removesuffix("\n") if result.returncode == 0 else None


def at(time_s: int | None = None, timezone_s: int | None = None) -> Stamp:
    """Return a stamp of ``WHO``: of now and here unless given."""
    stamp = Stamp.now(WHO, time_s)
    return stamp if timezone_s is None else replace(stamp, timezone_s=timezone_s)


def loose_path(history: GitHistory, object_id: str) -> Path:
    """Return where an object is as a file of its own."""
    return history.git_dir / "objects" / object_id[:2] / object_id[2:]


def spoil(path: Path, data: bytes) -> None:
    """Put other bytes into a file, which may be read-only."""
    path.chmod(0o644)
    path.write_bytes(data)


def packs_of(history: GitHistory) -> list[Path]:
    """Return the files of all packs."""
    return sorted((history.git_dir / "objects" / "pack").glob("*.pack"))


def collect_garbage(history: GitHistory) -> None:
    """Have stock Git pack all that is reachable, and drop the rest."""
    git(history.git_dir, "gc", "--quiet", "--prune=now")


def create_ref(history: GitHistory, name: str, commit: str) -> None:
    """Make a ref that did not exist."""
    history.update_ref(name, commit, expected=None, message="m", stamp=at())


def stage(history: GitHistory, *entries: IndexEntry) -> None:
    """Write an index of these entries."""
    with history.lock():
        history.write_index(Index({entry.path: entry for entry in entries}))


def write_commit(history: GitHistory, parents, text, *, time_s, files=None, message=None):
    """Store a commit of small files and return its id."""
    files = {"file.txt": text} if files is None else files
    entries = {
        path: TreeEntry(0o100644, history.write_blob(content.encode()))
        for path, content in files.items()
    }
    return history.write_commit(
        tree=history.write_tree(entries),
        parents=parents,
        message=message or text,
        author=Stamp(WHO, time_s, 3600),
    )


def commit_on_head(history: GitHistory, text: str, *, time_s: int = START_S, **options):
    """Commit on the current branch and return the commit's id."""
    head = history.head()
    parents = [] if head.commit is None else [head.commit]
    new = write_commit(history, parents, text, time_s=time_s, **options)
    history.update_head(new, expected=head.commit, message=f"commit: {text}", stamp=at(time_s, 0))
    return new


def build_tangle(history: GitHistory, seed: int, moves: int = 40) -> None:
    """Make a history with branches, merges, switches and tags; every commit a minute later."""
    chooser = random.Random(seed)
    time_s = START_S
    commit_on_head(history, "root", time_s=time_s)
    for number in range(moves):
        time_s += 60
        branches = sorted(history.list_refs("refs/heads/"))
        roll = chooser.random()
        if roll < 0.5:
            step = f"commit {number}\n\nStep: {number * 10}"
            commit_on_head(history, step, time_s=time_s)
        elif roll < 0.65:
            target = chooser.choice(branches).removeprefix("refs/heads/")
            history.set_head_branch(target, stamp=at(time_s, 0))
        elif roll < 0.75:
            new = f"topic/{number}"
            start = history.resolve("HEAD")
            history.update_ref(
                f"refs/heads/{new}", start, expected=None, message="branch: Created", stamp=at()
            )
            history.set_head_branch(new, stamp=at(time_s, 0))
        elif roll < 0.85:
            _merge(history, chooser.choice(branches), number, time_s)
        else:
            text = f"tag {number}" if chooser.random() < 0.5 else None
            history.create_tag(
                f"v{number}", history.resolve("HEAD"), message=text, stamp=at(time_s)
            )
    history.set_head_branch("main", stamp=at(time_s, 0))


def _merge(history: GitHistory, branch: str, number: int, time_s: int) -> None:
    head = history.resolve("HEAD")
    other = history.find_ref(branch)
    if other == head:
        return
    new = write_commit(history, [head, other], f"merge {number}", time_s=time_s)
    history.update_head(new, expected=head, message=f"merge {branch}: Merge", stamp=at())
