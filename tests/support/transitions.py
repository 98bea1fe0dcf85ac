"""Transitions in tests: what is planned, carried out and read back."""

from __future__ import annotations

from mvc.workspace.journal import FileWrite
from mvc.workspace.staging import stat_mark
from mvc.workspace.transition import run
from mvc.workspace.worktree import find_file_stat

JOURNAL = ".mvc/transition.json"


def codes(repo):
    return {file.path: file.code for file in repo.status().files}


def entry_of(repo, revision, path):
    return repo._context.history.read_tree(repo.resolve(revision))[path]


def mark(root, path):
    return stat_mark(find_file_stat(root, path))


def write_of(repo, revision, path, **options):
    entry = entry_of(repo, revision, path)
    was = mark(repo.worktree, path)
    return FileWrite(path, entry.mode, entry.blob, was=was, **options)


def carry_out(repo, transition):
    run(repo._context, transition, repo._context.history.read_index())
