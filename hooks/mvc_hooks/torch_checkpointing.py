"""``MvcStorage``: what ``torch_checkpointing`` saves becomes a commit.

    storage = MvcStorageConfig("runs/gpt")
    manager = CheckpointManager(CheckpointManager.Config(storage_config=storage))
    manager.save("runs/gpt/step_1000", {"model": model.state_dict()})

A path below the repository is the name of a checkpoint, and a file in it. What is being saved is a
folder there. The rename that ends a save makes it the folder ``checkpoint`` of the worktree, and
commits that; a checkpoint that is loaded comes from its commit, every byte verified.
"""

from __future__ import annotations

import errno
import io
import os
import re
import shutil
import tempfile
import weakref
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from torch_checkpointing.storage.base_storage import ReadArgs, Storage, StorageConfig

from mvc import NotFoundError, Repo

if TYPE_CHECKING:
    from typing_extensions import Buffer

_NAME = "checkpoint"  # the folder of a commit, and the trailer that says the name of the checkpoint
_STEP = re.compile(r".*?([0-9]{1,18})")
_GIT_DIR = ".mvc"
_KEPT = 4


@dataclass
class MvcStorageConfig(StorageConfig):
    """Where checkpoints go: the folder of the repository, which is made if missing."""

    repository: str | os.PathLike[str]

    def create_storage(self) -> MvcStorage:
        """Return a storage for this repository."""
        return MvcStorage(self.repository)


@dataclass(frozen=True, slots=True)
class _Stored:
    """A file or folder of a checkpoint that was committed; ``path`` is in the commit's folder."""

    commit: str
    path: PurePosixPath


class MvcStorage(Storage):
    """Files below a repository: those of a save that goes on, and those of commits."""

    def __init__(self, repository: str | os.PathLike[str]) -> None:
        self._root = Path(os.path.abspath(repository))
        self._read: dict[_Stored, Path] = {}
        self._names: dict[str, dict[str, str]] = {}  # of the tip of the branch

    @cached_property
    def _repo(self) -> Repo:
        return Repo.init(self._root)

    @cached_property
    def _folder(self) -> str:
        """Where the files are that were read from commits, as long as this lives."""
        folder = tempfile.mkdtemp(prefix="mvc-read-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        return folder

    # What is where.

    def _split(self, path: Path) -> tuple[str, ...]:
        place = Path(os.path.abspath(path))
        if not place.is_relative_to(self._root):
            raise FileNotFoundError(errno.ENOENT, f"it is not below {self._root}", str(path))
        parts = place.relative_to(self._root).parts
        if parts and parts[0] in (_GIT_DIR, _NAME):
            raise PermissionError(errno.EACCES, "mvc keeps what is there", str(path))
        return parts

    def _list_names(self) -> dict[str, str]:
        """Return name → newest commit of the checkpoints of the current branch."""
        try:
            tip = self._repo.resolve("HEAD")
        except NotFoundError:  # there is no commit yet
            return {}
        if tip not in self._names:
            names_by_path: dict[str, str] = {}
            for entry in self._repo.log(tip):
                name = (entry.annotations.meta or {}).get(_NAME)
                if name is not None:
                    names_by_path.setdefault(name, entry.info.id)
            self._names = {tip: names_by_path}
        return self._names[tip]

    def _find(self, path: Path) -> _Stored | None:
        """Return what a path means that is in no save that goes on."""
        parts = self._split(path)
        if not parts:
            return None
        commit = self._list_names().get(parts[0])
        return None if commit is None else _Stored(commit, PurePosixPath(_NAME, *parts[1:]))

    def _list(self, stored: _Stored) -> dict[str, int]:
        """Return path → size of what a commit has below a place, or there."""
        try:
            infos = self._repo.ls(stored.commit, paths=[self._root / stored.path])
        except NotFoundError:
            return {}
        return {info.path: info.size_bytes for info in infos}

    def _get(self, path: Path) -> _Stored:
        stored = self._find(path)
        if stored is None or str(stored.path) not in self._list(stored):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return stored

    # Reading.

    def stream_read(self, path: Path, read_args: ReadArgs | None = None) -> io.RawIOBase:
        """Open a file; one of a commit is written to a temporary file first, and verified."""
        self._split(path)
        place = path if os.path.lexists(path) else self._export(self._get(path))
        if read_args is None or read_args.pre_read_full_file:
            return io.BytesIO(place.read_bytes())  # type: ignore[return-value]  # as torch's own does
        return open(place, "rb", buffering=0)

    def _export(self, stored: _Stored) -> Path:
        place = self._read.get(stored)
        if place is None:
            while len(self._read) >= _KEPT:
                self._read.pop(next(iter(self._read))).unlink(missing_ok=True)
            folder, inside = Path(self._folder, stored.commit), self._root / stored.path
            self._repo.export(stored.commit, folder, path=inside, format="files", force=True)
            place = self._read[stored] = folder / stored.path
        return place

    def exists(self, path: Path) -> bool:
        """Return whether there is a file or folder."""
        if os.path.lexists(path) or not self._split(path):
            self._split(path)
            return True
        stored = self._find(path)
        return stored is not None and bool(self._list(stored))

    def isdir(self, path: Path) -> bool:
        """Return whether a path is a folder."""
        if os.path.lexists(path) or not self._split(path):
            return Path(path).is_dir()
        stored = self._find(path)
        return stored is not None and bool(self._list(stored).keys() - {str(stored.path)})

    def ls(self, path: Path) -> list[str]:
        """Return the names in a folder; in the repository's, all checkpoints."""
        parts = self._split(path)
        names = set(os.listdir(path)) if Path(path).is_dir() else set()
        if not parts:
            return sorted((names - {_GIT_DIR, _NAME}) | self._list_names().keys())
        stored = self._find(path)
        if stored is not None:
            inside = (PurePosixPath(name) for name in self._list(stored))
            names |= {
                path.relative_to(stored.path).parts[0] for path in inside if path != stored.path
            }
        elif not Path(path).is_dir():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return sorted(names)

    def getsize(self, path: Path) -> int:
        """Return the size of a file."""
        self._split(path)
        if os.path.lexists(path):
            return Path(path).stat().st_size
        stored = self._get(path)
        return self._list(stored)[str(stored.path)]

    def remap_path(self, path: Path) -> str:
        """Return the path as it is."""
        return str(path)

    # Writing.

    def _claim(self, path: Path) -> Path:
        """Return a path that may be written to: a checkpoint that was committed stays as it is."""
        if self._find(path) is not None:
            raise FileExistsError(errno.EEXIST, "a commit has that checkpoint", str(path))
        return Path(path)

    def stream_write(self, path: Path) -> io.IOBase:
        """Open a file of a save that goes on."""
        return open(self._claim(path), "wb")

    def write(self, path: Path, data: Buffer) -> None:
        """Write a file of a save that goes on."""
        with self.stream_write(path) as file:
            file.write(data)

    def mkdir(self, path: Path, recursive: bool = True) -> None:  # noqa: FBT001, FBT002  as Storage has it
        """Make a folder."""
        place = self._claim(path)
        if recursive:
            place.mkdir(parents=True, exist_ok=True)
        else:
            place.mkdir()

    def delete(self, path: Path) -> None:
        """Delete a file of a save that goes on."""
        self._claim(path).unlink()

    def rmdir(self, path: Path) -> None:
        """Delete a folder of a save that goes on, with all in it."""
        shutil.rmtree(self._claim(path))

    def rename(
        self,
        src_path: Path,
        dst_path: Path,
        is_directory: bool = False,  # noqa: FBT001, FBT002, ARG002  as Storage has it
        background_cleanup: bool = False,  # noqa: FBT001, FBT002, ARG002
    ) -> None:
        """Rename a file; a folder of the repository becomes a commit."""
        source, target = self._claim(src_path), self._claim(dst_path)
        if not source.is_dir():
            source.replace(target)
            return
        parts = self._split(dst_path)
        if len(parts) != 1:
            source.rename(target)
            return
        if os.path.lexists(target):
            os.rmdir(target)  # OSError if anything is in it, or if it is a file
        self._commit(source, parts[0])

    def _commit(self, source: Path, name: str) -> None:
        folder = self._root / _NAME
        if os.path.lexists(folder):
            # Check that nothing is lost when the folder gives way to the next checkpoint.
            for file in self._repo.status(ignored=True).files:
                is_inside = (self._root / file.path).is_relative_to(folder)
                if is_inside and file.worktree not in ("unmodified", "removed"):
                    raise FileExistsError(
                        errno.EEXIST,
                        "it has changes that no commit has",
                        str(self._root / file.path),
                    )
            shutil.rmtree(folder)
        source.rename(folder)
        step = _STEP.fullmatch(name)
        try:
            self._repo.add([folder])
            self._repo.commit(
                message=name,
                step=None if step is None else int(step[1]),
                meta={_NAME: name},
                allow_empty=True,
            )
        except BaseException:
            folder.replace(source)  # it is a save that goes on, again
            raise

    def __getstate__(self) -> dict[str, Any]:
        return {"_root": self._root, "_read": {}, "_names": {}}
