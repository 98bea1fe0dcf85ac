"""A layout made along the plan of an earlier one is the layout made from nothing, to the byte."""

import copy
import gc
import weakref
from collections import Counter, OrderedDict, defaultdict, deque

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mvc.errors import UnsupportedError, UsageError
from mvc.states import layout as state_layout
from mvc.states.layout import layout_state
from mvc.states.state import encode_state
from support.states import read_all


def fill(layout):
    """Return the image of a layout, every byte of which but padding comes from a part."""
    image = bytearray(b"\xa5" * layout.size_bytes)
    for part in layout.parts:
        part.copy_into(memoryview(image))
    return {file.path: bytes(image[file.offset :][: file.size_bytes]) for file in layout.files}


def assert_as_anew(state, plan):
    """Check a layout along a plan against the files of the state; return it."""
    layout = layout_state(state, plan)
    anew = layout_state(state)
    assert layout.files == anew.files
    assert layout.size_bytes == anew.size_bytes
    assert fill(layout) == {file.path: read_all(file.source) for file in encode_state(state)}
    return layout


def was_followed(monkeypatch, state, plan):
    """Tell whether a plan was of use."""
    with monkeypatch.context() as patch:
        patch.setattr(state_layout, "_layout_from_scratch", lambda *_: None)
        return layout_state(state, plan) is not None


SCALARS = (
    st.none()
    | st.booleans()
    | st.sampled_from(
        [0, 1, 2**64, 0.0, -0.0, 1.0, float("nan"), float("inf"), "", "a\ud800", "x" * 150]
    )
    | st.binary(max_size=3)
    | st.sampled_from([range(3), slice(1), torch.float32, torch.Size([2]), np.float32(0.5), 1j])
)
PLAIN = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=2).map(tuple)
        | st.dictionaries(st.sampled_from(["a", "b", "$", 0, True, (1,)]), inner, max_size=3)
        | st.lists(st.floats(), max_size=3).map(deque)
        | st.frozensets(st.integers(0, 3))
    ),
    max_leaves=4,
)
FORMS = (
    *("vector", "matrix", "half", "scalar", "empty", "transposed", "sliced", "parameter", "grad"),
    *("conj", "numpy", "fortran", "sparse", "bytes", "shared", "view", "long"),
)


def make_array(form, seed, buffer):
    """Return an array of that form; those that are shared lie in ``buffer``."""
    rows = torch.arange(12, dtype=torch.float32).reshape(3, 4) + seed
    made = {
        "vector": rows[0].clone,
        "matrix": lambda: rows,
        "half": rows.half,
        "scalar": rows[1, 1].clone,
        "empty": lambda: torch.empty(0, 3),
        "transposed": lambda: rows.T,
        "sliced": lambda: rows[:, 1:3],
        "parameter": lambda: torch.nn.Parameter(rows),
        "grad": rows.requires_grad_,
        "conj": lambda: rows.to(torch.complex64).conj(),
        "numpy": rows.numpy,
        "fortran": lambda: np.asfortranarray(rows.numpy()),
        "sparse": rows.to_sparse,
        "bytes": lambda: bytes([seed]) * 2000,
        "shared": lambda: buffer,
        "view": lambda: buffer[seed % 3 :],
        "long": lambda: torch.full((5,), seed),
    }
    return made[form]()


ARRAYS = st.tuples(st.just("array"), st.sampled_from(FORMS), st.integers(0, 3))
KINDS = ("dict", "ints", "mixed", "OrderedDict", "Counter", "defaultdict", "list", "tuple", "deque")
TREES = st.recursive(
    ARRAYS | st.tuples(st.just("plain"), PLAIN, st.just(0)),
    lambda inner: st.tuples(st.sampled_from(KINDS), st.lists(inner, min_size=1, max_size=4), PLAIN),
    max_leaves=8,
)
STATES = st.dictionaries(st.sampled_from(["model", "Model", "rng", "step"]), TREES, min_size=1)


def build(tree, buffer):
    """Return the live value of a tree; every call makes new objects."""
    kind, content, extra = tree
    if kind == "array":
        return make_array(content, extra, buffer)
    if kind == "plain":
        return copy.deepcopy(content)
    items = [build(item, buffer) for item in content]
    if kind in ("list", "tuple", "deque"):
        return {"list": list, "tuple": tuple, "deque": deque}[kind](items)
    keys = {"ints": [0, 1, 2, 3], "mixed": [True, 2, "2", (1,)]}.get(kind, ["w", "b", "$", "0"])
    pairs = dict(zip(keys, items, strict=False))
    if kind == "OrderedDict":
        made = OrderedDict(pairs)
        made._metadata = copy.deepcopy(extra)
        return made
    if kind == "defaultdict":
        return defaultdict(list, pairs)
    return Counter(pairs) if kind == "Counter" else pairs


def build_state(trees):
    buffer = torch.arange(6, dtype=torch.float32)
    return {key: build(tree, buffer) for key, tree in trees.items()}


@st.composite
def changed(draw, tree):
    """Return a tree with some of it replaced: values, forms, kinds, order or nothing."""
    if draw(st.integers(0, 5)) == 0:
        return draw(TREES)
    kind, content, extra = tree
    if kind == "array":
        return (kind, content, draw(st.integers(0, 3)))
    if kind == "plain":
        return (kind, draw(st.just(content) | PLAIN), extra)
    items = [draw(changed(item)) for item in content]
    return (kind, draw(st.just(items) | st.permutations(items)), draw(st.just(extra) | PLAIN))


@st.composite
def pairs(draw):
    first = draw(STATES)
    return first, {key: draw(changed(tree)) for key, tree in first.items()}


def try_build(trees):
    state = build_state(trees)
    try:
        return state, layout_state(state)
    except UnsupportedError:
        return state, None


@given(pairs())
def test_any_state_along_the_plan_of_another(trees):
    _, layout = try_build(trees[0])
    if layout is None:
        return
    plan = layout.plan
    state, anew = try_build(trees[1])
    if anew is None:
        with pytest.raises(UnsupportedError) as expected:
            layout_state(state)
        with pytest.raises(UnsupportedError) as raised:
            layout_state(state, plan)
        assert str(raised.value) == str(expected.value)
        return
    then = assert_as_anew(state, plan)
    assert_as_anew(build_state(trees[0]), then.plan)  # and back again
    assert_as_anew(build_state(trees[0]), plan)


@given(STATES)
def test_the_same_state_at_other_addresses_is_followed(trees):
    _, layout = try_build(trees)
    if layout is None or layout.plan is None:
        return
    with pytest.MonkeyPatch.context() as patch:
        state = build_state(trees)
        assert was_followed(patch, state, layout.plan)
    assert_as_anew(state, layout.plan)


def make_training():
    """Return the state of a small run, with a tie, an optimizer, and scalars that change."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    model[2].weight = model[0].weight
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(4)).sum().backward()
    optimizer.step()

    def capture(step, **other):
        return {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "step": step,
            "rng": [torch.get_rng_state(), np.random.default_rng(0).bytes(8)],
            **other,
        }

    return model, optimizer, capture


def test_a_run_is_followed_from_step_to_step(monkeypatch):
    model, optimizer, capture = make_training()
    plan = layout_state(capture(0)).plan
    for step in range(1, 4):
        model(torch.ones(4)).sum().backward()
        optimizer.step()
        optimizer.param_groups[0]["lr"] *= 0.9
        state = capture(step)
        assert was_followed(monkeypatch, state, plan)
        plan = assert_as_anew(state, plan).plan


def test_lists_of_numbers_may_grow(monkeypatch):
    _, _, capture = make_training()
    plan = layout_state(capture(0, losses=[])).plan
    for losses in ([0.0], [0.0, -0.0], [0.0, -0.0, float("nan")], [0, 1], {"kind": "list"}):
        state = capture(1, losses=losses)
        assert was_followed(monkeypatch, state, plan)
        plan = assert_as_anew(state, plan).plan


@pytest.mark.parametrize(
    ("old", "new"),
    [(1, True), (1, 1.0), (0.0, -0.0), (0.0, 0), (None, False), ("1", 1), ((1,), [1]), ({}, [])],
)
def test_equal_scalars_of_other_types_are_not_the_same(old, new, monkeypatch):
    def make(value):
        return {"model": {"w": torch.ones(2), "x": value}, "extra": [value]}

    plan = layout_state(make(old)).plan
    assert was_followed(monkeypatch, make(new), plan)
    assert_as_anew(make(new), plan)


@pytest.mark.parametrize(("old", "new"), [(1, True), ("1", 1), ("a", np.str_("a"))])
def test_equal_keys_of_other_types_are_not_followed(old, new, monkeypatch):
    plan = layout_state({"model": {old: torch.ones(2)}}).plan
    assert not was_followed(monkeypatch, {"model": {new: torch.ones(2)}}, plan)


@pytest.mark.parametrize(
    ("make", "is_same"),
    [
        (lambda w: w.clone(), True),
        (lambda w: w.clone().requires_grad_(), False),
        (lambda w: torch.nn.Parameter(w, requires_grad=False), False),
        (lambda w: w.T, False),
        (lambda w: w.double(), False),
        (lambda w: w.view(torch.int32), False),
        (lambda w: w[:1], False),
        (lambda w: torch.complex(w, w).imag, False),
        (torch._neg_view, False),
        (lambda w: w.to_sparse(), False),
        (lambda w: w.to_mkldnn() if torch.backends.mkldnn.is_available() else w.T, False),
        (
            lambda w: torch._nested_view_from_buffer(
                w.reshape(-1), torch.tensor([[3, 3]]), torch.tensor([[3, 1]]), torch.tensor([0])
            ),
            False,
        ),
        (lambda w: w.to("meta"), False),
        (lambda w: w.numpy(), False),
        (lambda w: 1.0, False),
    ],
)
def test_a_tensor_that_is_another_is_not_followed(make, is_same, monkeypatch):
    weight = torch.arange(9, dtype=torch.float32).reshape(3, 3)
    plan = layout_state({"model": {"w": weight, "b": torch.ones(3)}}).plan
    state = {"model": {"w": make(weight), "b": torch.ones(3)}}
    assert was_followed(monkeypatch, state, plan) is is_same


def test_a_storage_that_is_too_short_is_refused():
    weight = torch.ones(9)
    plan = layout_state({"model": {"w": weight}}).plan
    weight.untyped_storage().resize_(8)
    with pytest.raises(UnsupportedError, match="storage holds 8 of 36 bytes"):
        layout_state({"model": {"w": weight}}, plan)


def test_new_and_lost_ties_are_not_followed(monkeypatch):
    first, second = torch.ones(6), torch.ones(6)
    apart = {"model": {"a": first, "b": second}}
    tied = {"model": {"a": first, "b": first}}
    flat = torch.ones(9)
    crossed = {"model": {"a": flat[:6], "b": flat[3:]}}
    plans = [layout_state(state).plan for state in (apart, tied)]
    assert [was_followed(monkeypatch, tied, plan) for plan in plans] == [False, True]
    assert [was_followed(monkeypatch, apart, plan) for plan in plans] == [True, False]
    assert layout_state(crossed).plan is None  # their union is an array of its own
    for plan in plans:
        for state in (apart, tied, crossed):
            assert_as_anew(state, plan)


def test_views_that_moved_within_their_base_are_not_followed(monkeypatch):
    base = torch.arange(8.0)

    def make(start):
        return {"model": {"base": base, "view": base[start : start + 2]}}

    plan = layout_state(make(1)).plan
    assert was_followed(monkeypatch, make(1), plan)
    assert not was_followed(monkeypatch, make(2), plan)
    assert_as_anew(make(2), plan)


def test_a_state_that_contains_itself_is_refused():
    state = {"model": {"w": torch.ones(1), "inner": {"w": torch.ones(1), "x": 1}}}
    plan = layout_state(state).plan
    state["model"]["inner"]["x"] = state
    with pytest.raises(UnsupportedError, match="contains itself"):
        layout_state(state, plan)


def test_what_is_no_state_is_refused():
    plan = layout_state({}).plan
    with pytest.raises(UsageError):
        layout_state([], plan)
    with pytest.raises(UnsupportedError, match=r'state\["x"\] is a function'):
        layout_state({"x": print}, plan)


def test_a_plan_keeps_no_memory_of_the_state():
    _, _, capture = make_training()
    state = capture(0)
    state["array"] = np.ones(3)
    watched = [weakref.ref(state["optimizer"]["state"][0]["exp_avg"]), weakref.ref(state["array"])]
    plan = layout_state(state, layout_state(state).plan).plan
    assert plan is not None
    del state, capture, _
    gc.collect()
    assert [ref() for ref in watched] == [None, None]
