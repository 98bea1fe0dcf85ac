"""Compares embeddings and heads by the tokens of their rows, if the tokenizer changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from blake3 import blake3

from mvc.comparison.case import ComparisonVerdict, count, enumerate_words
from mvc.comparison.gather import gather
from mvc.comparison.kinds import find_kind
from mvc.comparison.pairs import TensorChange, TensorPair
from mvc.errors import FormatError, ReleasedError
from mvc.formats.tokenizer import Vocabulary, map_rows
from mvc.merging.companions import read_companions, read_vocabulary
from mvc.merging.tokenizer import Alignment, find_faults, find_row_count
from mvc.numbers.statistics import TensorStatistics

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mvc.ids import GitId
    from mvc.workspace.context import Context
    from mvc.workspace.models import Model

    Rows = NDArray[np.int64]

_TABLES = {"embedding", "head"}
ROWS = b"tokens"
"""The kind of kept statistics; their key is that of the tensors', and a hash of which rows are compared."""
_OLD, _NEW = "the old model", "the new model"


@dataclass(frozen=True, slots=True)
class TokenChanges:
    """How the tokens of two models differ.

    Attributes:
        common: tokens that both have.
        added: tokens that only the new one has.
        removed: tokens that only the old one has.
        moved: common tokens whose rows are others now.
        statistics: embedding or head → how the rows of common tokens differ, where some moved;
            None if they are equal.
        faults: tokens of the new model that have no row, in words.
    """

    common: int
    added: int
    removed: int
    moved: int
    statistics: Mapping[str, TensorStatistics | None]
    faults: tuple[str, ...] = ()

    def judge(self) -> Iterator[ComparisonVerdict]:
        """Yield what that means."""
        for fault in self.faults:
            yield ComparisonVerdict("tokenizer-fault", fault, "bad")
        counts = ((self.added, "added"), (self.removed, "removed"), (self.moved, "at other ids"))
        words = [f"{count(number, 'token')} {what}" for number, what in counts if number]
        if words:
            yield ComparisonVerdict("tokenizer", f"the tokenizer changed: {', '.join(words)}")
        same = [name for name, one in self.statistics.items() if one is None or not one.changed]
        if same:
            text = f"by token, every row is the same: {enumerate_words(same)}"
            yield ComparisonVerdict("tokens-same", text, tensors=tuple(same))
        for name, one in self.statistics.items():
            if one is not None and one.changed and one.sigma is not None:
                text = f"by token, sigma is {one.sigma:.2g}: {name}"
                yield ComparisonVerdict("tokens-changed", text, tensors=(name,))


def compare_tokens(
    context: Context | None,
    models: tuple[Model, Model],
    changes: Sequence[TensorChange],
    *,
    threads: int,
) -> TokenChanges | None:
    """Return how the tokens differ; None if there is no sign of a change, or a side has none.

    Tokenizers are read only if their files differ, or an embedding or head has other rows.
    """
    tables = [change for change in changes if _is_table(change)]
    is_resized = any(map(_is_resized, tables))
    blobs = [_find_blobs(model) for model in models]
    if blobs[0] == blobs[1] is not None and not is_resized:
        return None
    files = [_read_files(context, model) for model in models]
    if not all(files) or (files[0] == files[1] and not is_resized):
        return None
    try:
        old, new = (read_vocabulary(companions) for companions in files)
    except FormatError:
        return None
    if old is None or new is None:
        return None
    rows = find_row_count({tensor.name: tensor for tensor in models[1].tensors})
    common = len(old.ids.keys() & new.ids.keys())
    moved = sum(1 for token, row in new.ids.items() if old.ids.get(token, row) != row)
    return TokenChanges(
        common,
        len(new.ids) - common,
        len(old.ids) - common,
        moved,
        _compare_rows(context, (old, new), tables, threads) if moved else {},
        tuple(find_faults({_NEW: new}, {_NEW: rows})),
    )


def _find_blobs(model: Model) -> dict[str, GitId] | None:
    if model.plain is None:
        return None
    return {path: blob for path, blob in model.plain.items() if "token" in path or "vocab" in path}


def _read_files(context: Context | None, model: Model) -> dict[str, bytes]:
    """Return the files beside a model that could name its tokens."""
    if model.tensors:
        with suppress(FormatError, ReleasedError):
            found = read_companions(context, model)
            return {
                name: data for name, data in found.items() if "token" in name or "vocab" in name
            }
    return {}


def _is_table(change: TensorChange) -> bool:
    pair = change.pair
    if pair.old is None or pair.new is None or change.status != "modified":
        return False
    shapes = pair.old.view.shape, pair.new.view.shape
    is_one = find_kind(change.name, shapes[1]) in _TABLES and all(
        len(shape) > 1 for shape in shapes
    )
    return is_one and shapes[0][1:] == shapes[1][1:] and min(shapes[0][0], shapes[1][0]) > 0


def _is_resized(change: TensorChange) -> bool:
    pair = change.pair
    return (
        pair.old is not None and pair.new is not None and pair.old.view.shape != pair.new.view.shape
    )


def _compare_rows(
    context: Context | None,
    vocabularies: tuple[Vocabulary, Vocabulary],
    tables: Sequence[TensorChange],
    threads: int,
) -> dict[str, TensorStatistics | None]:
    """Return how the rows of common tokens differ, from what is kept or computed."""
    places = map_rows(*vocabularies)
    rows = [_common_rows(places, change.pair) for change in tables]
    keys = [_key(change, places, own) for change, own in zip(tables, rows, strict=True)]
    kept = None if context is None else context.kept
    stored = {} if kept is None else kept.get_many(ROWS, filter(None, keys))
    found: dict[int, TensorStatistics | None] = {}
    for place, key in enumerate(keys):
        with suppress(KeyError, FormatError):  # not kept, or not in this version
            value = stored[key or b""]
            found[place] = TensorStatistics.decode(value) if value else None
    left = [place for place in range(len(tables)) if place not in found]
    pairs = [_align(vocabularies[1], places, rows[place], tables[place].pair) for place in left]
    for place, change in zip(left, gather(None, pairs, threads=threads), strict=True):
        found[place] = change.statistics
    if kept is not None:
        fresh = {keys[place]: found[place] for place in left}
        named = {key: b"" if one is None else one.encode() for key, one in fresh.items() if key}
        kept.put_many(ROWS, named)
    return {change.name: found[place] for place, change in enumerate(tables)}


def _common_rows(places: Rows, pair: TensorPair) -> Rows:
    """Return the new rows of tokens that both tables have a row for."""
    before, after = pair.sides
    rows = np.flatnonzero((places >= 0) & (places < before.view.shape[0]))
    return rows[rows < after.view.shape[0]]


def _key(change: TensorChange, places: Rows, rows: Rows) -> bytes | None:
    which = np.concatenate([places[rows], rows]).astype("<i8")
    return None if change.key is None else change.key + blake3(which.tobytes()).digest(16)


def _align(new: Vocabulary, places: Rows, rows: Rows, pair: TensorPair) -> TensorPair:
    aligned = Alignment(new, len(rows), {_OLD: places[rows], _NEW: rows}, _NEW, None)
    both = dict(zip((_OLD, _NEW), pair.sides, strict=True))
    return TensorPair(aligned.align(_OLD, both), aligned.align(_NEW, both))
