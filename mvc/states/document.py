"""The outermost object of ``state.json``: what it is, which files belong to it, what it holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mvc.errors import FormatError, UnsupportedError
from mvc.states.json_text import encode_text, parse_text

if TYPE_CHECKING:
    from mvc.states.json_text import JsonValue
    from mvc.states.nodes import Node

STATE_FILE = "state.json"
"""Name of the file with structure and scalars."""
TENSOR_SUFFIX = ".safetensors"
_FORMAT = "mvc-state"
_VERSION = 1
_FIELDS = {"format", "version", "files", "shared", "state"}


@dataclass(frozen=True, slots=True)
class Document:
    """The content of a ``state.json``.

    Attributes:
        files: names of the files with its arrays.
        shared: nodes of the storages that several arrays share.
        state: node of the state itself, an object; in a text to be written ``Kept`` may stand for it.
    """

    files: tuple[str, ...]
    shared: tuple[Node, ...]
    state: JsonValue


def encode_document(document: Document) -> bytes:
    """Return the canonical text.

    Raises:
        UnsupportedError: the text would be past the limits.
    """
    value: dict[str, JsonValue] = {"format": _FORMAT, "version": _VERSION}
    value["files"] = list(document.files)
    if document.shared:
        value["shared"] = list(document.shared)
    value["state"] = document.state
    return encode_text(value)


def parse_document(text: bytes) -> Document:
    """Return the content of a text; what the nodes say is not looked at.

    Raises:
        FormatError: not the text of a state.
        UnsupportedError: the text of a newer state.
    """
    value: Any = parse_text(text)
    if not isinstance(value, dict) or value.get("format") != _FORMAT:
        raise FormatError("state.json is not the state of a training run")
    _check_version(value.get("version"))
    value.setdefault("shared", [])
    if value.keys() != _FIELDS:
        raise FormatError("state.json has other fields than a state has")
    files, shared, state = value["files"], value["shared"], value["state"]
    if not isinstance(state, dict):
        raise FormatError("state.json holds something else than a dict")
    if not isinstance(files, list) or not all(map(_is_file, files)):
        raise FormatError("state.json has a list of files that is none")
    if not isinstance(shared, list) or not all(map(_is_storage, shared)):
        raise FormatError("state.json has a table of shared storages that is none")
    return Document(tuple(files), tuple(shared), state)


def _check_version(version: object) -> None:
    if type(version) is not int or version < 1:
        raise FormatError("state.json has no version")
    if version > _VERSION:
        raise UnsupportedError(
            f"state.json has version {version}, this mvc reads up to {_VERSION}",
            hint="install a newer mvc",
        )


def _is_file(name: object) -> bool:
    return isinstance(name, str) and name.endswith(TENSOR_SUFFIX) and "/" not in name


def _is_storage(node: object) -> bool:
    return isinstance(node, dict) and node.get("$") in ("tensor", "ndarray")
