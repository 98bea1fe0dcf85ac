"""mergekit itself, where it is installed, gives the same numbers."""

import numpy as np
import pytest

from mvc.merging.blend import Blend, make_strategy
from mvc.numbers.merge_methods.table import METHODS
from support.merging import tensor_of

torch = pytest.importorskip("torch")
pytest.importorskip("mergekit", reason="compares with mergekit, which is not installed")

from mergekit import merge_methods  # noqa: E402

if not hasattr(merge_methods, "merge_tensors"):
    pytest.skip("compares with mergekit 0.1.5 or later", allow_module_level=True)

COMMON = {"slerp": {"t": 0.3}, "nearswap": {"t": 0.05}, "sce": {"select_topk": 0.4}}
EACH = {
    "weight": (0.7, 0.4, 0.9),
    "density": (0.5, 0.3, 0.6),
    "gamma": (0.1, 0.05, 0.2),
    "scale": (2,),
}
SEEDED = {"dare_linear", "dare_ties", "della", "della_linear"}


def _mergekit(strategy, base, xs):
    arrays = [*([base] if base is not None else []), *xs]
    names = [f"model {number}" for number in range(len(arrays))]
    own = {
        key: dict(zip(names[-len(xs) :], (one[key] for one in strategy.each), strict=True))
        for key in strategy.each[0]
    }
    found = merge_methods.merge_tensors(
        [torch.tensor(one) for one in arrays],
        strategy.method.name,
        parameters={**strategy.common, **own},
        ids=names,
        base_index=None if base is None else 0,
        name="w",
    )
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
