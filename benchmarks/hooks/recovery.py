"""Going back and going on: ``python -m benchmarks.hooks.recovery ...``.

Arguments: the folder to work in, the size of the run, the rounds, the patience. Prints JSON.

* A run whose weights became NaN reports its loss; what is timed is that call of ``step``, which returns
  when the state of the step before is back and was compared, once from a commit and once from a
  snapshot in memory. All commits are durable before.
* A run that knows nothing is given the last saved state: by the construction of a ``Checkpointer``, by
  ``torch.load`` and ``load_state_dict``, and by ``dcp.load``. Files are in the page cache. mvc
  hashes what it reads, and again what is in place; the others check nothing.

After each of them weights and moments are compared with copies, bit by bit, outside of the times.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed.checkpoint as dcp

from benchmarks.hooks.run import is_same, make_run
from benchmarks.hooks.stall import quieten
from benchmarks.hooks.ways import DCP, MVC, TORCH_SAVE, App, join_world, leave_world
from benchmarks.stopwatch import take_time
from benchmarks.sweep import fresh_folder
from mvc_hooks import Checkpointer, Ring, rollback

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.hooks.run import Run
    from benchmarks.stopwatch import Round

FROM_COMMIT, FROM_RING = "from a commit", "from the ring"
_CALM_STEPS = 2


class WrongStateError(Exception):
    """Something came back otherwise than it was saved."""


def check(run: Run, copies: list[torch.Tensor], what: str) -> None:
    """Compare a run with copies.

    Raises:
        WrongStateError: it is not the same.
    """
    if not is_same(run, copies):
        raise WrongStateError(f"{what}: other bits came back than were saved")


def copy_tensors(run: Run) -> list[torch.Tensor]:
    """Return copies of weights and moments."""
    return [tensor.clone() for tensor in run.tensors()]


def open_checkpointer(run: Run, folder: Path, **more: Any) -> Checkpointer:
    """Open a checkpointer that goes one step back."""
    step = rollback(to="last", min_steps_back=1, skip_batches=0, limit=1_000)
    settings: dict[str, Any] = {"every": 1, "ladder": [step], "signals": False} | more
    return Checkpointer(folder, model=run.model, optimizer=run.optimizer, **settings)


def diverge(run: Run, ckpt: Checkpointer, patience_s: float, what: str) -> Round:
    """Go wrong, be brought back, and return what that took."""
    for _ in range(_CALM_STEPS):
        ckpt.step(loss=run.step())
    ckpt.wait()
    copies = copy_tensors(run)
    run.step()
    for weight in run.model.parameters():
        weight.data.fill_(torch.nan)
    loss = torch.tensor(torch.nan)
    taken = take_time(lambda: ckpt.step(loss=loss), patience_s=patience_s)
    check(run, copies, what)
    ckpt.wait()
    return taken


def measure_rollback(
    run: Run, folder: Path, rounds: int, patience_s: float
) -> dict[str, list[Round]]:
    """Return where from → what rollbacks took."""
    taken: dict[str, list[Round]] = {}
    settings: dict[str, dict[str, Any]] = {
        FROM_COMMIT: {},
        FROM_RING: {"every": 1_000, "ring": Ring(every=1, keep=2)},
    }
    for name, more in settings.items():
        place = fresh_folder(folder / "rollback")
        ckpt = open_checkpointer(run, place, **more)
        ckpt.step(loss=run.step())
        ckpt.commit("the first")
        taken[name] = [diverge(run, ckpt, patience_s, name) for _ in range(rounds + 1)][1:]
        ckpt.close()
        fresh_folder(place)
    return taken


def measure_resume(
    run: Run, folder: Path, rounds: int, patience_s: float
) -> dict[str, list[Round]]:
    """Return way → what it took to give the last saved state to a run that knows nothing."""
    save_everywhere(run, folder)
    copies = copy_tensors(run)
    ways: dict[str, Callable[[Run, Path], object]] = {
        MVC: open_checkpointer,
        TORCH_SAVE: load_torch,
        DCP: load_dcp,
    }
    taken: dict[str, list[Round]] = {name: [] for name in ways}
    for turn in range(rounds + 1):
        for name in list(ways) if turn % 2 else list(reversed(ways)):
            other = run.twin()
            opened: list[object] = []
            load = partial(ways[name], other, folder / "resume" / name)
            figure = take_time(lambda: opened.append(load()), patience_s=patience_s)  # noqa: B023  called at once
            check(other, copies, name)
            if turn:
                taken[name].append(figure)
            if isinstance(opened[0], Checkpointer):
                opened[0].close()
    leave_world()
    return taken


def save_everywhere(run: Run, folder: Path) -> None:
    """Save one state in every way."""
    place = fresh_folder(folder / "resume")
    with open_checkpointer(run, place / MVC) as ckpt:
        for _ in range(_CALM_STEPS):
            ckpt.step(loss=run.step())
    torch.save(run.state(), place / TORCH_SAVE)
    join_world(folder)
    dcp.save({"app": App(run)}, checkpoint_id=place / DCP)


def load_torch(run: Run, path: Path) -> None:
    """Load what ``torch.save`` wrote."""
    state = torch.load(path, weights_only=False)
    run.model.load_state_dict(state["model"])
    run.optimizer.load_state_dict(state["optimizer"])


def load_dcp(run: Run, path: Path) -> None:
    """Load what ``dcp.save`` wrote."""
    dcp.load({"app": App(run)}, checkpoint_id=path)


def main() -> None:
    place, size, rounds, patience = sys.argv[1:]
    quieten()
    folder = Path(place)
    run = make_run(folder.parent, size)
    run.step()
    answer = {
        "state_bytes": run.state_bytes,
        "rollback": measure_rollback(run, folder, int(rounds), float(patience)),
        "resume": measure_resume(run, folder, int(rounds), float(patience)),
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
