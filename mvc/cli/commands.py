"""The table of commands: all that ``mvc --help`` needs to know."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Command:
    """One command: its name, the module that has it, one line about it."""

    name: str
    module: str
    summary: str


COMMANDS: dict[str, tuple[Command, ...]] = {
    "start a repository": (
        Command("init", "care", "Create an empty repository"),
        Command("config", "care", "Read and change settings"),
    ),
    "work on the next commit": (
        Command("add", "files", "Store files and stage them for the next commit"),
        Command("rm", "files", "Remove files from the worktree and the index"),
        Command("mv", "files", "Move or rename files"),
        Command("status", "status", "Show what differs between HEAD, index and worktree"),
        Command("diff", "diff", "Show which files and tensors changed"),
        Command("commit", "commit", "Record what is staged in the history"),
    ),
    "look at history and tensors": (
        Command("log", "log", "Show the history with training steps and metrics"),
        Command("show", "log", "Show one commit, or one file of it"),
        Command("reflog", "log", "Show where a branch or HEAD has been"),
        Command("watch", "watch", "Show a training run while it trains"),
        Command("ls", "tensors", "List files and tensors of a revision"),
        Command("cat", "tensors", "Print the values of one tensor"),
        Command("export", "tensors", "Write tensors of a revision to a safetensors file"),
    ),
    "move between versions": (
        Command("checkout", "moving", "Go to a branch or revision, or bring files back from it"),
        Command("switch", "moving", "Go to a branch"),
        Command("restore", "moving", "Bring files back from the index or a revision"),
        Command("reset", "moving", "Move the current branch; unstage files"),
        Command("undo", "moving", "Take back the last commit, switch or reset"),
        Command("rollback", "rollback", "Take a branch back; what it leaves stays on diverged/"),
        Command("branch", "naming", "List, create, rename or delete branches"),
        Command("tag", "naming", "List, create or delete tags"),
    ),
    "store less, keep what matters": (
        Command("prune", "prune", "Release the content of commits that no rule keeps"),
        Command("gc", "upkeep", "Remove what nothing reaches"),
        Command("repack", "upkeep", "Store differences between versions, and few large packs"),
        Command("du", "du", "Show what branches, commits, files and tensors cost"),
    ),
    "keep it sound": (
        Command("verify", "verify", "Check that the model is the same as in a commit, to the bit"),
        Command("fsck", "care", "Check that the repository is sound"),
        Command("doctor", "care", "Show versions, file system and what is slow here"),
    ),
}

EXIT_CODES = (
    "Exit codes: 0 done, 1 differences or problems found, 2 wrong usage, 3 not found, 4 conflict,",
    "5 damaged data, 6 machine failed, 7 unsupported, 8 internal error, 9 released content,",
    "10 no repository.",
)


def find_command(name: str) -> Command | None:
    """Return a command of the table by its name."""
    known = (command for commands in COMMANDS.values() for command in commands)
    return next((command for command in known if command.name == name), None)


def command_names() -> list[str]:
    """Return the names of all commands in the order of the help."""
    return [command.name for commands in COMMANDS.values() for command in commands]
