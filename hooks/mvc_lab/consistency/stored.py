"""Is what was stored sound? A tensor of the newest commit is read again, every chunk of it hashed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from mvc import CorruptionError, MvcError
from mvc_hooks.parts.tree import is_sharded
from mvc_lab.consistency.digest import digest_on_host

if TYPE_CHECKING:
    from mvc import Repo
    from mvc_lab.consistency.held import Held


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """What a commit has of a tensor.

    Attributes:
        damage: why it cannot be read, or None.
        digest: that of its bytes, as of the live tensor; None if that cannot be said.
    """

    damage: str | None = None
    digest: bytes | None = None


def read_stored(repo: Repo, commit: str, held: Held) -> StoredTensor:
    """Read a tensor of a commit; one that the commit does not have tells nothing."""
    try:
        found = repo.open_state(commit).load(held.path)
    except CorruptionError as error:
        return StoredTensor(damage=error.message)
    except MvcError:
        return StoredTensor()
    live = held.find()
    is_whole = isinstance(found, torch.Tensor) and isinstance(live, torch.Tensor)
    if not is_whole or is_sharded(live) or live.device.type != "cpu":
        return StoredTensor()
    return StoredTensor(digest=digest_on_host(found))
