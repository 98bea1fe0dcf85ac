"""A Llama-shaped model in safetensors files, five versions of it, with trained statistics.

Every weight matrix is a bootstrap of the donor's matrices of the same role. The donor's rows are
divided by their root mean square; a row of the new matrix draws one of the donor's row scales and
then each value from all normalised values of that role, so both the spread between rows and the
tails within them are those of trained weights. Scales follow the width as training's would
(1/sqrt(fan-in)). What is lost are correlations between neighbours, and on weights neither zstd
nor a context model finds any.

The fp32 base is the master; each bf16 version is a change made to it in fp32, then rounded to
the nearest even. Each tensor is drawn from a generator seeded with its name, so versions can be
written one tensor at a time, and two runs make the same bytes.
"""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    Weights = NDArray[np.float32]
    Change = Callable[[str, Weights, np.random.Generator], Weights]

_BLOCK_VALUES = 1 << 20
_WIDTH = {"BF16": 2, "F32": 4}


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a Llama-like model."""

    vocabulary: int
    hidden: int
    intermediate: int
    layers: int


FULL = ModelShape(32000, 1024, 2816, 14)
QUICK = ModelShape(1000, 128, 352, 2)
LARGE = ModelShape(32000, 4096, 11008, 9)
APPENDED_ROWS = 128


def list_tensors(shape: ModelShape) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Yield (name, role, shape) of every tensor, in file order."""
    wide, inner = shape.hidden, shape.intermediate
    yield "model.embed_tokens.weight", "embed", (shape.vocabulary, wide)
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}"
        yield f"{prefix}.input_layernorm.weight", "norm", (wide,)
        for role in "qkvo":
            yield f"{prefix}.self_attn.{role}_proj.weight", role, (wide, wide)
        yield f"{prefix}.post_attention_layernorm.weight", "norm", (wide,)
        yield f"{prefix}.mlp.gate_proj.weight", "gate", (inner, wide)
        yield f"{prefix}.mlp.up_proj.weight", "up", (inner, wide)
        yield f"{prefix}.mlp.down_proj.weight", "down", (wide, inner)
    yield "model.norm.weight", "norm", (wide,)
    yield "lm_head.weight", "lm_head", (shape.vocabulary, wide)


class Bootstrap:
    """Draws tensors from the donor's tensors of the same role."""

    def __init__(self, donor: dict[str, Weights]) -> None:
        self._values: dict[str, Weights] = {}
        self._scales: dict[str, Weights] = {}
        for role in {name.partition(".")[0] for name in donor}:
            members = [donor[name] for name in sorted(donor) if name.partition(".")[0] == role]
            rows = [np.atleast_2d(member) for member in members]
            scales = [np.sqrt(np.mean(np.square(part), axis=1)) for part in rows]
            normed = [part / scale[:, None] for part, scale in zip(rows, scales, strict=True)]
            width = 1 if role in ("embed", "norm") else rows[0].shape[1]
            self._values[role] = np.concatenate([part.ravel() for part in normed])
            self._scales[role] = np.concatenate(scales) * np.float32(width) ** 0.5

    def draw(self, role: str, shape: tuple[int, ...], rng: np.random.Generator) -> Weights:
        """Return a tensor of that role."""
        values, scales = self._values[role], self._scales[role]
        if len(shape) == 1:
            return rng.choice(values, shape) * scales.mean()
        result = np.empty(shape, np.float32)
        fan_in = 1 if role == "embed" else shape[1]
        step = max(1, _BLOCK_VALUES // shape[1])
        for start in range(0, shape[0], step):
            block = result[start : start + step]
            at = rng.integers(0, len(values), block.shape, dtype=np.uint32)
            np.take(values, at, out=block, mode="clip")
            block *= rng.choice(scales, (len(block), 1)) / np.float32(fan_in) ** 0.5
        return result


def generator(*words: str) -> np.random.Generator:
    """Return a generator seeded with some words."""
    return np.random.Generator(np.random.SFC64(zlib.crc32("/".join(words).encode())))


def keep(_name: str, weights: Weights, _rng: np.random.Generator) -> Weights:
    """The base itself."""
    return weights


def merge_lora(name: str, weights: Weights, rng: np.random.Generator) -> Weights:
    """Add a rank-16 product to q and v, at 2 % of their size."""
    if not name.endswith(("q_proj.weight", "v_proj.weight")):
        return weights
    up = rng.standard_normal((weights.shape[0], 16), np.float32)
    down = rng.standard_normal((16, weights.shape[1]), np.float32)
    return weights + up @ down * (0.02 * _size(weights) / 4)


def tune_slightly(_name: str, weights: Weights, rng: np.random.Generator) -> Weights:
    """Move every weight as 20 AdamW steps of 1e-5 of its tensor's size with random signs do."""
    return _walk(weights, rng, 1e-5 * 20**0.5)


def tune_strongly(_name: str, weights: Weights, rng: np.random.Generator) -> Weights:
    """Move every weight by half of its tensor's size, as a high learning rate does."""
    return _walk(weights, rng, 0.5)


def tune_longer(_name: str, weights: Weights, rng: np.random.Generator) -> Weights:
    """Move every weight by 2 % of its tensor's size, as some hundred steps of a fine-tune do."""
    return _walk(weights, rng, 0.02)


def _size(weights: Weights) -> float:
    return float(np.sqrt(np.mean(np.square(weights))))


def _walk(weights: Weights, rng: np.random.Generator, share: float) -> Weights:
    step = rng.standard_normal(weights.shape, np.float32)
    step *= np.float32(share * _size(weights))
    step += weights
    return step


@dataclass(frozen=True, slots=True)
class Version:
    """One version of the model."""

    name: str
    title: str
    change: Change
    appended_rows: int = 0


VERSIONS = (
    Version("base", "base", keep),
    Version("lora", "LoRA merged into q and v", merge_lora),
    Version("tiny", "tiny full fine-tune", tune_slightly),
    Version("large", "large movement", tune_strongly),
    Version("rows", f"{APPENDED_ROWS} vocabulary rows appended", keep, APPENDED_ROWS),
)

LONGER = Version("longer", "longer full fine-tune", tune_longer)
"""In place of ``large`` in a second series: differences cannot gain on noise of half its size."""


def write_model(
    path: Path, shape: ModelShape, bootstrap: Bootstrap, version: Version, dtype: str = "BF16"
) -> None:
    """Write one version as a safetensors file, tensor by tensor; memory is one tensor's."""
    if path.exists():
        return
    tensors = [
        (name, role, (size[0] + version.appended_rows, *size[1:]) if role in _ROWS else size)
        for name, role, size in list_tensors(shape)
    ]
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        file.write(_header([(name, size) for name, _, size in tensors], dtype))
        for name, role, size in tensors:
            base = size if role not in _ROWS else (size[0] - version.appended_rows, *size[1:])
            weights = bootstrap.draw(role, base, generator(name))
            weights = version.change(name, weights, generator(name, version.name))
            if size != base:
                more = (size[0] - base[0], *size[1:])
                rows = bootstrap.draw(role, more, generator(name, version.name))
                weights = np.concatenate([weights, rows])
            file.write((round_to_bf16(weights) if dtype == "BF16" else weights).data)
    partial.rename(path)


_ROWS = ("embed", "lm_head")


def _header(tensors: list[tuple[str, tuple[int, ...]]], dtype: str) -> bytes:
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, shape in tensors:
        end = at + int(np.prod(shape)) * _WIDTH[dtype]
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def round_to_bf16(weights: Weights) -> NDArray[np.uint16]:
    """Return the bf16 words of finite fp32 numbers, rounded to the nearest even."""
    words = weights.view(np.uint32)
    rounded = words >> 16
    rounded &= 1
    rounded += 0x7FFF
    rounded += words
    rounded >>= 16
    return rounded.astype(np.uint16)
