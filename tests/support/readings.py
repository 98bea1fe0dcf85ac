"""Histories of readings, and noise to put into them."""

import numpy as np
from hypothesis import strategies as st

from mvc_hooks.divergence.history import History, Reading


def history_of(losses, norms=None):
    history = History()
    norms = [None] * len(losses) if norms is None else norms
    for step, (loss, norm) in enumerate(zip(losses, norms, strict=True), start=1):
        history.append(Reading(step, loss, norm))
    return history


def noise(seed=0, count=128, scale=0.05):
    return np.random.default_rng(seed).normal(2.5, scale, count)


def finite(low=-1e6, high=1e6):
    return st.floats(low, high, allow_nan=False, allow_subnormal=False)
