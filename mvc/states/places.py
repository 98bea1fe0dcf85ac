"""A state with the place of every array instead of its bytes, for those who write them elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mvc.errors import FormatError
from mvc.states.decode import BLOBS, DecodeWalk
from mvc.states.document import PART, get_dims, get_field, parse_document
from mvc.states.factory import NumpyFactory
from mvc.states.outline import ArrayOutline, OutlineTable
from mvc.states.reads import get_form

if TYPE_CHECKING:
    from mvc.states.document import Node


@dataclass(frozen=True, slots=True)
class ArrayPlace:
    """Where an array is: a tensor of a file, whole, or elements of it at strides in bytes."""

    file: str
    name: str
    shape: tuple[int, ...]
    offset_bytes: int = 0
    byte_strides: tuple[int, ...] | None = None


def locate_arrays(state_json: bytes) -> dict[str, Any]:
    """Return the value of a state with an ``ArrayPlace`` for every array.

    What is no plain data stays an ``ArrayOutline`` or what stands for it without torch.
    """
    document = parse_document(state_json)
    table = _PlaceTable({}, document.shared, NumpyFactory)
    value = DecodeWalk(table, is_first=False).decode_state(document.state)
    return {str(key): one for key, one in value.items()}


class _PlaceTable(OutlineTable):
    def get(self, node: Node) -> Any:  # an array's place, or its outline
        if node["$"] in BLOBS or PART in node:
            return super().get(node)
        _, shape = get_form(node)
        if "offset" not in node:
            return ArrayPlace(get_field(node, "in", str), get_field(node, "name", str), shape)
        number = get_field(node, "shared", int)
        if not 0 <= number < len(self.shared):
            raise FormatError(f"state.json has no shared storage {number}")
        storage = self.shared[number]
        if "strides" in storage or storage.get("dtype") != node["dtype"]:
            return super().get(node)  # its elements are not words of the file
        file, name = get_field(storage, "in", str), get_field(storage, "name", str)
        offset, strides = get_field(node, "offset", int), get_dims(node, "byte_strides")
        return ArrayPlace(file, name, shape, offset, strides)

    def make_sparse(
        self,
        tag: str,  # noqa: ARG002  as ReadTable has it
        shape: tuple[int, ...],
        parts: list[Any],  # noqa: ARG002
        **flags: bool,  # noqa: ARG002
    ) -> ArrayOutline:
        return ArrayOutline("sparse", "", shape)
