"""follow: a folder that is always at the newest version of a channel, whole and verified.

    DIR/weight_v000042/   the files of a version; never changed once it has this name
    DIR/current           a link to the newest
    DIR/.mvc/             what is known already, so that only what changed has to come

A version is written under another name, made durable, and renamed; then the link is replaced. A kill
leaves the old version or the new one, and at worst a folder that the next step removes.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from mvc import fs
from mvc.errors import (
    ConflictError,
    FormatError,
    NotFoundError,
    StorageError,
    translate_os_errors,
)
from mvc.history.object_gather import find_short_packs, gather_objects
from mvc.operations.publish import check_channel
from mvc.progress import announce
from mvc.remotes.content import bring_content
from mvc.remotes.history import bring_history, list_chunks, list_files
from mvc.remotes.remote import Remote, open_remote
from mvc.remotes.root_store import RootStore
from mvc.remotes.settings import DEFAULT_REMOTE, list_remotes, write_remote
from mvc.storage.urls import parse_store_url
from mvc.upkeep.sweep import upkeep_lock
from mvc.workspace.content import stage_file
from mvc.workspace.context import Context, holds_sweep_lock, init
from mvc.workspace.manifests import stored_size
from mvc.workspace.models import open_model

if TYPE_CHECKING:
    from pathlib import Path

    from mvc.errors import MvcError
    from mvc.ids import GitId
    from mvc.remotes.root import Channel, Root
    from mvc.workspace.tensors import ModelTensor

    Tensors = Mapping[str, ModelTensor]

CURRENT = "current"
_VERSION = re.compile(r"weight_v(\d{6,})")
_COMING, _GOING = ".coming-", ".going-"
_LONGEST_PAUSE_S = 60.0


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a channel, as a folder.

    Attributes:
        channel: its name.
        number: how often the channel had moved.
        commit: what it named.
        previous: the commit of the version before it here; None if it is the first.
        folder: where its files are.
        received_bytes: of content that came for it.
    """

    channel: str
    number: int
    commit: GitId
    previous: GitId | None
    folder: Path
    received_bytes: int


class Follower:
    """Keeps a folder at the newest version of a channel.

    Args:
        url: of the remote.
        channel: its name there.
        folder: of the versions.
        keep: how many versions before the newest stay.
        limit_bytes_s: how many bytes of packs may come in a second; any number by default.
    """

    def __init__(
        self,
        url: str,
        channel: str,
        folder: Path,
        *,
        keep: int = 1,
        limit_bytes_s: int | None = None,
    ) -> None:
        self.folder = folder.resolve()
        self._channel, self._keep = check_channel(channel), keep
        parsed = parse_store_url(url)
        fs.make_dirs(self.folder)
        self._context = init(self.folder)
        known = list_remotes(self._context).get(DEFAULT_REMOTE)
        if known is None:
            write_remote(self._context, DEFAULT_REMOTE, parsed)
        elif known.url != parsed:
            raise ConflictError(
                f"{folder} follows {known.url}, not {parsed}", hint="name another folder"
            )
        self._there = open_remote(self._context, DEFAULT_REMOTE, limit_bytes_s=limit_bytes_s)
        self._settled: int | None = None

    @property
    def _ref(self) -> str:
        return f"refs/channels/{self._channel}"

    def step(self) -> Version | None:
        """Bring the newest version and switch to it; None if it is there already.

        Raises:
            NotFoundError: nothing was published under that name.
            ConflictError: another process follows into this folder.
            StorageError: the store does not answer.
            FormatError: what came is damaged; the version before it stays.
        """
        with fs.exclusive_lock(self._context.git_dir / "follow.lock", wait=False):
            return self._step()

    def _step(self) -> Version | None:
        there, number = self._there, self.number
        assert isinstance(there.roots, RootStore)
        if number is not None and number == self._settled and not there.roots.has_moved():
            return None
        root = there.roots.read()
        found = None if root is None else root.channels.get(self._channel)
        if root is None or found is None:
            raise NotFoundError(f"nothing is published as {self._channel!r}")
        self._settled = found.number
        if found.number == number:
            return None
        previous = self._context.history.find_ref(self._ref)
        received = _bring(self._context, there, root, found.commit)
        folder = self._write(found)
        fs.write_symlink(self.folder / CURRENT, folder.name.encode())
        if previous != found.commit:
            self._context.history.update_ref(
                self._ref, found.commit, expected=previous, message="follow",
                stamp=self._context.stamp(),
            )  # fmt: skip
        self._remove_old(found.number)
        self._trim({found.commit, previous or found.commit})
        return Version(self._channel, found.number, found.commit, previous, folder, received)

    @property
    def number(self) -> int | None:
        """The number of the version that ``current`` leads to, or None."""
        try:
            match = _VERSION.fullmatch(os.readlink(self.folder / CURRENT))
        except (FileNotFoundError, OSError):
            return None
        return None if match is None else int(match[1])

    def _write(self, channel: Channel) -> Path:
        """Write the files of a version, durably, and give them their name."""
        target = self.folder / f"weight_v{channel.number:06}"
        if target.is_dir():
            return target  # a kill came between its name and the link
        self._clean()
        coming = self.folder / f"{_COMING}{channel.number}"
        try:
            with translate_os_errors(f"write version {channel.number}"):
                self._write_files(channel, coming)
                fs.replace_staged(coming, target)
                fs.fsync_dir(self.folder)
        except BaseException:
            self._clean()  # a disk that is full gets its room back
            raise
        return target

    def _write_files(self, channel: Channel, coming: Path) -> None:
        fs.make_dirs(coming)
        folders = {coming}
        tree = self._context.history.read_tree(channel.commit)
        announce(sum(stored_size(self._context, entry.blob) for entry in tree.values()))
        for path, entry in tree.items():
            place = coming / path
            fs.make_dirs(place.parent)
            folders.update(parent for parent in place.parents if parent.is_relative_to(coming))
            staged = stage_file(self._context, path, entry.mode, entry.blob, place.parent)
            if not staged.is_symlink():
                fs.fsync_file(staged)
            fs.replace_staged(staged, place)
        for folder in sorted(folders, reverse=True):
            fs.fsync_dir(folder)

    def _clean(self) -> None:
        for path in self.folder.glob(".*-*"):
            if path.name.startswith((_COMING, _GOING)):
                shutil.rmtree(path, ignore_errors=True)

    def _remove_old(self, newest: int) -> None:
        """Remove versions that are not kept: no folder is ever half a version under its name."""
        matches = (_VERSION.fullmatch(path.name) for path in self.folder.iterdir())
        numbers = sorted(int(match[1]) for match in matches if match is not None)
        for number in [kept for kept in numbers if kept != newest][: -self._keep or None]:
            going = self.folder / f"{_GOING}{number}"
            fs.replace_staged(self.folder / f"weight_v{number:06}", going)
        self._clean()

    def _trim(self, commits: set[GitId]) -> None:
        """Remove packs that nothing of some commits needs, so that the folder does not grow."""
        context = self._context
        with context.history.sweep_alone(), upkeep_lock(context):
            copies = context.here.copies()
            needed = list_chunks(context, list_files(context, commits))
            kept = copies.chosen[copies.close(copies.mask(needed))]
            used = {copies.indexes[number].pack for number in np.unique(copies.packs[kept])}
            gone = {index.pack for index in copies.indexes} - used
            if not context.here.find_unsafe(gone, needed):
                context.here.remove_packs(gone)
            gather_objects(context.history, [], find_short_packs(context.history.objects))

    def tensors(self, version: Version) -> tuple[Tensors, Tensors]:
        """Return name → tensor of the version before, and of the version."""
        tensors: list[Tensors] = [{}]
        for commit in filter(None, (version.previous, version.commit)):
            with open_model(self._context, commit) as model:
                tensors.append({tensor.name: tensor for tensor in model.tensors})
        return tensors[-2], tensors[-1]

    def changed(self, version: Version) -> Iterator[ModelTensor]:
        """Yield the tensors that are not what they were in the version before."""
        known: dict[tuple[str, str], object] = {}
        if version.previous is not None:
            with open_model(self._context, version.previous) as before:
                known = {(tensor.path, tensor.name): tensor.id for tensor in before.tensors}
        with open_model(self._context, version.commit) as after:
            for tensor in after.tensors:
                if known.get((tensor.path, tensor.name)) != tensor.id:
                    yield tensor


@dataclass(frozen=True, slots=True)
class Changes:
    """What a version has other tensors than the one before, beside other values.

    Attributes:
        added: names that are new.
        removed: names that are gone.
        renamed: gone name → new name of the same tensor, to the bit.
        retyped: name → dtype and shape before and now, as in ``BF16 [64, 128]``.
    """

    added: frozenset[str]
    removed: frozenset[str]
    renamed: Mapping[str, str]
    retyped: Mapping[str, tuple[str, str]]

    def __bool__(self) -> bool:
        """Whether there is any: then values alone cannot be copied into a live model."""
        return bool(self.added or self.removed or self.retyped)


@dataclass(frozen=True, slots=True)
class Update:
    """A version that has just come.

    Attributes:
        version: which one, and where its files are.
    """

    version: Version
    _follower: Follower

    def tensors(self, kind: Literal["numpy", "torch"] = "numpy") -> Iterator[tuple[str, Any]]:
        """Yield name and array of each tensor that changed, verified, one after the other.

        The first version has all of them. Until the next update is asked for.
        """
        for one in self._follower.changed(self.version):
            yield one.name, one.read(kind)

    def names(self) -> tuple[frozenset[str], frozenset[str]]:
        """Return the names of tensors that are new, and of those that are gone."""
        changes = self.changes()
        return changes.added, changes.removed

    def changes(self) -> Changes:
        """Return what came, went, was renamed or has another dtype or shape."""
        before, after = self._follower.tensors(self.version)
        added, removed = after.keys() - before.keys(), before.keys() - after.keys()
        same = {after[name].id: name for name in sorted(added, reverse=True)}
        renamed: dict[str, str] = {}
        for name in sorted(removed):
            new = same.pop(before[name].id, None)
            if new is not None:
                renamed[name] = new
        kinds = {
            name: (_kind(before[name]), _kind(after[name])) for name in before if name in after
        }
        retyped = {name: pair for name, pair in kinds.items() if pair[0] != pair[1]}
        return Changes(frozenset(added), frozenset(removed), renamed, retyped)


def _kind(tensor: ModelTensor) -> str:
    return f"{tensor.view.dtype} {list(tensor.view.shape)}"


def follow(
    follower: Follower,
    *,
    interval_s: float,
    once: bool,
    waiting: Callable[[MvcError | None], None] = lambda _: None,
    sleep: Callable[[float], object] = time.sleep,
) -> Iterator[Update]:
    """Yield every version that comes; see ``mvc.follow``."""
    failure: MvcError | None = None
    pause_s = interval_s
    while True:
        try:
            version, now = follower.step(), None
        except (StorageError, FormatError, NotFoundError) as error:
            # What was published once is not taken back: a root that is gone is a store that is away.
            if once or (isinstance(error, NotFoundError) and follower.number is None):
                raise
            version, now = None, error
        if str(now) != str(
            failure
        ):  # a store that is away is told of once, and once more when it is back
            waiting(now)
        failure = now
        if version is not None:
            yield Update(version, follower)
        if once:
            return
        # What is away is asked less and less often, and many who follow do not ask at once.
        patient_s = max(interval_s, min(2 * pause_s, _LONGEST_PAUSE_S))
        pause_s = interval_s if now is None else patient_s
        sleep(pause_s * random.uniform(0.9, 1.1))  # noqa: S311  spreads clients


@holds_sweep_lock
def _bring(context: Context, there: Remote, root: Root, commit: GitId) -> int:
    """Bring the history of a commit, and the content of that commit alone."""
    listing = there.roots.read_listing(root)
    known = context.history.refs.values().values()
    bring_history(context, there, listing.history, [commit], known)
    return bring_content(there, root, listing, list_files(context, [commit]))
