"""Merge methods as strategies of a merge: parameters from text, and which side is what."""

import numpy as np
import pytest

from mvc import NotFoundError, UsageError
from mvc.merging.strategies import Methods, parse_parameter
from mvc.merging.table import Decision, MergeRow, Outcome
from support.merging import tensor_of

BASE, OURS, THEIRS = (np.full((2, 2), value, np.float32) for value in (1, 2, 5))


def _row(base=BASE, *sides):
    tensors = [None if one is None else tensor_of(one, "F32") for one in (base, *sides)]
    outcome = Outcome.MODIFY_MODIFY if base is not None else Outcome.ADD_ADD
    return MergeRow("w", tensors[0], tuple(tensors[1:]), Decision(outcome, None))


def _values(tensor):
    return tensor.open()(0, tensor.size_bytes).view("f4").tolist()


def test_a_method_knows_ours_theirs_and_the_base():
    for name, told, expected in [
        ("linear", {}, 3.5),
        ("linear", {"weight": [0.25, 0.75]}, 4.25),
        ("task_arithmetic", {}, 6),
        ("task_arithmetic", {"lambda": 0.5}, 3.5),
        ("slerp", {"t": 0.0}, 2),
        ("slerp", {}, 3.5),
        ("slerp", {"t": 1.0}, 5),
        ("nearswap", {"t": 3}, 5),
    ]:
        methods = Methods(2, told)
        methods.check([name])
        merged = methods.resolve(name, "m.safetensors", _row(BASE, OURS, THEIRS))
        assert _values(merged) == [expected] * 4
        assert (merged.name, merged.path, merged.view.dtype, merged.id) == (
            "w",
            "m.safetensors",
            "F32",
            None,
        )


def test_a_side_that_lacks_a_tensor_has_no_weight_in_it():
    methods = Methods(3, {"weight": [1, 2, 3]})
    merged = methods.resolve("linear", "m", _row(None, OURS, None, THEIRS))
    assert _values(merged) == [(2 * 1 + 5 * 3) / 4] * 4


def test_what_two_sides_added_has_no_base():
    with pytest.raises(UsageError, match="'w' of m was added on both sides, and ties needs a base"):
        Methods(2, {}).resolve("ties", "m", _row(None, OURS, THEIRS))


@pytest.mark.parametrize(
    ("names", "told", "message"),
    [
        (["tie"], {}, "unknown merge method 'tie'"),
        (["linear"], {"density": 1}, "linear has no parameter 'density'"),
        ([], {"density": 1}, "a merge has no parameter 'density'"),
        (["linear"], {"weight": [1]}, "`weight` has 1 values for 2 sides"),
        (["ties"], {"lambda": [1, 2]}, "`lambda` of ties takes one value for all sides"),
        (["passthrough"], {}, "passthrough merges exactly 1 model, not 2"),
        (["nearswap"], {}, "nearswap needs the parameter `t`"),
    ],
)
def test_wrong_parameters_are_refused_before_anything_is_read(names, told, message):
    with pytest.raises((UsageError, NotFoundError)) as caught:
        Methods(2, told).check(names)
    assert message in str(caught.value)


def test_a_parameter_may_belong_to_one_of_several_methods():
    Methods(2, {"density": 0.5, "t": 0.1}).check(["ties", "slerp"])


def test_parameters_are_numbers_switches_or_one_number_a_side():
    assert parse_parameter("density=0.5") == ("density", 0.5)
    assert parse_parameter("max_iter=7") == ("max_iter", 7)
    assert parse_parameter("normalize=false") == ("normalize", False)
    assert parse_parameter("weight=0.3,0.7") == ("weight", [0.3, 0.7])


@pytest.mark.parametrize(
    "text", ["density", "=1", "density=", "density=half", "t=nan", "t=1,", "normalize=False"]
)
def test_mistyped_parameters_are_errors(text):
    with pytest.raises(UsageError):
        parse_parameter(text)
