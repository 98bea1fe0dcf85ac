"""Small real trainings, each written once and run plain, kept, killed, resumed and rolled back.

A scenario (``support.scenarios``) is a function that returns a ``Run``: the parts of the
run by name, and one step of it. ``train_plain`` runs it without mvc at all; ``train_kept`` with a
``Checkpointer``. Both write a trace: a line per step with the bits of the loss, of the batch, and
of everything that is alive, hashed here and not by mvc. Two trainings are the same where their
traces are.

The functions at the end are verbs of ``support.zygote``: they run in children that may be killed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import signal
import struct
import sys
import tempfile
import traceback
import warnings
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

EVERY = 3
TOTAL = 16


@dataclass
class Run:
    """What is alive in a training.

    Attributes:
        parts: name → object, as the checkpointer takes them.
        step: takes a batch and a function to call between ``backward`` and ``optimizer.step``;
            returns the loss.
        data: index of the batch → batch, where there is no loader.
        loader: drawn from by ``next_batch``, or by the run itself.
        iterates: whether the run iterates the loader by itself.
        also: name → object whose bits must be the same too, though it is no part.
        with_gradients: whether gradients are state between steps.
        warm_up: what the checkpointer has to call before a resume.
    """

    parts: dict[str, Any]
    step: Any
    data: Any = None
    loader: Any = None
    iterates: bool = False
    also: dict[str, Any] = field(default_factory=dict)
    with_gradients: bool = False
    warm_up: Any = None


def seed_all(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


# Bits.


def digest(value):
    """Return a hash of nested values in which every bit, type and shape counts.

    DTensors count whole, so all ranks have to call this.
    """
    hasher = hashlib.sha256()
    _feed(hasher, value)
    return hasher.hexdigest()[:16]


def _feed(hasher, value):
    if isinstance(value, torch.Tensor):
        value = value.detach()
        if hasattr(value, "full_tensor"):
            value = value.full_tensor()
        hasher.update(f"tensor {value.dtype} {tuple(value.shape)} {value.layout}".encode())
        if value.layout is torch.sparse_coo:
            value = value.coalesce()
            _feed(hasher, [value.indices(), value.values()])
            return
        plain = value.contiguous().reshape(-1)
        hasher.update(plain.view(torch.uint8).numpy().tobytes() if plain.numel() else b"")
    elif isinstance(value, np.ndarray):
        hasher.update(f"array {value.dtype} {value.shape}".encode() + value.tobytes())
    elif isinstance(value, dict):
        hasher.update(f"dict {len(value)}".encode())
        for key in sorted(value, key=repr):
            hasher.update(repr(key).encode())
            _feed(hasher, value[key])
    elif isinstance(value, (list, tuple, deque)):
        hasher.update(f"{type(value).__name__} {len(value)}".encode())
        if set(map(type, value)) == {int}:  # as the state of a generator is, hundreds of them
            hasher.update(repr(tuple(value)).encode())
            return
        for item in value:
            _feed(hasher, item)
    elif hasattr(value, "error_dict"):  # of PowerSGD
        names = set(value.__slots__) - {"process_group", "rng"}
        _feed(hasher, {name: getattr(value, name) for name in names})
        _feed(hasher, value.rng.get_state())
    elif isinstance(value, float):
        hasher.update(b"float" + struct.pack("d", value))
    else:
        assert value is None or isinstance(value, (int, str, bytes, bool, np.generic)), value
        hasher.update(repr(value).encode())


def look(value):
    """Return the state of a live object as nested values, without mvc."""
    for kind, ask in _LOOKS.items():
        if isinstance(value, kind):
            return ask(value)
    return value.state_dict() if hasattr(value, "state_dict") else value


def _look_at_module(module):
    state = module.state_dict().items()
    return {
        "state": {k.replace("_orig_mod.", ""): v for k, v in state if isinstance(v, torch.Tensor)},
        "buffers": [buffer for _, buffer in module.named_buffers()],
        "frozen": [not param.requires_grad for param in module.parameters()],
        "training": [child.training for child in module.modules()],
    }


_LOOKS = {
    nn.Module: _look_at_module,
    torch.Generator: torch.Generator.get_state,
    np.random.Generator: lambda generator: generator.bit_generator.state,
    random.Random: random.Random.getstate,
    dict: lambda items: {key: look(item) for key, item in items.items()},
    (list, tuple): lambda items: [look(item) for item in items],
}


def _strip(value):
    """Return nested values without the functions that some schedulers name in their state."""
    if isinstance(value, dict):
        return {key: _strip(item) for key, item in value.items() if not callable(item)}
    return value


def fingerprint(run):
    """Return name → hash of everything that is alive, the loader left out: its batches show it."""
    live = {name: one for name, one in {**run.parts, **run.also}.items() if one is not run.loader}
    found = {name: digest(_strip(look(one))) for name, one in live.items()}
    found["python"] = digest(random.getstate())
    found["numpy"] = digest(np.random.get_state())
    found["torch"] = digest(torch.get_rng_state())
    if run.with_gradients:
        models = [one for one in live.values() if isinstance(one, nn.Module)]
        found["gradients"] = digest([p.grad for model in models for p in model.parameters()])
    return found


class Trace:
    """A file with a line per step; what was written survives a kill."""

    def __init__(self, path):
        self._path = Path(path)

    def add(self, step, batch, loss, run):
        line = {"step": step, "batch": digest(batch), "loss": digest(loss), **fingerprint(run)}
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(descriptor, json.dumps(line).encode() + b"\n")
        os.close(descriptor)


def read_trace(path):
    """Return the lines of a trace."""
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def find_deviation(trace, plain):
    """Return the first step and the names that are not as in a plain run, or None."""
    by_step = {line["step"]: line for line in plain}
    for line in trace:
        other = by_step[line["step"]]
        differing = [name for name in other if other[name] != line.get(name)]
        if differing:
            return line["step"], differing
    return None


# Trainings.


def _draw_endlessly(loader):
    """Yield batches as ``next_batch`` does, epoch after epoch."""
    epoch = 0
    while True:
        yield from loader
        epoch += 1
        for owner in (loader, getattr(loader, "sampler", None)):
            if hasattr(owner, "set_epoch"):
                owner.set_epoch(epoch)


def _nothing():
    return None


def train_plain(build, total, trace):
    """Train without mvc."""
    seed_all(0)
    run = build()
    batches = None if run.loader is None else _draw_endlessly(run.loader)
    for index in range(total):
        batch = run.data(index) if batches is None else next(batches)
        loss = run.step(batch, _nothing)
        trace.add(index + 1, batch, loss, run)
    return run


@dataclass
class Plan:
    """What befalls a kept training, by the number of the step.

    Attributes:
        seed: of the process when the run is built; of no account after a resume.
        lie_at: a NaN is reported in place of the loss of this step, once.
        kill_at: SIGKILL in the middle of this step.
        quiet_kill: the writer is done by then.
        hold_at: the writer is stopped before this step ends; its process id goes to ``held_file``.
        total: steps.
        every: steps between commits.
    """

    seed: int = 0
    lie_at: int = 0
    kill_at: int = 0
    quiet_kill: bool = False
    hold_at: int = 0
    held_file: str = ""
    total: int = TOTAL
    every: int = EVERY


def train_kept(root, build, plan, trace, **options):
    """Train with a checkpointer; return (run, checkpointer), which is closed."""
    from mvc_hooks import Checkpointer

    seed_all(plan.seed)
    run = build()
    ckpt = Checkpointer(root, parts=run.parts, every=plan.every, **options)
    batches = _draw_endlessly(run.loader) if run.iterates else None
    lies = {plan.lie_at}
    with ckpt:
        for index in ckpt.steps(plan.total):
            batch = _draw(ckpt, run, batches)
            step = index + 1
            loss = run.step(batch, lambda step=step: _strike(ckpt, plan, step))
            trace.add(step, batch, loss, run)
            if step == plan.hold_at:
                _hold_writer(ckpt, plan)
            told = float("nan") if step in lies else loss
            lies.discard(step)
            ckpt.step(loss=told)
    return run, ckpt


def _draw(ckpt, run, batches):
    if run.loader is None:
        return run.data(ckpt.batch_index)
    return ckpt.next_batch() if batches is None else next(batches)


def _strike(ckpt, plan, step):
    if step != plan.kill_at:
        return
    if plan.quiet_kill:
        ckpt.wait()
    os.kill(os.getpid(), signal.SIGKILL)


def find_writer(ckpt):
    """Return the process id of the writer of a checkpointer."""
    return ckpt._commits.queue._writer._process.pid


def _hold_writer(ckpt, plan):
    writer = find_writer(ckpt)
    Path(plan.held_file).write_text(str(writer))
    os.kill(writer, signal.SIGSTOP)


# Verbs of the zygote.


def warm_up():
    """Import everything once, for all children."""
    from torch.utils.data import _utils
    from torchdata.stateful_dataloader import worker

    import mvc_hooks.checkpointer  # noqa: F401
    from support.scenarios import SCENARIOS
    from support.writers import use_forked

    use_forked()
    torch.set_num_threads(1)
    # Loader workers of a killed child look that often whether it is still there.
    _utils.worker.MP_STATUS_CHECK_INTERVAL = worker.MP_STATUS_CHECK_INTERVAL = 0.1
    run = SCENARIOS["compiled"].build()  # the first step of a process imports a lot
    run.step(run.data(0), _nothing)
    with tempfile.TemporaryDirectory() as folder:
        plan, trace = Plan(lie_at=8, total=8), Trace(Path(folder, "trace"))
        train_kept(Path(folder, "run"), SCENARIOS["schedulers"].build, plan, trace)
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", module="torch")  # and torchdata


def cells(root, cells):
    """Run cells as IPython does, then end as Python does; return the status and what was printed."""
    files = [root.with_name(name) for name in ("said", "errors")]
    process = os.fork()
    if process == 0:
        for number, file in enumerate(files, 1):
            os.dup2(os.open(file, os.O_CREAT | os.O_WRONLY), number)
        _run_cells({"path": str(root)}, cells)
        raise SystemExit  # no Exception: what forked this process does not hold it up
    _, status = os.waitpid(process, 0)
    return [status, *(file.read_text() for file in files)]


def _run_cells(space, cells):
    """Run cells in one namespace; an exception is shown and kept."""
    for cell in cells:
        try:
            exec(compile(cell, "<cell>", "exec"), space)
        except Exception as error:
            sys.last_type, sys.last_value, sys.last_traceback = sys.exc_info()
            print(type(error).__name__)


@contextlib.contextmanager
def _told():
    """Print where an error comes from: the zygote passes on its text only."""
    try:
        yield
    except Exception:
        traceback.print_exc()
        raise


def plain(root, scenario, trace, total=TOTAL):
    """Run a scenario without mvc."""
    from support.scenarios import SCENARIOS

    with _told():
        train_plain(SCENARIOS[scenario].build, total, Trace(trace))


def kept(root, scenario, trace, options=None, **plan):
    """Run a scenario with a checkpointer, and say how it went."""
    from mvc_hooks import rollback, stop
    from support.scenarios import SCENARIOS

    ladder = [rollback(to="last", min_steps_back=1, skip_batches=0), stop(after=3)]
    with _told():
        _, ckpt = train_kept(
            root, SCENARIOS[scenario].build, Plan(**plan), Trace(trace), ladder=ladder,
            signals=False, **(options or {}),
        )  # fmt: skip
    return {
        "resumed_from": ckpt.resumed_from,
        "rollbacks": [[one.from_step, one.to_step, one.skipped] for one in ckpt.rollbacks],
        "commits": [one.step for one in ckpt.commits],
    }


def terminated(root, trace):
    """Send SIGTERM to the own process in the middle of a step, and go on as if nothing were."""
    from mvc_hooks import Checkpointer
    from support.scenarios import SCENARIOS

    seed_all(0)
    run = SCENARIOS["loader-plain"].build()
    with Checkpointer(root, parts=run.parts, every=100) as ckpt:
        for index in ckpt.steps(TOTAL):
            batch = ckpt.next_batch()
            send = (lambda: os.kill(os.getpid(), signal.SIGTERM)) if index == 4 else _nothing
            loss = run.step(batch, send)
            Trace(trace).add(index + 1, batch, loss, run)
            ckpt.step(loss=loss)
    return "it went on"
