"""The only part that talks to people; here the names of the commands, all that ``mvc --help`` needs."""

from __future__ import annotations

COMMANDS = {
    "start a repository": {
        "init": "Create an empty repository",
        "config": "Read and change settings",
        "completion": "Print a completion script for your shell",
    },
    "work on the next commit": {
        "add": "Store files and stage them for the next commit",
        "rm": "Remove files from the worktree and the index",
        "mv": "Move or rename files",
        "status": "Show what differs between HEAD, index and worktree",
        "check-ignore": "Show which paths are ignored, and why",
        "diff": "Show which files and tensors changed",
        "commit": "Record what is staged in the history",
    },
    "look at history and tensors": {
        "log": "Show the history with training steps and metrics",
        "show": "Show one commit, or one file of it",
        "blame": "Show which commit last changed each tensor",
        "bisect": "Find the commit that broke something",
        "reflog": "Show where a branch or HEAD has been",
        "watch": "Show a training run while it trains",
        "profile": "Show what communication costs a training step",
        "ls": "List files and tensors of a revision",
        "cat": "Print the values of one tensor",
        "export": "Write a revision into a folder, or tensors to a file",
    },
    "keep track of the data": {
        "data": "Keep track of the data that models learn from",
    },
    "share with others": {
        "clone": "Make a repository from a remote",
        "remote": "Name the places to push to and fetch from",
        "fetch": "Bring history and content from a remote",
        "pull": "Fetch, and merge into the current branch",
        "push": "Send commits and their content to a remote",
        "ls-remote": "List the branches, tags and channels of a remote",
        "publish": "Let a channel of a remote name a commit",
        "follow": "Keep a folder at the newest version of a channel",
    },
    "move between versions": {
        "checkout": "Go to a branch or revision, or bring files back from it",
        "switch": "Go to a branch",
        "restore": "Bring files back from the index or a revision",
        "reset": "Move the current branch; unstage files",
        "undo": "Take back the last commit, switch or reset",
        "rollback": "Take a branch back; what it leaves stays on diverged/",
        "merge": "Merge other branches into the current one",
        "stash": "Save local changes for later and restore them",
        "cherry-pick": "Apply the changes of some commits",
        "revert": "Undo the changes of some commits",
        "branch": "List, create, rename or delete branches",
        "tag": "List, create or delete tags",
    },
    "store less, keep what matters": {
        "prune": "Release the content of commits that no rule keeps",
        "gc": "Remove what nothing reaches",
        "repack": "Store versions as differences, in a few large packs",
        "du": "Show what branches, commits, files and tensors cost",
    },
    "keep it sound": {
        "verify": "Check that two models are the same: bits, modules, predictions",
        "fsck": "Check that the repository is sound",
        "doctor": "Show versions, file system and what is slow here",
        "scale": "Grow a run step by step; predict what an AllReduce takes",
    },
}
"""What commands are for: their names, each with one line about it."""

NAMES = [name for commands in COMMANDS.values() for name in commands]

HOMES = {
    "rm": "add",
    "mv": "add",
    "check_ignore": "add",
    "switch": "checkout",
    "restore": "checkout",
    "reset": "checkout",
    "cherry_pick": "pick",
    "revert": "pick",
    "ls_remote": "remote",
    "clone": "fetch",
    "pull": "fetch",
    "publish": "push",
    "repack": "gc",
    "tag": "branch",
    "reflog": "log",
    "rollback": "undo",
    "cat": "ls",
}
"""Command → the module that it is in together with its kin, if that has another name."""
