"""mergekit itself, where it is installed, gives the same numbers."""

from __future__ import annotations

import numpy as np
import pytest

from mvc.merging.blend import Blend, make_strategy
from mvc.numbers.merge_methods.table import METHODS
from support.merging import tensor_of

torch = pytest.importorskip("torch")
pytest.importorskip("mergekit", reason="compares with mergekit, which is not installed")

from mergekit import merge_methods  # noqa: E402
from mergekit.architecture import WeightInfo  # noqa: E402
from mergekit.common import ImmutableMap, ModelReference  # noqa: E402
from mergekit.graph import Executor, Task  # noqa: E402
from mergekit.merge_methods.base import TensorDictWrapper  # noqa: E402

COMMON = {"slerp": {"t": 0.3}, "nearswap": {"t": 0.05}, "sce": {"select_topk": 0.4}}
EACH = {
    "weight": (0.7, 0.4, 0.9),
    "density": (0.5, 0.3, 0.6),
    "gamma": (0.1, 0.05, 0.2),
    "scale": (2,),
}
SEEDED = {"dare_linear", "dare_ties", "della", "della_linear"}


class Given(Task):
    """A tensor that is there already."""

    values: tuple[float, ...]
    shape: tuple[int, ...]

    def arguments(self):
        return {}

    def execute(self):
        return torch.tensor(self.values, dtype=torch.float64).reshape(self.shape)


def _model(number):
    return ModelReference.parse(f"model{number}")


def _mergekit(strategy, base, xs):
    arrays = [*([base] if base is not None else []), *xs]
    first = 0 if base is not None else 1
    tensors = {
        _model(first + number): Given(values=tuple(x.ravel().tolist()), shape=x.shape)
        for number, x in enumerate(arrays)
    }
    each = {
        _model(number + 1): ImmutableMap(data=dict(one)) for number, one in enumerate(strategy.each)
    }
    if base is not None:
        each[_model(0)] = ImmutableMap(data={})
    task = merge_methods.get(strategy.method.name).make_task(
        output_weight=WeightInfo(name="w"),
        tensors=TensorDictWrapper(tensors=ImmutableMap(data=tensors)),
        parameters=ImmutableMap(data=dict(strategy.common)),
        tensor_parameters=ImmutableMap(data=each),
        base_model=None if base is None else _model(0),
    )
    (found,) = [value for _, value in Executor(targets=[task]).run(quiet=True)]
    return found.numpy().astype(np.float64)


@pytest.mark.parametrize("name", METHODS)
def test_mergekit_gives_the_same(name):
    method = METHODS[name]
    count = method.most or 3
    each = [
        {
            key: values[number]
            for key, values in EACH.items()
            if key in {p.name for p in method.parameters}
        }
        for number in range(count)
    ]
    if name in SEEDED:  # its random numbers are others: all elements are kept
        each = [{**one, "density": 1.0} for one in each]
    strategy = make_strategy(name, COMMON.get(name, {}), each, has_base=method.base == "needed")
    random = np.random.default_rng(1)
    base = random.normal(size=(23, 19))
    xs = [base + random.normal(scale=0.3, size=base.shape) for _ in range(count)]
    old = base if method.base == "needed" else None
    tensors = [tensor_of(x, "F64") for x in xs]
    source = Blend(strategy, "w", tensors, None if old is None else tensor_of(old, "F64"))
    buffer = bytearray(source.size_bytes)
    source.read_into(0, memoryview(buffer))
    got = np.frombuffer(buffer).reshape(base.shape)
    # mergekit goes through float32 where it merges spherically.
    np.testing.assert_allclose(got, _mergekit(strategy, old, xs), rtol=1e-5, atol=1e-6)
