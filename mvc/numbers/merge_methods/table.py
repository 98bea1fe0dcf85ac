"""All merge methods by name."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mvc.errors import NotFoundError
from mvc.numbers.merge_methods.averaging import (
    KARCHER,
    LINEAR,
    MODEL_STOCK,
    MULTISLERP,
    NUSLERP,
    PASSTHROUGH,
    SLERP,
)
from mvc.numbers.merge_methods.fusion import ARCEE_FUSION, NEARSWAP, RAM, RAM_PLUS, SCE
from mvc.numbers.merge_methods.task_vectors import TASK_VECTOR_METHODS

if TYPE_CHECKING:
    from mvc.numbers.merge_methods.method import Method

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        LINEAR,
        SLERP,
        NUSLERP,
        MULTISLERP,
        KARCHER,
        *TASK_VECTOR_METHODS,
        SCE,
        RAM,
        RAM_PLUS,
        MODEL_STOCK,
        NEARSWAP,
        ARCEE_FUSION,
        PASSTHROUGH,
    )
}


def get_method(name: str, besides: Sequence[str] = ()) -> Method:
    """Return the method of that name, or raise NotFoundError, which lists all and what is known besides."""
    try:
        return METHODS[name]
    except KeyError:
        known = [*besides, *METHODS]
        near = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
        raise NotFoundError(f"unknown merge method {name!r}", hint=hint) from None
