"""Vocabularies of several models: rows of embeddings and heads, aligned by the tokens they stand for.

The rows of a token that a model lacks are made as mergekit makes them: from the only model that has
it, or from the base, or as the mean of all that have it. Rows of no token (padding, holes, tokens that no
model has a row for) are the mean of the model's rows that tokens have, as Hewitt suggests ("Initializing
new word embeddings for pretrained language models", 2021).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mvc.dtypes import get_dtype, numpy_dtype
from mvc.errors import NotFoundError, UnsupportedError, UsageError
from mvc.formats.layout import single_tensor
from mvc.formats.tokenizer import Vocabulary, map_rows
from mvc.merging.blend import can_blend
from mvc.sources import ByteSource
from mvc.workspace.tensors import ModelTensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mvc.merging.recipe import TokenizerChoice
    from mvc.workspace.tensors import Reader

    Rows = NDArray[np.int64]

_BLOCK_BYTES = 2**22
_BLOCKS_KEPT = 64
_PARTS = (
    "embed_tokens",
    "wte",
    "word_embeddings",
    "tok_embeddings",
    "embed_in",
    "embeddings.weight",
)
_HEADS = ("lm_head", "embed_out", "output.weight", "output.bias", "score_head", "cls.predictions")


def find_row_count(tensors: Mapping[str, ModelTensor]) -> int | None:
    """Return how many tokens the embedding of a model has rows for, or None if none is found."""
    for part in _PARTS:
        found = [
            tensor
            for name, tensor in tensors.items()
            if part in name and len(tensor.view.shape) > 1
        ]
        if found:
            return found[0].view.shape[0]
    return None


def is_vocabulary(name: str, tensor: ModelTensor, rows: int | None) -> bool:
    """Return whether a tensor has a row for every token, given the rows of the embedding."""
    return is_row_name(name) and tensor.view.shape[:1] == (rows,)


def is_row_name(name: str) -> bool:
    """Return whether a tensor may have a row for every token, by its name."""
    return any(part in name for part in (*_PARTS, *_HEADS))


@dataclass(frozen=True, slots=True)
class Alignment:
    """Where the rows of a merge come from."""

    vocabulary: Vocabulary  # tokens of the result
    rows: int  # rows of its embedding: at least one for every token
    places: Mapping[str, Rows]  # model → for every row of the result, its row there, or -1
    host: str  # the model whose tokens count first
    base: str | None  # the base model, whose rows the others take for what they lack, or None

    def align(self, model: str, tensors: Mapping[str, ModelTensor]) -> ModelTensor:
        """Return one model's tensor with the rows of the result; missing ones may come from the ``tensors`` of others."""
        own = tensors[model]
        identity = np.arange(self.rows)
        if own.view.shape[0] == self.rows and np.array_equal(self.places[model], identity):
            return own
        shape = (self.rows, *own.view.shape[1:])
        for name, other in tensors.items():
            if other.view.shape[1:] != own.view.shape[1:]:
                raise UsageError(
                    f"rows of {own.name!r} are {list(own.view.shape[1:])} in {model} "
                    f"and {list(other.view.shape[1:])} in {name}"
                )
            if (self.places[model] < 0).any() and not can_blend(other.view.dtype):
                raise UnsupportedError(
                    f"tensor {own.name!r} is {other.view.dtype} in {name}: "
                    "no row can be made for a token that is missing"
                )
        segment = single_tensor(own.name, own.view.dtype, shape, 0)
        source = _AlignedRows(self, model, tensors, segment.size_bytes)
        return ModelTensor(own.path, segment.tensors[0], segment, source, 0, None, 0)


def align_vocabularies(
    choice: TokenizerChoice,
    vocabularies: Mapping[str, Vocabulary | None],
    row_counts: Mapping[str, int | None],
    host: str,
    base: str | None,
    *,
    least_rows: int = 0,
) -> Alignment:
    """Choose the tokens of a merge and find their rows in every model.

    A model without a tokenizer is taken to have that of the ``host``, whose tokens count first. ``row_counts``
    are the rows of the embeddings. NotFoundError: no tokenizer for what the choice names.
    """
    source = host if choice.source in {"union", "base"} else choice.source
    first = vocabularies.get(source)
    if first is None:
        raise NotFoundError(
            f"{source} has no tokenizer whose vocabulary can be read",
            hint="it needs tokenizer.json, tokenizer.model, vocab.json or vocab.txt beside it",
        )
    known = {}
    for name, own in vocabularies.items():
        known[name] = own or vocabularies[host] or first
        limit = row_counts.get(name)
        if limit is not None and known[name].size > limit:
            # Tokenizers also name tokens that the embedding has no row for: those are left out.
            ids = {token: row for token, row in known[name].ids.items() if row < limit}
            known[name] = Vocabulary(ids, limit)
    result = _join(first, known) if choice.source == "union" else first
    multiple = choice.pad_to_multiple_of
    rows = -(-max(result.size, least_rows) // multiple) * multiple
    places = {}
    for name, one in known.items():
        mapped = np.full(rows, -1, np.int64)
        mapped[: result.size] = map_rows(one, result)
        places[name] = mapped
    return Alignment(result, rows, places, host, base)


def _join(first: Vocabulary, others: Mapping[str, Vocabulary]) -> Vocabulary:
    """Return the first vocabulary, and what others have more, in their order."""
    ids = dict(first.ids)
    size = first.size
    for one in others.values():
        for token, _ in sorted(one.ids.items(), key=lambda pair: pair[1]):
            if token not in ids:
                ids[token] = size
                size += 1
    return Vocabulary(ids, size)


def find_faults(
    vocabularies: Mapping[str, Vocabulary | None], row_counts: Mapping[str, int | None]
) -> list[str]:
    """Describe the tokens without a row in a model's embedding."""
    faults = []
    for name, vocabulary in vocabularies.items():
        rows = row_counts.get(name)
        if vocabulary is None or rows is None or vocabulary.size <= rows:
            continue
        lost = sum(1 for row in vocabulary.ids.values() if row >= rows)
        tokens = "1 token" if lost == 1 else f"{lost:,} tokens"
        faults.append(
            f"the tokenizer of {name} has ids up to {vocabulary.size - 1:,}, and its embedding {rows:,} rows: "
            f"{tokens} without one"
        )
    return faults


def check_same(
    vocabularies: Mapping[str, Vocabulary | None],
    models: Iterable[str],
    hint: str = '"tokenizer_source: union" or "base" in the recipe aligns the rows by token',
) -> None:
    """Check that no row stands for different tokens in models whose rows are to be averaged."""
    tokens: dict[int, tuple[str, str]] = {}  # row → the first token there, and whose
    for name in models:
        known = vocabularies.get(name)
        own = {} if known is None else {row: (token, name) for token, row in known.ids.items()}
        different = [
            row for row, (token, _) in own.items() if tokens.get(row, (token,))[0] != token
        ]
        if different:
            row = min(different)
            token, first_name = tokens[row]
            more = f", and so are {len(different) - 1:,} more" if len(different) > 1 else ""
            raise UsageError(
                f"the tokenizers of {first_name} and {name} differ: row {row:,} is {token!r} in one "
                f"and {own[row][0]!r} in the other{more}",
                hint=hint,
            )
        tokens = own | tokens


class _AlignedRows(ByteSource):
    """One model's rows in the order of the result's tokens."""

    def __init__(
        self, alignment: Alignment, model: str, tensors: Mapping[str, ModelTensor], size_bytes: int
    ) -> None:
        self._places, self._model, self._base = alignment.places, model, alignment.base
        self._tensors = tensors
        self._own = tensors[model]
        self._size_bytes = size_bytes
        self._row_bytes = size_bytes // alignment.rows if alignment.rows else 0
        self._blocks = {name: _Blocks(tensor) for name, tensor in tensors.items()}
        self._mean: NDArray[Any] | None = None
        self._lock = threading.Lock()

    @property
    def size_bytes(self) -> int:
        """Bytes of all rows."""
        return self._size_bytes

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill the buffer from that offset of the aligned rows."""
        width = self._row_bytes
        if not buffer or not width:
            return
        first, last = offset // width, -(-(offset + len(buffer)) // width)
        rows = np.empty((last - first, width), np.uint8)
        self._read_own(first, rows)
        for row in range(first, last):
            if self._places[self._model][row] < 0:
                rows[row - first] = self._make(row).view(np.uint8)
        start = offset - first * width
        buffer[:] = rows.reshape(-1)[start : start + len(buffer)].data

    def _read_own(self, first: int, rows: NDArray[np.uint8]) -> None:
        """Read the rows that the model has, neighbours in one go."""
        places = self._places[self._model][first : first + len(rows)]
        edges = np.flatnonzero((np.diff(places) != 1) | (places[:-1] < 0)) + 1
        starts, ends = [0, *edges.tolist()], [*edges.tolist(), len(places)]
        for start, end in zip(starts, ends, strict=True):
            place = int(places[start])
            if place >= 0:
                data = self._blocks[self._model].read(
                    place * self._row_bytes, (end - start) * self._row_bytes
                )
                rows[start:end] = data.reshape(end - start, -1)

    def _make(self, row: int) -> NDArray[Any]:
        """Return a row that the model lacks."""
        donors = [name for name in self._tensors if self._places[name][row] >= 0]
        if self._base in donors:
            donors = [self._base]
        scalar = numpy_dtype(get_dtype(self._own.view.dtype))
        assert scalar is not None
        if not donors:
            return self._mean_row(scalar)
        values = [self._row_of(name, int(self._places[name][row])) for name in donors]
        mean: NDArray[Any] = np.mean(values, axis=0).astype(scalar)
        return mean

    def _row_of(self, name: str, row: int) -> NDArray[np.float64]:
        scalar = numpy_dtype(get_dtype(self._tensors[name].view.dtype))
        assert scalar is not None
        tensor = self._tensors[name]
        width = tensor.size_bytes // tensor.view.shape[0]
        values: NDArray[np.float64] = (
            self._blocks[name].read(row * width, width).view(scalar).astype(np.float64)
        )
        return values

    def _mean_row(self, scalar: np.dtype[Any]) -> NDArray[Any]:
        with self._lock:
            if self._mean is None:
                places = np.sort(self._places[self._model])
                places = places[places >= 0]
                total = np.zeros(self._row_bytes // scalar.itemsize)
                for row in places.tolist():
                    total += self._row_of(self._model, row)
                self._mean = (total / max(len(places), 1)).astype(scalar)
            return self._mean


class _Blocks:
    """A tensor read in blocks; the last ones are kept, because rows lie anywhere."""

    def __init__(self, tensor: ModelTensor) -> None:
        self._tensor = tensor
        self._reader: Reader | None = None
        self._kept: OrderedDict[int, NDArray[np.uint8]] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, offset: int, size_bytes: int) -> NDArray[np.uint8]:
        """Return some bytes."""
        with self._lock:
            parts = []
            while size_bytes:
                number, inside = divmod(offset, _BLOCK_BYTES)
                part = self._block(number)[inside : inside + size_bytes]
                parts.append(part)
                offset, size_bytes = offset + len(part), size_bytes - len(part)
            return np.concatenate(parts) if len(parts) > 1 else np.array(parts[0])

    def _block(self, number: int) -> NDArray[np.uint8]:
        if number in self._kept:
            self._kept.move_to_end(number)
        else:
            self._reader = self._reader or self._tensor.open()
            start = number * _BLOCK_BYTES
            size_bytes = min(_BLOCK_BYTES, self._tensor.size_bytes - start)
            while len(self._kept) >= _BLOCKS_KEPT:
                self._kept.popitem(last=False)
            self._kept[number] = self._reader(start, size_bytes)
        return self._kept[number]
