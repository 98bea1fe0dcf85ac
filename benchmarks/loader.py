"""The section ``loader``: ConsistentDataLoader beside torch's DataLoader, streams beside plain readers.

Both loaders have the same dataset, batch size, collate function and workers, and both shuffle. Whole passes are
timed, from making the loader on; their processor time tells more than the clock on a machine that others use, too.
"""

from __future__ import annotations

import json
import random
import sys
import warnings
import zlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from benchmarks.passes import BATCH, OURS, PLAIN, measure_passes, take_turns, time_first
from benchmarks.streams import READERS, RECORDS, measure_streams
from mvc_data import ConsistentDataLoader

if TYPE_CHECKING:
    from collections.abc import Callable

    Results = dict[str, Any]

WORKERS = (0, 2)
_HUGE = 10**9
_STATEFUL = "torchdata's StatefulDataLoader"
_SIDE, _CROP = 64, 56


class Tokens(Dataset[Any]):
    """Slices of 256 tokens of an array in memory."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._rows = np.random.default_rng(0).integers(0, 50_000, (4096, 256), np.int32)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        return self._rows[index % 4096]


class Images(Dataset[Any]):
    """Images of 12 KB, each unpacked from about 7 KB; ``draw`` returns what augments one, if anything does."""

    def __init__(self, count: int, draw: Callable[[], list[int]] | None = None) -> None:
        rng = np.random.default_rng(0)
        pixels = rng.integers(0, 16, (64, _SIDE, _SIDE, 3), np.uint8)
        self._packed = [zlib.compress(one.tobytes()) for one in pixels]
        self._count, self._draw = count, draw

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        data = bytearray(zlib.decompress(self._packed[index % 64]))
        pixels = np.frombuffer(data, np.uint8).reshape(_SIDE, _SIDE, 3)
        if self._draw is None:
            return pixels
        top, left, turn = self._draw()
        part = pixels[top : top + _CROP, left : left + _CROP]
        return np.ascontiguousarray(part[:, ::-1] if turn % 2 else part)


def draw_torch() -> list[int]:
    found: list[int] = torch.randint(0, 9, (3,)).tolist()
    return found


def draw_numpy() -> list[int]:
    found: list[int] = np.random.randint(0, 9, 3).tolist()  # noqa: NPY002  as datasets do
    return found


def draw_python() -> list[int]:
    return [random.randrange(9) for _ in range(3)]  # noqa: S311  no secrets


def draw_all() -> list[int]:
    """Draw from all three generators."""
    return [draw_torch()[0], draw_numpy()[1], draw_python()[2]]


def measure_loader(folder: Path, *, rounds: int, is_quick: bool) -> Results:
    """Return what all ways took, round by round."""
    scale = 100 if is_quick else 1
    formats = ("jsonl", "npy") if is_quick else tuple(READERS)
    pairs = 2 * rounds - 1
    return {
        "passes": _measure_passes(scale, pairs),
        "streams": measure_streams(
            folder, rounds=rounds, records=RECORDS // scale, formats=formats
        ),
        "start": _measure_start(scale, pairs),
        "resume": _measure_resume(2000 // scale, rounds),
    }


def _make_ours(dataset: Dataset[Any], workers: int) -> ConsistentDataLoader:
    return ConsistentDataLoader(dataset, BATCH, num_workers=workers)


def _make_plain(dataset: Dataset[Any], workers: int) -> DataLoader[Any]:
    return DataLoader(dataset, BATCH, shuffle=True, num_workers=workers)


def _measure_passes(scale: int, rounds: int) -> list[Results]:
    tokens, images = 100_000 // scale, 4_000 // scale
    datasets: dict[str, Tokens | Images] = {
        "tokens": Tokens(tokens),
        "decode": Images(images),
        "decode, augment by torch": Images(images, draw_torch),
        "decode, augment by numpy": Images(images, draw_numpy),
        "decode, augment by random": Images(images, draw_python),
        "decode, augment by all three": Images(images, draw_all),
    }
    rows = []
    for name, dataset in datasets.items():
        for workers in WORKERS:
            makers = (OURS, _make_ours), (PLAIN, _make_plain)
            ways = {way: partial(make, dataset, workers) for way, make in makers}
            measured = measure_passes(ways, len(dataset), rounds)
            rows.append({"name": name, "workers": workers, **measured})
    return rows


def _measure_start(scale: int, rounds: int) -> list[Results]:
    rows = []
    for samples in (100_000 // scale, 1_000_000 // scale):
        dataset = Tokens(samples)
        for workers in WORKERS:
            timers = {
                OURS: partial(time_first, partial(_make_ours, dataset, workers)),
                PLAIN: partial(time_first, partial(_make_plain, dataset, workers)),
            }
            rows.append(
                {"samples": samples, "workers": workers, "times": take_turns(timers, rounds)}
            )
    return rows


def _measure_resume(batches: int, rounds: int) -> list[Results]:
    """Resume in the middle of an epoch; the batch must be that of a run without a break."""
    dataset, huge = Tokens(2 * batches * BATCH), Tokens(_HUGE)
    rows = []
    for workers in WORKERS:
        position = _HUGE // 2 // BATCH
        state = _make_ours(huge, workers).state_dict()
        state |= {"cursor": position * BATCH, "batches_drawn": position}
        ours, stateful = (partial(make, dataset, workers) for make in (_make_ours, _make_stateful))
        timers = {
            f"{OURS}, {_HUGE:,} samples": partial(
                time_first, partial(_make_ours, huge, workers), state=state
            ),
            OURS: _resume_from(ours, batches),
            _STATEFUL: _resume_from(stateful, batches),
            f"{PLAIN}, draw and drop": partial(
                time_first, partial(_make_plain, dataset, workers), drop=batches
            ),
        }
        rows.append({"workers": workers, "batches": batches, "times": take_turns(timers, rounds)})
    return rows


def _make_stateful(dataset: Dataset[Any], workers: int) -> Any:
    from torchdata.stateful_dataloader import StatefulDataLoader  # noqa: PLC0415

    with warnings.catch_warnings(action="ignore"):  # it calls what this torch calls deprecated
        return StatefulDataLoader(dataset, BATCH, shuffle=True, num_workers=workers)


def _resume_from(make: Callable[[], Any], batches: int) -> Callable[[], float]:
    """Draw so many batches; return what times a resume there."""
    loader = make()
    drawn = iter(loader)
    for _ in range(batches):
        next(drawn)
    state = loader.state_dict()
    return partial(time_first, make, state=state, expected=next(drawn))


if __name__ == "__main__":
    place, count, quick = sys.argv[1:]
    print(json.dumps(measure_loader(Path(place), rounds=int(count), is_quick=quick == "quick")))
