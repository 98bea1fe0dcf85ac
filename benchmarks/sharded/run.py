"""A sharded model of a given size, and the ways to save and load it; every process makes one."""

from __future__ import annotations

import ctypes
import time
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import distributed, nn
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from mvc_hooks import Checkpointer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_LAYERS = 8


class Run:
    """A model that is sharded over all processes, trained by AdamW on gradients that are drawn."""

    def __init__(self, state_mb: int) -> None:
        width = int((state_mb * 1e6 / 12 / _LAYERS) ** 0.5)  # weights and two moments, fp32
        torch.manual_seed(0)
        self.model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(_LAYERS)))
        for layer in self.model:
            fully_shard(layer)
        fully_shard(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)

    def step(self) -> None:
        """Take a step that changes every weight a little."""
        for param in self.model.parameters():
            param.grad = torch.randn_like(param) * 1e-3
        self.optimizer.step()
        self.optimizer.zero_grad()

    def locals(self) -> list[torch.Tensor]:
        """Return what this process holds of weights and moments."""
        found = [*self.model.parameters()]
        found += [value for state in self.optimizer.state.values() for value in state.values()]
        return [one.to_local() if isinstance(one, DTensor) else one for one in found]

    def states(self) -> dict[str, Any]:
        """Return the state dicts as torch's checkpoints take them."""
        return {
            "model": get_model_state_dict(self.model),
            "optimizer": get_optimizer_state_dict(self.model, self.optimizer),
        }

    def take(self, states: dict[str, Any]) -> None:
        """Put loaded state dicts back."""
        set_model_state_dict(self.model, states["model"])
        set_optimizer_state_dict(self.model, self.optimizer, states["optimizer"])


class Way(Protocol):
    """A way to save a run, again and again."""

    def step(self) -> None:
        """Tell it of a step."""
        ...

    def save(self) -> None:
        """Return once training may go on."""
        ...

    def wait(self) -> None:
        """Return once the last save is durable."""
        ...

    def close(self) -> None:
        """End."""
        ...


class Mvc:
    """A Checkpointer that commits when it is told to."""

    def __init__(self, run: Run, folder: Path) -> None:
        self._ckpt = Checkpointer(
            folder,
            model=run.model,
            optimizer=run.optimizer,
            every=None,
            detectors=(),
            allow=["ranks"],
        )

    def step(self) -> None:
        """Report a step."""
        self._ckpt.step()

    def save(self) -> None:
        """Commit."""
        self._ckpt.commit("a save")

    def wait(self) -> None:
        """Wait for the writers."""
        self._ckpt.wait()

    def close(self) -> None:
        """End the writers."""
        self._ckpt.close()


class Dcp:
    """``dcp.save`` or ``dcp.async_save``, each save into a folder of its own."""

    def __init__(self, run: Run, folder: Path, *, kind: str) -> None:
        self._run, self._folder, self._kind = run, folder, kind
        self._count, self._future = 0, None

    def step(self) -> None:
        """It does not care."""

    def save(self) -> None:
        """Save into the next folder."""
        self._count += 1
        place = self._folder / str(self._count)
        if self._kind == "save":
            dcp.save(self._run.states(), checkpoint_id=place)
            return
        kinds = dcp.state_dict_saver.AsyncCheckpointerType
        kind = kinds.PROCESS if self._kind == "process" else kinds.THREAD
        self._future = dcp.async_save(
            self._run.states(), checkpoint_id=place, async_checkpointer_type=kind
        )

    def wait(self) -> None:
        """Wait for the upload."""
        if self._future is not None:
            self._future.result()
            self._future = None

    def close(self) -> None:
        """Nothing is left open."""


WAYS: dict[str, Callable[[Run, Path], Way]] = {
    "mvc": Mvc,
    "dcp.save": lambda run, folder: Dcp(run, folder, kind="save"),
    "dcp.async_save, thread": lambda run, folder: Dcp(run, folder, kind="thread"),
    "dcp.async_save, process": lambda run, folder: Dcp(run, folder, kind="process"),
}


def load(run: Run, folder: Path, way: str) -> Callable[[], None]:
    """Bring back what a way has saved last, on any number of processes; return what ends the way."""
    if way == "mvc":
        return Mvc(run, folder).close
    places = sorted(folder.iterdir(), key=lambda place: int(place.name))
    run.step()  # torch loads into an optimizer that has its state
    states = run.states()
    dcp.load(states, checkpoint_id=places[-1])
    run.take(states)
    return lambda: None


def time_memmove(run: Run) -> float:
    """Return how long one thread takes to copy what this process holds, into memory that is mapped."""
    pairs = [(one, torch.zeros_like(one)) for one in run.locals()]
    began_s = time.perf_counter()
    for one, other in pairs:
        ctypes.memmove(other.data_ptr(), one.data_ptr(), one.nbytes)
    return time.perf_counter() - began_s


def slowest(seconds: float) -> float:
    """Return the longest of all processes."""
    value = torch.tensor(seconds, dtype=torch.float64)
    distributed.all_reduce(value, distributed.ReduceOp.MAX)
    return float(value)


def folder_files(folder: Path) -> Iterator[Path]:
    """Yield all files below a folder."""
    return (path for path in folder.rglob("*") if path.is_file())
