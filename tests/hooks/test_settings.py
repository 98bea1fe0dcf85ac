"""Settings that make no sense are refused at once, in one clear line."""

import inspect
import math
from dataclasses import fields

import pytest

from mvc import UsageError
from mvc_hooks import Checkpointer
from mvc_hooks.settings import Settings
from mvc_hooks.snapshot.ring import Ring

pytestmark = pytest.mark.torch

_PARAMETERS = inspect.signature(Checkpointer).parameters
DEFAULTS = {one.name: _PARAMETERS[one.name].default for one in fields(Settings)}


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("every", 0, "every is 0, not a whole number from 1 on"),
        ("every", -5, "every is -5, not a whole number from 1 on"),
        ("every", True, "every is True, not a whole number from 1 on"),
        ("every", 1.5, "every is 1.5, not a whole number from 1 on"),
        ("every", "1000", "every is '1000', not a whole number from 1 on"),
        ("every_seconds", 0, "every_seconds is 0, not a positive number of seconds"),
        ("every_seconds", -1.0, "every_seconds is -1.0, not a positive number of seconds"),
        ("every_seconds", math.nan, "every_seconds is nan, not a positive number of seconds"),
        ("every_seconds", math.inf, "every_seconds is inf, not a positive number of seconds"),
        ("every_seconds", True, "every_seconds is True, not a positive number of seconds"),
        ("every_seconds", "60", "every_seconds is '60', not a positive number of seconds"),
        ("in_flight", 0, "in_flight is 0, not a whole number from 1 on"),
        ("in_flight", None, "in_flight is None, not a whole number from 1 on"),
        ("healthy_after", -1, "healthy_after is -1, not a whole number from 1 on"),
        ("writer_threads", 0, "writer_threads is 0, not a whole number from 1 on"),
        ("when_behind", "block", "when_behind is 'block', none of wait, skip, sync"),
        ("when_behind", None, "when_behind is None, none of wait, skip, sync"),
        ("on_failure", "ignore", "on_failure is 'ignore', none of raise, continue"),
        ("delta", "yes", "delta is 'yes', neither True nor False"),
        ("signals", 1, "signals is 1, neither True nor False"),
        ("keep_diverged", None, "keep_diverged is None, neither True nor False"),
        ("allow", "optimizer.*", "allow is 'optimizer.*', not a list of patterns"),
        ("allow", [1], "allow is [1], not a list of patterns"),
        ("allow", None, "allow is None, not a list of patterns"),
        ("ring", 100, "ring is 100, not a Ring"),
    ],
)
def test_bad_settings(name, value, text):
    with pytest.raises(UsageError) as caught:
        Settings(**{**DEFAULTS, name: value})
    assert caught.value.message == text


def test_a_hint_says_how_to_commit_by_call_only():
    with pytest.raises(UsageError) as caught:
        Settings(**{**DEFAULTS, "every": 0})
    assert caught.value.hint == "every=None commits by call only"


@pytest.mark.parametrize(
    "good",
    [
        {},
        {"every": None},
        {"every": 1, "every_seconds": 0.5},
        {"every_seconds": 600},
        {"allow": ["optimizer.*"], "delta": True, "writer_threads": 1},
        {"ring": Ring(every=10, keep=2, max_bytes=2**30)},
    ],
)
def test_good_settings(good):
    settings = Settings(**{**DEFAULTS, **good})
    assert all(getattr(settings, name) == value for name, value in good.items())


@pytest.mark.parametrize("name", ["every", "keep", "max_bytes"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "4"])
def test_bad_rings(name, value):
    with pytest.raises(UsageError, match=f"{name} of a ring is"):
        Ring(**{name: value})
