"""Ranks in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_MOST = 6


def spell_ranks(ranks: Sequence[int]) -> str:
    """Return ranks as a text: ``ranks 1 to 3 and 7``."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    words: list[str] = []
    for run in runs:
        words += [f"{run[0]} to {run[-1]}"] if len(run) > 2 else map(str, run)  # noqa: PLR2004
    return f"rank{'s' * (len(ranks) > 1)} {join_words(words)}"


def join_words(words: Iterable[str], before: str = "") -> str:
    """Return words as a list in a sentence: ``a, b and c``; of many, the first six."""
    each = [before + word for word in words]
    each = [*each[:_MOST], "more"] if len(each) > _MOST else each
    return " and ".join([", ".join(each[:-1]), each[-1]] if len(each) > 1 else each)
