"""Which files of a commit are the model: what ``prune --weights-only`` keeps. Pure.

A file's name is cut into words (``optimizer_state.pt``: optimizer, state). A word that begins with
*model*, *ema*, *weight*, *adapter* or *lora* makes it the model; otherwise *optimizer*, *optim*,
*scheduler*, *sched*, *rng*, *scaler*, *trainer*, *dataloader* or *sampler* make it state, and so do
*state* and *states* without *dict*. If the name says neither, the folders above decide, the nearest
first. A file that nothing is known about is kept.

A commit from memory has a file per top-level name of the state (``model``, ``optimizer``, …). If one
of these names is a model's, all others are state.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

_MODEL = ("model", "ema", "weight", "adapter", "lora")
_STATE = (
    *("optimizer", "optim", "scheduler", "sched", "rng"),
    *("scaler", "trainer", "dataloader", "sampler"),
)
_WORD = re.compile("[a-z]+")


def is_model_name(name: str) -> bool | None:
    """Return whether one file or folder name means model (True) or state (False), or None."""
    words = _WORD.findall(name.lower())
    if any(word.startswith(_MODEL) for word in words):
        return True
    if any(word.startswith(_STATE) for word in words):
        return False
    if {"state", "states"}.intersection(words) and "dict" not in words:
        return False
    return None


def is_model_path(path: str) -> bool | None:
    """Return the same for a path: its file name decides, or else its nearest folder."""
    for name in reversed(path.split("/")):
        answer = is_model_name(name)
        if answer is not None:
            return answer
    return None


def state_paths(paths: Iterable[str], state_files: Collection[str] = ()) -> tuple[str, ...]:
    """Return those of some files that are not the model.

    ``state_files`` are those of them that are top-level names of a committed state.
    """
    has_model = any(is_model_name(path) for path in state_files)
    found: list[str] = []
    for path in paths:
        is_model = is_model_path(path)
        if path in state_files and has_model:
            is_model = is_model or False
        if is_model is False:
            found.append(path)
    return tuple(found)
