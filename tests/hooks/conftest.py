"""Runs by hand, and children that train and are killed; torch is imported by those who use them only."""

from __future__ import annotations

import functools
import gc
import importlib.util
import sys

import pytest

_MANY = 100


@pytest.fixture(scope="session", autouse=True)
def quick_writers():
    """Writers that need not import anything first."""
    if importlib.util.find_spec("torch") is None:
        yield
        return
    from support.writers import forked_writers

    with forked_writers():
        yield


@pytest.fixture(scope="session", autouse=True)
def ask_git_once(quick_writers):
    """Let Git look at this project once: each checkpointer asks it twice, for 50 ms."""
    if importlib.util.find_spec("torch") is None:
        yield
        return
    from mvc_hooks import environment

    ask = environment._ask_git
    environment._ask_git = functools.cache(ask)
    yield
    environment._ask_git = ask


@pytest.fixture(autouse=True)
def spare_imports():
    """Spare later looks at all objects what a test has imported: a library for training has a million."""
    before = len(sys.modules)
    yield
    if len(sys.modules) > before + _MANY:
        gc.collect()
        gc.freeze()


@pytest.fixture
def real_writers(quick_writers):
    """Writers that start as those of users do, where a test is about that, or about a child's end."""
    from support.writers import use_forked, use_real

    use_real()
    yield
    use_forked()


@pytest.fixture(scope="session")
def trainings(quick_writers):
    from support.zygote import Zygote

    with Zygote("support.training_runs") as zygote:
        yield zygote


@pytest.fixture
def keep(tmp_path):
    """Return a function that begins, or goes on with, the run of this test."""
    from support.kept_runs import Kept

    begun = []

    def begin(name="run", **options):
        kept = Kept(tmp_path / name, **options)
        begun.append(kept)
        return kept

    yield begin
    for kept in begun:
        if kept.ckpt is not None and not kept.ckpt.is_closed:
            kept.ckpt.close()


@pytest.fixture
def group():
    """A process group of this process, whose messages are real."""
    from torch import distributed

    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield distributed.group.WORLD
    if distributed.is_initialized():
        distributed.destroy_process_group()


@pytest.fixture
def plain():
    """Return a function that trains so many steps without mvc."""

    from support.kept_runs import Kept

    def train(count, **options):
        return Kept(None, **options).steps(count)

    return train
