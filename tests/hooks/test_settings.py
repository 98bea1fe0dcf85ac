"""Settings that make no sense are refused at once, in one clear line."""

import inspect
import math
import re
from dataclasses import fields

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from mvc import ConflictError, UsageError
from mvc_hooks import Checkpointer, NotFinite, rollback
from mvc_hooks.checkpointer import OPTIONS
from mvc_hooks.parts.make import join_parts
from mvc_hooks.session import Settings
from mvc_hooks.snapshot.ring import Ring

pytestmark = pytest.mark.torch

_PARAMETERS = inspect.signature(Checkpointer).parameters
DEFAULTS = {one.name: _PARAMETERS[one.name].default for one in fields(Settings)}


class _Stateful:
    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("every", 0, "every is 0, not a whole number from 1 on"),
        ("every", True, "every is True, not a whole number from 1 on"),
        ("every", 1.5, "every is 1.5, not a whole number from 1 on"),
        ("every_seconds", 0, "every_seconds is 0, not a positive number of seconds"),
        ("every_seconds", math.nan, "every_seconds is nan, not a positive number of seconds"),
        ("every_seconds", True, "every_seconds is True, not a positive number of seconds"),
        ("in_flight", 0, "in_flight is 0, not a whole number from 1 on"),
        ("healthy_after", -1, "healthy_after is -1, not a whole number from 1 on"),
        ("writer_threads", 0, "writer_threads is 0, not a whole number from 1 on"),
        ("when_behind", "block", "when_behind is 'block', not one of wait, skip, sync"),
        ("on_failure", "ignore", "on_failure is 'ignore', not one of raise, continue"),
        ("replicate", 2, "replicate is 2, not one of 0, 1"),
        ("replicate", True, "replicate is True, not one of 0, 1"),
        ("delta", "yes", "delta is 'yes', neither True nor False"),
        ("signals", 1, "signals is 1, neither True nor False"),
        ("keep_diverged", None, "keep_diverged is None, neither True nor False"),
        ("allow", "optimizer.*", "allow is 'optimizer.*', not a list of patterns"),
        ("allow", [1], "allow is [1], not a list of patterns"),
        ("ring", 100, "ring is 100, not a Ring"),
        ("branch", "", "branch is '', not a name"),
        ("identity", "Ada", "identity is 'Ada', not an Identity"),
        ("warm_up", 3, "warm_up is 3, not a function"),
    ],
)
def test_bad_settings(name, value, text):
    with pytest.raises(UsageError) as caught:
        Settings(**{**DEFAULTS, name: value})
    assert caught.value.message == text
    assert (caught.value.hint == "every=None commits by call only") == (name == "every")


@pytest.mark.parametrize(
    "good",
    [
        {},
        {"every": None},
        {"every": 1, "every_seconds": 0.5},
        {"every_seconds": 600},
        {"replicate": 1},
        {"allow": ["optimizer.*"], "delta": True, "writer_threads": 1},
        {"ring": Ring(every=10, keep=2, max_bytes=2**30)},
    ],
)
def test_good_settings(good):
    settings = Settings(**{**DEFAULTS, **good})
    assert all(getattr(settings, name) == value for name, value in good.items())


@pytest.mark.parametrize("name", ["every", "keep", "max_bytes"])
@pytest.mark.parametrize("value", [0, 1.5, True, "4"])
def test_bad_rings(name, value):
    with pytest.raises(UsageError, match=f"{name} of a ring is"):
        Ring(**{name: value})


# A name that is not an option is that of a part, and has to look like one.

_NET, _LOSS = nn.Linear(2, 2), nn.MSELoss()


@pytest.mark.parametrize(
    ("name", "value", "text", "hint"),
    [
        ("evry", 5, "evry=5 is not an option", "did you mean every? "),
        ("evry", None, "evry=None is not an option", "did you mean every? "),
        ("keep_diverge", False, "keep_diverge=False is not an option", "did you mean keep_diverged? "),
        ("warmup", print, "is not an option", "did you mean warm_up? "),
        ("detector", _Stateful(), "is not an option", "did you mean detectors? "),
        ("alow", ["model.*"], "alow=['model.*'] is not an option", "did you mean allow? "),
        ("step", 3, "step=3 is neither an option nor an object with state", 'parts={"step": ...}'),
        ("name", "x", "name='x' is neither an option nor", 'parts={"name": ...}'),
        ("loss", _LOSS, "loss=MSELoss is neither an option nor", 'parts={"loss": ...}'),
        ("optimizer", torch.optim.SGD, "optimizer is the class SGD, not an object", "pass an instance"),
        ("model", len, "model is a builtins.builtin_function_or_method, which has no", "give it"),
        ("log", {"a": [1]}, "log={'a': [1]} is neither an option nor", 'parts={"log": ...}'),
    ],
)  # fmt: skip
def test_what_is_no_part_is_refused(tmp_path, name, value, text, hint):
    with pytest.raises(UsageError) as caught:
        Checkpointer(tmp_path / "run", **{"model": _NET, name: value})
    assert text in caught.value.message
    assert caught.value.hint.startswith(hint)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("path", [None, 3, "/proc/run"])
def test_a_path_that_is_no_folder(path):
    with pytest.raises(UsageError, match=re.escape(str(path))):
        Checkpointer(path, model=_NET)


def test_objects_with_state_are_parts_under_any_name():
    accepted = {
        "branch1": _NET, "loader": _Stateful(), "scaler": None, "model": nn.Flatten(), "w": torch.ones(2),
        "rngs": [torch.Generator()], "nets": {"a": _NET, "count": 1}, "data": DataLoader([1]),
        "sets": [DataLoader([1]), DataLoader([2])], "scheduler": _Stateful(),
    }  # fmt: skip
    assert join_parts(accepted, {"every": 5}, OPTIONS) == {**accepted, "every": 5}


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        (3, "not a dict of parts"),
        (["model"], "not a dict of parts"),
        ({1: 2}, "not a dict of parts"),
        ({"model": _NET}, "'model' is passed twice"),
    ],
)
def test_bad_parts(tmp_path, parts, text):
    with pytest.raises(UsageError, match=text):
        Checkpointer(tmp_path, model=_NET, parts=parts)


def test_reserved_names_are_said(tmp_path):
    with pytest.raises(UsageError, match="'watch' is a reserved name") as caught:
        Checkpointer(tmp_path, model=_NET, parts={"watch": 3})
    names = caught.value.hint.removeprefix("reserved names are ").split(", ")
    for name in names:
        with pytest.raises(UsageError, match=f"'{name}' is a reserved name"):
            Checkpointer(tmp_path, model=_NET, parts={name: 3})
        assert f"``{name}``" in Checkpointer.__doc__


def test_a_plain_value_is_a_part_if_it_is_meant(tmp_path):
    """The commit of an older run that took a mistyped option for a part can be resumed from."""
    with Checkpointer(tmp_path, model=_NET, every=1, parts={"evry": 5}) as ckpt:
        ckpt.step()
    with pytest.raises(ConflictError, match="evry is only in the stored state") as caught:
        Checkpointer(tmp_path, model=_NET, every=5)
    assert 'parts={"evry": ...} passes it, allow=["evry"] drops what is stored' in caught.value.hint
    for options in ({"parts": {"evry": 5}}, {"allow": ["evry"]}):
        with Checkpointer(tmp_path, model=_NET, every=5, **options) as ckpt:
            assert ckpt.step_count == 1


def test_one_detector_and_one_step_are_lists_of_one(tmp_path):
    ladder = rollback(min_steps_back=1, to="last", skip_batches=0)
    options = {"detectors": NotFinite(), "ladder": ladder, "every": 1}
    with Checkpointer(tmp_path, model=_NET, **options) as ckpt:
        ckpt.step(loss=1.0)
        ckpt.step(loss=1e30)
        assert ckpt.step(loss=math.nan).to_step == 2
    for wrong in (
        {"detectors": 5},
        {"detectors": NotFinite},
        {"ladder": rollback},
        {"ladder": "stop"},
    ):
        with pytest.raises(UsageError):
            Checkpointer(tmp_path, model=_NET, **wrong)
