"""Readings: as a run sends and receives them, histories of them, and noise to put into them."""

import numpy as np
from hypothesis import strategies as st

from mvc_hooks.divergence.history import History, Reading
from mvc_hooks.judge import SCALE, as_reading, read_values
from mvc_hooks.ranks.messages import StepMessages


class ReadingQueue:
    """Puts values in, and takes readings out."""

    def __init__(self, lag_steps=None, *, reads_scale=False):
        self.messages, self._reads_scale = StepMessages(lag_steps), reads_scale

    def __len__(self):
        return len(self.messages)

    def put(self, step, loss=None, grad_norm=None, *, lr=None, scale=None):
        values = read_values(
            step, loss, grad_norm, lr=lr, scale=scale, reads_scale=self._reads_scale
        )
        self.messages.send(step, values, {}, late=(SCALE,))

    def take(self, step=None):
        return [as_reading(sums) for sums in self.messages.receive(step)]

    def drain(self):
        return [as_reading(sums) for sums in self.messages.drain()]

    def clear(self):
        self.messages.clear()


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
