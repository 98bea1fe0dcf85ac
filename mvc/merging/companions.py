"""The small files beside a model: config.json, the tokenizer's and their like, which the result needs too."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mvc.errors import FormatError
from mvc.formats.tokenizer import Vocabulary, find_tokenizer, parse_tokenizer
from mvc.sources import FileSource, read_bytes
from mvc.workspace.state_files import check_small, read_small_file

if TYPE_CHECKING:
    from mvc.merging.recipe import TokenizerChoice
    from mvc.merging.tokenizer import Alignment
    from mvc.workspace.context import Context
    from mvc.workspace.models import Model

CONFIG = "config.json"
_ADDED = "added_tokens.json"
_FAST = "tokenizer.json"
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json",
    "added_tokens.json", "vocab.json", "merges.txt", "vocab.txt", "spiece.model",
    "sentencepiece.bpe.model", "chat_template.jinja", "chat_template.json",
)  # fmt: skip
"""What belongs to a tokenizer among the files of a model."""
COMPANIONS = (
    CONFIG, "generation_config.json", *TOKENIZER_FILES,
    "preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json",
)  # fmt: skip
_LAYER_KEYS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers")


_PLAIN = {
    "single_word": False, "lstrip": False, "rstrip": False, "normalized": True, "special": False,
}  # fmt: skip
"""How a token is found in a text, where nothing else is said."""


def read_companions(context: Context | None, model: Model) -> dict[str, bytes]:
    """Return name → content of the files that belong to a model, from its folder."""
    folder = os.path.dirname(model.tensors[0].path)
    companions: dict[str, bytes] = {}
    for name in COMPANIONS:
        if model.plain is not None:
            blob = model.plain.get(f"{folder}/{name}" if folder else name)
            if blob is not None and context is not None:
                companions[name] = read_small_file(context, blob, name)
        else:
            path = (model.root or Path()) / folder / name
            if path.is_file():
                with FileSource.open(path.resolve()) as source:
                    check_small(str(path), source.size_bytes)
                    companions[name] = read_bytes(source, 0, source.size_bytes)
    return companions


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

    ``dtype`` is torch's name of the new element type, ``layers`` the number that each layer of the result had,
    which lists of one value per layer follow, and ``vocabulary`` the rows of the new embedding.
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


def read_vocabulary(files: Mapping[str, bytes]) -> Vocabulary | None:
    """Return the vocabulary among the files of a model, or None."""
    name = find_tokenizer(files)
    return None if name is None else parse_tokenizer(name, files[name], files.get(_ADDED))


def merged_files(
    choice: TokenizerChoice, alignment: Alignment, files: Mapping[str, Mapping[str, bytes]]
) -> dict[str, bytes]:
    """Return the tokenizer's files of the result.

    Those of the host or of the model that was chosen; for a union, with what others have more as added
    tokens, as mergekit makes them.
    """
    source = alignment.host if choice.source in {"union", "base"} else choice.source
    own = {name: data for name, data in files[source].items() if name in TOKENIZER_FILES}
    known = read_vocabulary(own)
    assert known is not None
    new = {token: row for token, row in alignment.vocabulary.ids.items() if token not in known.ids}
    if not new:
        return own
    if _FAST not in own:
        before = json.loads(own[_ADDED]) if _ADDED in own else {}
        return {**own, _ADDED: _encode({**before, **new})}
    top = json.loads(own[_FAST])
    flags = _added_flags(files.values())
    top["added_tokens"] = [
        *(top.get("added_tokens") or []),
        *({"id": row, "content": token, **flags.get(token, _PLAIN)} for token, row in new.items()),
    ]
    return {**own, _FAST: _encode(top)}


def _added_flags(files: Iterable[Mapping[str, bytes]]) -> dict[str, dict[str, bool]]:
    """Return token → how it is found in a text, of tokens that some model has added."""
    added_flags: dict[str, dict[str, bool]] = {}
    for file in files:
        for token in json.loads(file[_FAST]).get("added_tokens") or [] if _FAST in file else []:
            flags = {key: bool(token.get(key, value)) for key, value in _PLAIN.items()}
            added_flags.setdefault(token["content"], flags)
    return added_flags


def _encode(value: object) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()
