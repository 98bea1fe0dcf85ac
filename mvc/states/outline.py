"""The structure of a state without the bytes of its arrays: what is there, of which type and shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mvc.dtypes import count_elements
from mvc.errors import FormatError, UnsupportedError
from mvc.states.decode import ABSENT, BLOBS, DecodeWalk
from mvc.states.document import get_field, parse_document
from mvc.states.elements import find_numpy_element
from mvc.states.factory import NumpyFactory
from mvc.states.reads import ReadTable, get_form, load_torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mvc.states.document import Document, Node
    from mvc.states.reads import Factory


@dataclass(frozen=True, slots=True)
class ArrayOutline:
    """An array of a state without its values.

    Attributes:
        kind: ``tensor``, ``array``, ``bytes`` or ``sparse``.
        dtype: spelled as in ``state.json``; ``uint8`` for bytes, that of the values for sparse.
        shape: elements per dimension.
    """

    kind: str
    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        """Return it as messages name it: ``float32 [768, 3072]``."""
        return f"{self.dtype} {list(self.shape)}"

    @classmethod
    def of(cls, array: Any) -> ArrayOutline:
        """Return the outline of a live NumPy array or torch tensor."""
        if isinstance(array, np.ndarray):
            element = find_numpy_element(array.dtype)
            return cls("array", array.dtype.str if element is None else element.name, array.shape)
        kind = "tensor" if str(array.layout) == "torch.strided" else "sparse"
        return cls(kind, str(array.dtype).removeprefix("torch."), tuple(array.shape))


def outline_state(state_json: bytes) -> dict[Any, Any]:
    """Return a state with an ``ArrayOutline`` in place of every array; raises as ``parse_document``."""
    value: dict[Any, Any] = decode_outline(parse_document(state_json))
    return value


def decode_outline(document: Document, node: Any = ABSENT, *, as_key: bool = False) -> Any:
    """Return the value of a node, or of the whole state, with an ``ArrayOutline`` for every array."""
    walk = DecodeWalk(_OutlineTable({}, (), _load_any), is_first=False)
    if as_key:
        return walk.decode_key(node)
    return _decode_state(walk, document) if node is ABSENT else walk.decode(node)


def _decode_state(walk: DecodeWalk, document: Document) -> dict[Any, Any]:
    try:
        value = walk.decode(document.state)
    except RecursionError:
        raise FormatError("state.json is nested too deeply") from None
    if not isinstance(value, dict):
        raise FormatError("state.json does not hold a dict")
    return value


def check_sizes(state_json: bytes, sizes: Mapping[str, Mapping[str, int]]) -> None:
    """Check that files (file → tensor → bytes) hold all the arrays of a state; FormatError if not."""
    document = parse_document(state_json)
    table = _SizeTable(sizes, (), _load_any)
    _decode_state(DecodeWalk(table, is_first=False), document)
    for node in document.shared:
        table.get(node)


class _OutlineTable(ReadTable):
    """Gives outlines in place of arrays."""

    def get(self, node: Node) -> ArrayOutline:
        """Return the outline of a node."""
        if node["$"] in BLOBS:
            size = get_field(node, "size_bytes", int)
            outline = ArrayOutline("bytes", "uint8", (size,))
        else:
            element, shape = get_form(node)
            size = count_elements(shape) * element.size_bytes
            kind = "tensor" if node["$"] == "tensor" else "array"
            outline = ArrayOutline(kind, get_field(node, "dtype", str), shape)
        self._note(node, size)
        return outline

    def _note(self, node: Node, size_bytes: int) -> None:
        """Do nothing: where the bytes are does not matter here."""

    def check_sparse(self) -> None:
        """Do nothing: an outline can say anything."""

    def make_sparse(
        self,
        tag: str,  # noqa: ARG002  as ReadTable has it
        shape: tuple[int, ...],
        parts: list[Any],
        **flags: bool,  # noqa: ARG002
    ) -> ArrayOutline:
        """Return the outline of a sparse tensor."""
        return ArrayOutline("sparse", parts[-1].dtype, shape)


class _SizeTable(_OutlineTable):
    """Checks that files hold the bytes of every array."""

    def _note(self, node: Node, size_bytes: int) -> None:
        self.check_held(node, size_bytes)


def _load_any() -> Factory:
    """Return what makes torch's scalars, or what stands for them without torch."""
    try:
        return load_torch()
    except UnsupportedError:
        return NumpyFactory()
