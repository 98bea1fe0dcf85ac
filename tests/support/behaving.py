"""Models and inputs for the tests, also what an entry names as FILE.py:FUNCTION."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn


class Classifier(nn.Module):
    """Tokens in, logits out; the head is tied to the embedding."""

    def __init__(self, width=16, words=50):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.mix = nn.LSTM(width, width, batch_first=True)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, input_ids, attention_mask=None, labels=None):
        mixed, _ = self.mix(self.embed(input_ids))
        return {"logits": self.head(self.drop(mixed)), "state": (mixed, [mixed[:, 0]])}


def build():
    print("the user's code prints")
    return Classifier()


def build_wider():
    return Classifier(width=17)


def load(path):
    """Load a checkpoint as a library does that keeps it in a form of its own."""
    from safetensors.torch import load_file

    model = Classifier()
    (file,) = [path] if path.endswith("safetensors") else Path(path).glob("*.safetensors")
    model.load_state_dict(load_file(file), strict=False)
    assert (Path(file).parent / "config.json").exists()
    return model


def build_of_two(first, second):
    return Classifier()


class Threads(nn.Module):
    """Returns how many threads it runs on."""

    def __init__(self):
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return torch.full((len(x), 1), float(torch.get_num_threads()))


def build_nothing():
    return 7


def build_badly():
    raise RuntimeError("no data\nsecond line")


def build_meta():
    with torch.device("meta"):
        return Classifier()


def perceptron(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 12), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(12, 4))


def changed(model, name, by=0.01):
    """Return a copy of a model, one parameter of which is moved."""
    import copy

    other = copy.deepcopy(model)
    with torch.no_grad():
        parameter = dict(other.named_parameters())[name]
        parameter += by * torch.ones_like(parameter)
    return other
