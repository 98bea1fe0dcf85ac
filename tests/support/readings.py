"""Readings through the message of each step, as a run sends and receives them."""

from mvc_hooks.divergence.readings import SCALE, as_reading, read_values
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
