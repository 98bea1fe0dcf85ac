"""The images of the last run that are held on this machine, by commit."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from mvc import FormatError
from mvc.training import RunStore
from mvc_hooks.tiers.remembered import find_remembered

if TYPE_CHECKING:
    from mvc import Repo
    from mvc.training import Share
    from mvc_hooks.tiers.remembered import Remembered


class Images:
    """What is held; shares may be asked for by several threads."""

    def __init__(self, repo: Repo, branch: str) -> None:
        self._repo = repo
        self._found = find_remembered(repo.git_dir, branch)
        self._shares: dict[str, dict[int, Share]] = {}
        self._lock = threading.Lock()

    def list_shares(self) -> list[tuple[str, int]]:
        """Return (commit, rank of the last run) of everything that several ranks had."""
        return sorted({(one.held.commit, one.held.rank) for one in self._found if one.is_share})

    def find_files(self, commit: str) -> dict[str, memoryview]:
        """Return path → content of the files of a commit that are held whole."""
        found: dict[str, memoryview] = {}
        for one in self._found:
            if one.held.commit == commit and not one.is_share:
                found |= one.files
        for share in self.open_shares(commit).values():
            found |= share.own_files()
        return found

    def find_form(self, commit: str, rank: int) -> bytes | None:
        """Return the form of the share that a rank had."""
        for one in self._find(commit):
            if one.held.rank == rank:
                return one.form
        return None

    def open_shares(self, commit: str) -> dict[int, Share]:
        """Return rank → its share of a commit; what is not the share that it should be is left out."""
        with self._lock:
            if commit not in self._shares:
                self._shares[commit] = self._open(commit)
            return self._shares[commit]

    def _open(self, commit: str) -> dict[int, Share]:
        shares: dict[int, Share] = {}
        first: Share | None = None
        for one in self._find(commit):
            with contextlib.suppress(FormatError):
                share = RunStore(self._repo).open_share(one.image, one.form, first)
                first = first or share
                if share.rank == one.held.rank and share.digest == first.digest:
                    shares[share.rank] = share
        return shares

    def _find(self, commit: str) -> list[Remembered]:
        return [one for one in self._found if one.is_share and one.held.commit == commit]

    def close(self, *, is_done: bool) -> None:
        """Let go of it; ``is_done``: no later run will want what is held."""
        self._shares.clear()
        for one in self._found:
            one.close(is_done=is_done)
        self._found.clear()
