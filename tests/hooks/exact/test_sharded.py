"""Trainings over several processes are the same bit by bit, whatever befell them, and commit what one process would."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from support.bounds import bounded, rest_nightly
from support.programs import call_ranks, start_calls

pytestmark = pytest.mark.torch

PROGRAM = Path(__file__).with_name("sharded_training.py")
FAST = ["fsdp-tp", "fsdp-group-added"]


def launch(folder, names, size):
    return call_ranks(PROGRAM, "prove_all", size, folder, names=names)


def launch_and_kill(folder, wanted, size):
    """Start ranks of which some are killed; kill the rest, as torchrun does."""
    ranks = start_calls(PROGRAM, "prove_all", size, folder, names=[wanted])
    for rank in wanted["ranks"]:
        text = ranks[rank].communicate(timeout=600)[1].decode()
        assert ranks[rank].returncode == -signal.SIGKILL, f"rank {rank}: {text}"
    for process in ranks:
        process.kill()
        process.communicate()


def check_killed(folder, size, name, ranks, step, others=()):
    """Kill ranks of a training, go on with it, and have other layouts take its end over."""
    launch_and_kill(folder, {"kill": name, "ranks": ranks, "step": step}, size)
    newest = step - step % 3  # the commit of that step itself may be under way
    start_steps = [newest] if step % 3 else [newest - 3, newest]
    for said in launch(folder, [{"go on": name, "from": start_steps}], size):
        assert said == {"go on": {}}
    for other, count in others:
        for said in launch(folder, [{"move": other}], count):
            assert said == {"move": {}}, f"{name} to {other} on {count}"


@pytest.mark.slow
def test_a_killed_training_goes_on_bit_by_bit(tmp_path):
    """Of FSDP x TP one rank dies while a commit is under way; in the end another layout takes its state over."""
    check_killed(tmp_path, 2, "fsdp-tp", [1], 9, [("tp-adamw", 2)])


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "ranks", "step", "others"),
    [
        ("tp-adamw", [0], 8, [("fsdp-adamw-foreach", 2)]),
        ("tp-adamw", [0, 1], 9, [("fsdp-tp", 2)]),
        ("tp-sequence", [1], 9, []),
        ("fsdp-tp", [0, 1], 9, [("fsdp-adamw-foreach", 2)]),
        ("hsdp", [1], 8, [("tp-adamw", 2)]),
        ("hsdp", [0, 1], 9, [("fsdp-tp", 2)]),
        ("fsdp-adamw-foreach", [0], 9, [("tp-adamw", 2), ("hsdp", 2)]),
        ("ddp-adamw", [0, 1], 9, []),
    ],
)
def test_every_killed_training_goes_on_bit_by_bit(tmp_path, name, ranks, step, others):
    check_killed(tmp_path, 2, name, ranks, step, others)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "ranks", "others"),
    rest_nightly(
        [
            ("hsdp", [2], [("fsdp-tp", 2), ("fsdp-tp", 4)]),
            ("hsdp", [0, 1, 2, 3], [("fsdp-tp", 2), ("fsdp-tp", 4)]),
            ("ddp-adamw", [1], []),
        ]
    ),
)
def test_a_killed_training_of_four_goes_on_bit_by_bit(tmp_path, name, ranks, others):
    check_killed(tmp_path, 4, name, ranks, 9, others)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", rest_nightly(["ddp-power-sgd", "ddp-buckets", "ddp-sgd-frozen-tied"])
)
def test_replicas_that_go_back_to_the_start_sum_as_at_first(tmp_path, name):
    for said in launch(tmp_path, [{"back": name}], 4):
        assert said == {"back": {}}


@pytest.mark.slow
def test_sharded_trainings_are_the_same_bit_by_bit(tmp_path):
    for said in launch(tmp_path, FAST, 2):
        assert said == {name: {} for name in FAST}


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("size", "part", "parts"), [*((2, part, 6) for part in range(6)), (4, 0, 2), (4, 1, 2)]
)
def test_every_sharded_training_is_the_same_bit_by_bit(tmp_path, size, part, parts):
    from support.scenarios.sharded import BUILDERS

    names = [name for name, one in BUILDERS.items() if size in one.sizes][part::parts]
    wanted = bounded([{"resume": name} for name in names], names)
    for said in launch(tmp_path, wanted, size):
        assert said == {name: {} for name in names}
