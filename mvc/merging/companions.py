"""The small files beside a model: config.json, the tokenizer's and their like, which the result needs too."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from mvc.errors import FormatError
from mvc.sources import FileSource, read_bytes
from mvc.workspace.content import write_content
from mvc.workspace.manifests import find_manifest, stored_size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mvc.ids import GitId
    from mvc.workspace.context import Context
    from mvc.workspace.models import Model

CONFIG = "config.json"
COMPANIONS = (
    CONFIG, "generation_config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model",
    "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "vocab.txt",
    "spiece.model", "sentencepiece.bpe.model", "chat_template.jinja", "chat_template.json",
    "preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json",
)  # fmt: skip
_MAX_BYTES = 2**28
_LAYER_KEYS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers")


def read_companions(context: Context | None, model: Model) -> dict[str, bytes]:
    """Return name → content of the files that belong to a model, from its folder."""
    folder = os.path.dirname(model.tensors[0].path)
    companions: dict[str, bytes] = {}
    for name in COMPANIONS:
        if model.plain is not None:
            blob = model.plain.get(f"{folder}/{name}" if folder else name)
            if blob is not None and context is not None:
                companions[name] = read_stored(context, blob, name)
        else:
            path = (model.root or Path()) / folder / name
            if path.is_file():
                with FileSource.open(path.resolve()) as source:
                    _check_size(str(path), source.size_bytes)
                    companions[name] = read_bytes(source, 0, source.size_bytes)
    return companions


def read_stored(context: Context, blob: GitId, name: str) -> bytes:
    """Return the content of a small file of the repository."""
    size_bytes = stored_size(context, blob)
    _check_size(name, size_bytes)
    manifest = find_manifest(context, blob)
    if manifest is None:
        return context.history.read_blob(blob)
    data = bytearray(size_bytes)

    def put(plain: memoryview, offset: int) -> None:
        data[offset : offset + len(plain)] = plain

    write_content(context, manifest, name, put)
    return bytes(data)


def _check_size(name: str, size_bytes: int) -> None:
    if size_bytes > _MAX_BYTES:
        raise FormatError(f"{name} has {size_bytes:,} bytes; {_MAX_BYTES:,} are the limit")


def parse_config(data: bytes, where: str) -> dict[str, object]:
    """Return a ``config.json`` as values."""
    try:
        config = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{CONFIG} of {where} is not valid JSON: {error}") from None
    if not isinstance(config, dict):
        raise FormatError(f"{CONFIG} of {where} is not a JSON object")
    return config


def change_config(
    config: Mapping[str, object],
    *,
    dtype: str | None = None,
    layers: Sequence[int] | None = None,
    vocabulary: int | None = None,
) -> dict[str, object]:
    """Return a configuration with what a merge changed.

    Args:
        config: that of the model whose files the result has.
        dtype: torch's name of the new element type.
        layers: for every layer of the result, the number it had; lists of one value per layer
            follow.
        vocabulary: rows of the new embedding.
    """
    changed = dict(config)
    for key in ("torch_dtype", "dtype"):
        if dtype is not None and key in changed:
            changed[key] = dtype
    if vocabulary is not None and "vocab_size" in changed:
        changed["vocab_size"] = vocabulary
    count = next((changed[key] for key in _LAYER_KEYS if key in changed), None)
    if layers is not None and isinstance(count, int):
        for key, value in config.items():
            if key in _LAYER_KEYS:
                changed[key] = len(layers)
            elif isinstance(value, list) and len(value) == count > max(layers):
                changed[key] = [value[number] for number in layers]
    for key, value in config.items():
        if key == "text_config" and isinstance(value, dict):
            changed[key] = change_config(value, dtype=dtype, layers=layers, vocabulary=vocabulary)
    return changed
