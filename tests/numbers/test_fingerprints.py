import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.comparison.rearranged import find_rearrangement, take_fingerprints


def take(matrix, step=7):
    blocks = (matrix[at : at + step] for at in range(0, len(matrix), step))
    return take_fingerprints(blocks, matrix.shape[1])


def compare(old, new):
    return find_rearrangement(take(old), take(new, step=3))


@given(rows=st.integers(3, 40), columns=st.integers(3, 40), seed=st.integers(0, 1000))
def test_every_order_is_recognised(rows, columns, seed):
    rng = np.random.default_rng(seed)
    matrix = np.arange(rows * columns, dtype=np.uint32).reshape(rows, columns)
    high, wide = np.roll(np.arange(rows), 1), np.roll(np.arange(columns), 1)
    assert compare(matrix, matrix.T) == "transposed"
    assert compare(matrix, matrix[high]) == "rows permuted"
    assert compare(matrix, matrix[:, wide]) == "columns permuted"
    assert compare(matrix, matrix[high][:, wide]) == "rows and columns permuted"
    shuffled = rng.permutation(matrix.reshape(-1)).reshape(rows, columns)
    assert compare(matrix, shuffled) is not None
    changed = matrix[high].copy()
    changed[0, 0] += 1
    assert compare(matrix, changed) is None


def test_vectors_and_swapped_pairs():
    vector = np.arange(50, dtype=np.uint16)[:, None]
    assert compare(vector, vector[::-1]) == "elements permuted"
    matrix = np.arange(400, dtype=np.uint64).reshape(20, 20)
    swapped = matrix.copy()
    swapped[0, 0], swapped[5, 5] = matrix[5, 5], matrix[0, 0]
    assert compare(matrix, swapped) == "elements in another order"


@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.uint32, np.uint64])
def test_words_of_any_width(kind):
    matrix = np.arange(200).astype(kind).reshape(10, 20)
    assert compare(matrix, matrix[::-1]) == "rows permuted"
    assert compare(matrix, matrix + kind(1)) is None
