"""The tools side by side: how people record a model with each, and get it back.

Each peer works in a fresh folder of its own with ``model.safetensors`` in it. A command list is
what a user would type; it is run by ``Runner.measure``. Nothing here installs anything: a peer
that is not found is reported as "not installed".
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.children import Runner

    Command = list[str | Path]

MODEL = "model.safetensors"
_GIT_QUIET = ("-q",)
_OXEN_SETUP = """
from oxen import Repo, user
user.config_user("Bench", "bench@localhost")
repo = Repo(".")
repo.init()
open("README.txt", "w").write("start\\n")
repo.add("README.txt")
repo.commit("start")
repo.checkout("empty", create=True)
repo.checkout("main")
"""
_OXEN_RECORD = """
from oxen import Repo
repo = Repo(".")
repo.add("model.safetensors")
repo.commit("version")
"""
_OXEN_CHECKOUT = 'from oxen import Repo; Repo(".").checkout("{}")'


@dataclass(frozen=True, slots=True)
class Tools:
    """Where to look for the programs.

    Attributes:
        runner: starts them.
        peers: folder of a virtual environment with the peers of the package index.
    """

    runner: Runner
    peers: Path

    def find(self, name: str) -> str | None:
        """Return the path of a program, from the peers' environment or the system."""
        return shutil.which(name, path=str(self.peers / "bin")) or shutil.which(name)

    def version(self, folder: Path, command: Command) -> str:
        """Return the first line that a version command prints."""
        return self.runner.output(folder, command).strip().partition("\n")[0]


class Peer:
    """One tool; the methods are what differs between tools.

    Attributes:
        name: as the tables show it.
        storage: what holds its history, below the worktree.
        keeps_history: whether a second version leaves the first one in place.
    """

    name = ""
    storage: tuple[str, ...] = ()
    keeps_history = True

    def __init__(self, tools: Tools) -> None:
        self.tools = tools

    def version(self) -> str | None:
        """Return the tool's version, or None where it is not installed."""
        raise NotImplementedError

    def prepare(self, folder: Path) -> None:
        """Make an empty repository in ``folder``; not measured."""

    def record(self) -> list[Command]:
        """Return the commands that record the model of the worktree."""
        raise NotImplementedError

    def leave(self, folder: Path) -> None:
        """Take the model out of the worktree; not measured."""
        (folder / MODEL).unlink()

    def restore(self) -> list[Command]:
        """Return the commands that bring the last recorded model back."""
        raise NotImplementedError

    def restored(self, folder: Path) -> Path:
        """Return where ``restore`` puts the model."""
        return folder / MODEL


class Mvc(Peer):
    """This project, through its command line."""

    name = "mvc"
    storage = (".mvc",)

    @property
    def program(self) -> Path:
        """The command that is installed beside this Python."""
        return Path(sys.executable).with_name("mvc")

    def version(self) -> str | None:
        if not self.program.exists():
            return None
        from importlib.metadata import version  # noqa: PLC0415

        return version("mvc-models")

    def prepare(self, folder: Path) -> None:
        self.tools.runner.run(
            folder,
            [self.program, "init"],
            [self.program, "commit", "--allow-empty", "-m", "start"],
            [self.program, "branch", "empty"],
        )

    def record(self) -> list[Command]:
        return [[self.program, "add", MODEL], [self.program, "commit", "-m", "version"]]

    def leave(self, folder: Path) -> None:
        self.tools.runner.run(folder, [self.program, "checkout", "empty"])

    def restore(self) -> list[Command]:
        return [[self.program, "checkout", "main"]]


class GitLfs(Peer):
    """Git with large files kept by git-lfs."""

    name = "git-lfs"
    storage = (".git",)

    def version(self) -> str | None:
        if self.tools.find("git-lfs") is None or self.tools.find("git") is None:
            return None
        return self.tools.version(Path.cwd(), ["git", "lfs", "version"])

    def prepare(self, folder: Path) -> None:
        self.tools.runner.run(
            folder,
            ["git", "init", *_GIT_QUIET],
            ["git", "lfs", "install", "--local"],
            ["git", "lfs", "track", "*.safetensors"],
            ["git", "add", ".gitattributes"],
            ["git", "commit", *_GIT_QUIET, "-m", "start"],
            ["git", "branch", "empty"],
        )

    def record(self) -> list[Command]:
        return [["git", "add", MODEL], ["git", "commit", *_GIT_QUIET, "-m", "version"]]

    def leave(self, folder: Path) -> None:
        self.tools.runner.run(folder, ["git", "checkout", *_GIT_QUIET, "empty"])

    def restore(self) -> list[Command]:
        return [["git", "checkout", *_GIT_QUIET, "main"]]


class Dvc(Peer):
    """DVC beside Git, with its default cache type."""

    name = "dvc"
    storage = (".git", ".dvc")

    @property
    def _program(self) -> str:
        return self.tools.find("dvc") or "dvc"

    def version(self) -> str | None:
        if self.tools.find("dvc") is None:
            return None
        return self.tools.version(Path.cwd(), [self._program, "--version"])

    def prepare(self, folder: Path) -> None:
        self.tools.runner.run(
            folder,
            ["git", "init", *_GIT_QUIET],
            [self._program, "init", "-q"],
            ["git", "commit", *_GIT_QUIET, "-m", "start"],
        )

    def record(self) -> list[Command]:
        return [
            [self._program, "add", "-q", MODEL],
            ["git", "add", f"{MODEL}.dvc", ".gitignore"],
            ["git", "commit", *_GIT_QUIET, "-m", "version"],
        ]

    def restore(self) -> list[Command]:
        return [[self._program, "checkout", "-q"]]


class Oxen(Peer):
    """Oxen through its Python package, one process for add and commit."""

    name = "oxen"
    storage = (".oxen",)

    @property
    def _python(self) -> Path:
        return self.tools.peers / "bin" / "python"

    def version(self) -> str | None:
        ask = "from importlib.metadata import version; print(version('oxenai'))"
        try:
            return self.tools.version(Path.cwd(), [self._python, "-c", ask])
        except Exception:  # noqa: BLE001  whatever is wrong with it, it cannot be measured
            return None

    def prepare(self, folder: Path) -> None:
        self.tools.runner.run(folder, [self._python, "-c", _OXEN_SETUP])

    def record(self) -> list[Command]:
        return [[self._python, "-c", _OXEN_RECORD]]

    def leave(self, folder: Path) -> None:
        self.tools.runner.run(folder, [self._python, "-c", _OXEN_CHECKOUT.format("empty")])

    def restore(self) -> list[Command]:
        return [[self._python, "-c", _OXEN_CHECKOUT.format("main")]]


class Restic(Peer):
    """The restic backup program, compression on its automatic setting."""

    name = "restic"
    storage = ("restic-repo",)

    def version(self) -> str | None:
        if self.tools.find("restic") is None:
            return None
        return self.tools.version(Path.cwd(), ["restic", "version"])

    def prepare(self, folder: Path) -> None:
        self.tools.runner.run(folder, ["restic", "-r", "restic-repo", "init"])

    def record(self) -> list[Command]:
        return [["restic", "-q", "-r", "restic-repo", "backup", MODEL]]

    def restore(self) -> list[Command]:
        return [["restic", "-q", "-r", "restic-repo", "restore", "latest", "--target", "."]]


class Borg(Peer):
    """The borg backup program with zstd at level 3, without encryption."""

    name = "borg"
    storage = ("borg-repo",)

    def version(self) -> str | None:
        if self.tools.find("borg") is None:
            return None
        return self.tools.version(Path.cwd(), ["borg", "--version"])

    def prepare(self, folder: Path) -> None:
        self.tools.runner.run(folder, ["borg", "init", "-e", "none", "borg-repo"])

    def record(self) -> list[Command]:
        return [["borg", "create", "-C", "zstd,3", "borg-repo::{now:%s}-{pid}", MODEL]]

    def restore(self) -> list[Command]:
        newest = 'borg extract "borg-repo::$(borg list --last 1 --short borg-repo)"'
        return [["sh", "-c", newest]]


class Copy(Peer):
    """No tool: ``cp`` and a sync of the copy. What a disk costs by itself."""

    name = "cp + sync"
    storage = ("copy",)
    keeps_history = False

    def version(self) -> str | None:
        return "coreutils"

    def record(self) -> list[Command]:
        return [["cp", MODEL, "copy"], ["sync", "copy"]]

    def restore(self) -> list[Command]:
        return [["cp", "copy", MODEL], ["sync", MODEL]]


ALL: tuple[type[Peer], ...] = (Mvc, GitLfs, Dvc, Oxen, Restic, Borg, Copy)


def find_peers(tools: Tools, wanted: list[str] | None) -> tuple[list[Peer], dict[str, str]]:
    """Return the installed peers of those wanted (None: all), and every peer's version."""
    peers: list[Peer] = []
    versions: dict[str, str] = {}
    for kind in ALL:
        peer = kind(tools)
        if wanted is not None and peer.name not in {*wanted, Mvc.name, Copy.name}:
            continue
        version = peer.version()
        versions[peer.name] = version or "not installed"
        if version:
            peers.append(peer)
    return peers, versions
