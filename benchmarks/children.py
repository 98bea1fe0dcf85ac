"""Measured child processes: wall time, peak memory and bytes read, through ``launch.py``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median

_LAUNCHER = Path(__file__).with_name("launch.py")
_ENVIRONMENT = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "DVC_NO_ANALYTICS": "1",
    "RESTIC_PASSWORD": "benchmark",
    "BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK": "yes",
    "BORG_RELOCATED_REPO_ACCESS_IS_OK": "yes",
    "LC_ALL": "C.UTF-8",
}
_GITCONFIG = "[user]\n\tname = Bench\n\temail = bench@localhost\n[init]\n\tdefaultBranch = main\n"


QUIET_SHARE = 0.2


class CommandError(Exception):
    """A measured command ended with a failure; the message is the end of its output."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What one or several commands, one after the other, cost.

    Attributes:
        seconds: from the first start to the last end.
        durable_seconds: the same, and until the whole file system is on the disk.
        cpu_seconds: user and system time together.
        peak_bytes: resident memory of the largest process.
        read_bytes: bytes that went through read calls; 0 where the kernel does not tell.
        others_share: share of all cores that went elsewhere meanwhile: to other processes, and
            to the kernel's own threads, which write dirty pages.
    """

    seconds: float
    durable_seconds: float
    cpu_seconds: float
    peak_bytes: int
    read_bytes: int
    others_share: float

    @property
    def is_quiet(self) -> bool:
        """Whether the machine had nothing else to do."""
        return self.others_share < QUIET_SHARE


class Runner:
    """Runs commands in a clean environment, with a home folder of their own.

    Args:
        folder: where the home folder and the log of the last command lie.
        patience_s: how long to wait before each measurement for the machine to be idle.
    """

    def __init__(self, folder: Path, *, patience_s: float = 0) -> None:
        self.patience_s = patience_s
        self.home = folder / "home"
        self.log = folder / "commands.log"
        self.home.mkdir(parents=True, exist_ok=True)
        (self.home / ".gitconfig").write_text(_GITCONFIG)
        kept = {
            name: os.environ[name]
            for name in ("PATH", "TMPDIR", "PYTHONPATH")
            if name in os.environ
        }
        self.environment = kept | _ENVIRONMENT | {"HOME": str(self.home)}

    def measure(self, folder: Path, *commands: list[str | Path]) -> Cost:
        """Run the commands in ``folder`` and return what they cost.

        Raises:
            CommandError: one of them failed.
        """
        self.log.write_bytes(b"")
        request = {
            "folder": str(folder),
            "log": str(self.log),
            "env": self.environment,
            "patience_s": self.patience_s,
            "commands": [[str(word) for word in command] for command in commands],
        }
        done = subprocess.run(
            [sys.executable, "-I", "-S", str(_LAUNCHER)],
            input=json.dumps(request).encode(),
            stdout=subprocess.PIPE,
            check=True,
        )
        answer = json.loads(done.stdout)
        steps = answer["steps"]
        if steps[-1]["status"]:
            output = self.log.read_text(errors="replace")[-2000:]
            raise CommandError(f"{' '.join(steps[-1]['command'])}\n{output}")
        return Cost(
            answer["seconds"],
            answer["durable_seconds"],
            sum(step["cpu_seconds"] for step in steps),
            max(step["peak_bytes"] for step in steps),
            sum(step["read_bytes"] or 0 for step in steps),
            answer["others_share"],
        )

    def run(self, folder: Path, *commands: list[str | Path]) -> None:
        """Run commands that only prepare something."""
        for command in commands:
            self.output(folder, command)

    def output(self, folder: Path, command: list[str | Path]) -> str:
        """Return what a command prints.

        Raises:
            CommandError: it failed.
        """
        words = [str(word) for word in command]
        done = subprocess.run(
            words, cwd=folder, env=self.environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise CommandError(f"{' '.join(words)}\n{(done.stdout + done.stderr)[-2000:]}")
        return done.stdout


def middle(costs: list[Cost]) -> Cost:
    """Return the median of each figure; of memory the largest, since that is what must fit.

    Where some measurements had the machine for themselves, only those count.
    """
    chosen = [cost for cost in costs if cost.is_quiet] or costs
    return Cost(
        median(cost.seconds for cost in chosen),
        median(cost.durable_seconds for cost in chosen),
        median(cost.cpu_seconds for cost in chosen),
        max(cost.peak_bytes for cost in chosen),
        int(median(cost.read_bytes for cost in chosen)),
        max(cost.others_share for cost in chosen),
    )
