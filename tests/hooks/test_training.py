"""What an entry may build: a Training, or a dict with its keys, and nothing else."""

from __future__ import annotations

import pytest

from mvc import UsageError
from mvc_hooks.training import Training, as_training


def step(run):
    return {"loss": 1.0}


def test_a_training_or_a_dict_of_its_keys():
    training = Training({"model": 1}, step)
    assert as_training(training) is training
    made = as_training({"parts": {"model": 1}, "train_step": step, "ladder": []})
    assert (made.parts, made.train_step, made.ladder, made.detectors) == (
        {"model": 1},
        step,
        [],
        None,
    )


@pytest.mark.parametrize(
    "value",
    [None, 3, {}, {"parts": {"model": 1}}, {"parts": {"a": 1}, "train_step": step, "more": 1}],
)
def test_anything_else(value):
    with pytest.raises(UsageError, match=f"a {type(value).__name__}, not a Training"):
        as_training(value)


@pytest.mark.parametrize("parts", [{}, None, [1], "model"])
def test_parts_are_a_dict_of_some(parts):
    with pytest.raises(UsageError, match="not a dict of parts"):
        Training(parts, step)


def test_a_step_is_a_function():
    with pytest.raises(UsageError, match="train_step of a Training is not a function"):
        Training({"model": 1}, 3)
