"""Programs of the tests' runs that begin at once: forked from a process that has torch imported.

    program = start(PROGRAM, rank, folder)
    said = program.communicate(timeout=200)[1]
    done = run_ranks(PROGRAM, 2, folder)  # as torchrun does
    results = call_ranks("support.module", "function", 2, folder)

The process that forks them lives as long as the one that asked for it first.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import json
import logging
import os
import runpy
import select
import sys
import tempfile
import time
import uuid
import warnings
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from support.forking import Forked, forking, import_for
from support.writers import use_forked


class Program(Forked):
    """A program that runs: as ``subprocess.Popen`` with pipes for what it says, in bytes."""

    def __init__(self, command, environment, imports):
        self._said = None
        self._files = [tempfile.TemporaryFile() for _ in range(2)]  # noqa: SIM115 - closed once read
        descriptors = {number: one.fileno() for number, one in enumerate(self._files, 1)}
        super().__init__(_find_server(), command, descriptors, environment, imports)

    def communicate(self, timeout=None):
        self.wait(timeout)
        if self._said is None:
            self._said = [_read_and_close(file) for file in self._files]
        return self._said


def _read_and_close(file):
    with file:
        file.seek(0)
        return file.read()


def start(program, *words, imports=(), **environment):
    """Start a program, or ``-c`` and its code, with words and more of an environment."""
    return Program([str(program), *map(str, words)], os.environ | environment, list(imports))


def run_ranks(program, size, *words, imports=(), timeout_s=250):
    """Run a program in so many ranks, as ``torchrun`` does: if one fails, the others are killed.

    Returns:
        ``returncode``, that of the first rank to fail, or 0; ``stderr``, what all said there.
    """
    with started_ranks(program, size, *words, imports=imports) as ranks:
        returncode = _wait_for_all(ranks, time.monotonic() + timeout_s)
    said = [rank.communicate()[1].decode() for rank in ranks]
    return SimpleNamespace(returncode=returncode, stderr="\n".join(said))


@contextlib.contextmanager
def started_ranks(program, size, *words, imports=()):
    """Start a program in so many ranks, with the environment of ``torchrun``; kill them at the end."""
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ranks = [
        start(program, *words, imports=imports, **_describe(rank, size, store.port))
        for rank in range(size)
    ]
    try:
        yield ranks
    finally:
        for rank in ranks:
            rank.kill()
        for rank in ranks:
            rank.communicate()


def call_ranks(program, function, size, folder, **options):
    """Call a function of a program, or of a module, in ranks that are one group; return what each returned."""
    ranks = start_calls(program, function, size, folder, **options)
    said = [rank.communicate(600)[1].decode() for rank in ranks]
    for number, rank in enumerate(ranks):
        assert rank.returncode == 0, f"rank {number}: {said[number]}"
    return [json.loads(rank.answer.read_text()) for rank in ranks]


def start_calls(program, function, size, folder, **options):
    """Start what ``call_ranks`` calls: function(``folder / "run"``, rank, size, **options)."""
    # A file, and no port, which another process could take in between.
    store = Path(folder, f"store-{uuid.uuid4().hex}")
    imports = [] if isinstance(program, Path) else [program]
    words = program, function, folder, size, store, json.dumps(options)
    ranks = []
    for rank in range(size):
        ranks.append(start("-c", _CALL, *words, rank, imports=imports))
        ranks[-1].answer = Path(f"{store}-{rank}")
    return ranks


_CALL = "from support.programs import call; call()"


def call():
    """Be a rank of ``start_calls``; what is called ``end`` in the program comes last."""
    from torch import distributed, set_num_threads

    program, name, folder, size, store, options, rank = sys.argv[1:]
    rank, size = int(rank), int(size)
    warnings.simplefilter("ignore")
    set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", RANK=str(rank), WORLD_SIZE=str(size))
    if program.endswith(".py"):
        found = runpy.run_path(program, run_name="program")
    else:
        found = vars(importlib.import_module(program))
    distributed.init_process_group(
        "gloo", store=distributed.FileStore(store, size), rank=rank, world_size=size,
        timeout=timedelta(seconds=300),
    )  # fmt: skip
    result = found[name](Path(folder, "run"), rank, size, **json.loads(options))
    found.get("end", int)()
    if distributed.is_initialized():
        distributed.destroy_process_group()
    Path(f"{store}-{rank}").write_text(json.dumps(result))


def _describe(rank, size, port):
    """Return what ``torchrun`` says in the environment of a rank."""
    names = {
        "RANK": rank, "LOCAL_RANK": rank, "ROLE_RANK": rank, "GROUP_RANK": 0, "WORLD_SIZE": size,
        "LOCAL_WORLD_SIZE": size, "ROLE_WORLD_SIZE": size, "GROUP_WORLD_SIZE": 1, "ROLE_NAME": "default",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "test",
        "TORCHELASTIC_RESTART_COUNT": 0, "TORCHELASTIC_MAX_RESTARTS": 0, "TORCHELASTIC_USE_AGENT_STORE": True,
    }  # fmt: skip
    return {name: str(value) for name, value in names.items()}


def _wait_for_all(ranks, end_s):
    waiting = list(ranks)
    while waiting:
        ready, _, _ = select.select(waiting, [], [], max(0, end_s - time.monotonic()))
        if not ready:
            raise TimeoutError(f"{len(waiting)} ranks have not ended")
        for rank in ready:
            waiting.remove(rank)
            if rank.wait():
                return rank.returncode
    return 0


@functools.cache
def _find_server():
    if sys.platform != "linux":
        pytest.skip("elsewhere sockets like those of the server do not exist")
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(forking("support.programs"))


# In the process that forks.


def prepare():
    """Import all that a training needs."""
    import torch

    torch.set_num_threads(1)
    use_forked()
    import_for(_train)


def _train(folder):
    import torch
    from torch import _dynamo  # noqa: F401 - which is imported by the first operation of a DTensor
    from torch.distributed import fsdp, tensor  # noqa: F401
    from torch.nn.parallel import DistributedDataParallel

    from mvc import Repo
    from mvc_data import ConsistentDataLoader
    from mvc_hooks import Checkpointer
    from support.committing import WHO

    torch.distributed.init_process_group(
        "gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1
    )
    logging.getLogger("mvc_hooks").setLevel(logging.ERROR)
    model = torch.nn.Linear(1, 1)
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters())
    loader = ConsistentDataLoader(list(range(8)), 2, seed=0)
    with Checkpointer(
        folder, model=model, optimizer=optimizer, dataloader=loader, every=1, identity=WHO
    ) as ckpt:
        for _ in ckpt.steps(2):
            loss = wrapped(ckpt.next_batch()[:, None].float()).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            ckpt.step(loss=loss)
    Repo(folder).load_state()
