"""All merge methods by name."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from mvc.errors import NotFoundError
from mvc.numbers.merge_methods.averaging import LINEAR, MODEL_STOCK, PASSTHROUGH
from mvc.numbers.merge_methods.fusion import ARCEE_FUSION, NEARSWAP, RAM, RAM_PLUS, SCE
from mvc.numbers.merge_methods.spherical import KARCHER, MULTISLERP, NUSLERP, SLERP
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


def get_method(name: str) -> Method:
    """Return the method of that name; anything else is a NotFoundError that lists all."""
    try:
        return METHODS[name]
    except KeyError:
        near = difflib.get_close_matches(name, METHODS, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(METHODS)}"
        raise NotFoundError(f"unknown merge method {name!r}", hint=hint) from None
