"""Looks at the file system grow with the number of folders, not with its square."""

import os

from mvc import Repo

VERBS = {
    "first status": lambda repo: repo.status(),
    "add": lambda repo: repo.add(["."]),
    "status": lambda repo: repo.status(),
}
LOOKS = ("stat", "lstat", "scandir", "open")


def count_looks(root, depth, monkeypatch):
    """Return how often each verb looked at something, with a file in each of the nested folders."""
    repo = Repo.init(root)
    folder = root
    for number in range(depth):
        folder = folder / "d"
        folder.mkdir()
        (folder / ".mvcignore").write_text("*.tmp\n")
        (folder / "file.txt").write_text(str(number))
    counts = {}
    with monkeypatch.context() as patch:
        for name in LOOKS:
            patch.setattr(os, name, _counting(getattr(os, name), counts))
        found = {}
        for verb, run in VERBS.items():
            counts.clear()
            run(repo)
            found[verb] = sum(counts.values())
    return found


def _counting(real, counts):
    def look(*args, **options):
        counts[real] = counts.get(real, 0) + 1
        return real(*args, **options)

    return look


def test_status_and_add_look_at_each_folder_a_fixed_number_of_times(tmp_path, monkeypatch):
    shallow = count_looks(tmp_path / "shallow", 20, monkeypatch)
    deep = count_looks(tmp_path / "deep", 80, monkeypatch)
    for verb in VERBS:
        assert deep[verb] <= 4 * shallow[verb] + 20, verb
        assert deep[verb] <= 80 * 30, verb


def test_a_worktree_may_be_very_deep(tmp_path):
    repo = Repo.init(tmp_path)
    path = "d/" * 500 + "file.txt"
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).write_text("deep")
    assert [file.path for file in repo.status().files] == [path]
    repo.add(["."])
    repo.commit("deep")
    assert repo.status().is_clean
