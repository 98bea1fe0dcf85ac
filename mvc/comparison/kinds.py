"""The role of a tensor in its model, from its name and shape: ``q_proj``, ``mlp.up``, ``norm``, ...

The names are those of Hugging Face transformers (Llama, GPT-2, NeoX, BERT, T5, Mixtral, Mamba),
diffusers, timm, torchvision, torch's own layers, GGUF, PEFT and torch optimizers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from mvc.tensor_names import natural_key

if TYPE_CHECKING:
    from mvc.comparison.pairs import TensorChange


# Words are whole parts of a name between dots; "a/b" is b right after a. The first that fits counts.
_WORDS = {
    "lora_A": "lora_A|lora_embedding_A|lora_down",
    "lora_B": "lora_B|lora_embedding_B|lora_up",
    "lora_magnitude": "lora_magnitude_vector",
    "norm statistics": "running_mean|running_var|num_batches_tracked",
    "rotary": "inv_freq|rotary_emb|rope_freqs|rope_factors_long|rope_factors_short",
    "norm": (
        r"\w*norm\d*|\w*layer_?norm\w*|\w*_norm\w*|norm_\w+|ln|ln\d|ln_\w+|bn|bn\d+|gn\d*|ffn_norm|"
        r"downsample/1|\w*rms\w*"
    ),
    "position embedding": (
        r"wpe|position_embeddings?|embed_positions|pos_embed\w*|position_embd|pos_embedding|"
        r"relative_attention_bias|relative_position_bias_table"
    ),
    "embedding": (
        r"embed_tokens|wte|word_embeddings|tok_embeddings|token_embd|token_type_embeddings|"
        r"token_types|patch_embed\w*|embed_in|shared|embed|embedding|embeddings/\w+|cls_token|"
        r"class_token|time_embedding|\w+_embedding|\w+_embeddings?"
    ),
    "head": "lm_head|embed_out|classifier|score|head|heads|output_layer|cls/\\w+|qa_outputs|v_head",
    "router": r"router|block_sparse_moe/gate|mlp/gate|ffn_gate_inp|gating|feed_forward/router",
    "qkv_proj": r"qkv|\w*qkv_proj|c_attn|query_key_value|in_proj_weight|in_proj_bias|attn_qkv|Wqkv|to_qkv",
    "q_proj": r"q_proj|q_a_proj|q_b_proj|query|to_q|wq|attn_q|add_q_proj|q_lin|attention/q|SelfAttention/q|EncDecAttention/q",
    "k_proj": r"k_proj|key|to_k|wk|attn_k|add_k_proj|k_lin|SelfAttention/k|EncDecAttention/k",
    "v_proj": r"v_proj|value|to_v|wv|attn_v|add_v_proj|v_lin|SelfAttention/v|EncDecAttention/v",
    "kv_proj": r"kv_\w+|to_kv",
    "o_proj": (
        r"o_proj|to_out|to_add_out|attn_output|out_lin|attn/c_proj|attn/proj|attention/dense|"
        r"self_attention/dense|attention/output|\w*attn\w*/out_proj|self_attention/out_proj|"
        r"attention/wo|SelfAttention/o|EncDecAttention/o|self_attn/dense"
    ),
    "ssm": r"A_log|dt_proj|x_proj|dt_bias|mixer|ssm_\w+|mamba",
    "mlp.gate_up": "gate_up_proj|gate_up",
    "mlp.gate": r"gate_proj|w1|ffn_gate\w*|wi_0",
    "mlp.up": (
        r"up_proj|w3|fc1|fc_in|c_fc|dense_h_to_4h|ffn_up\w*|wi_1|wi|intermediate/dense|lin1|linear1|"
        r"linear_1|net/0|mlp/0|fc_1"
    ),
    "mlp.down": (
        r"down_proj|w2|fc2|fc_out|mlp/c_proj|dense_4h_to_h|ffn_down\w*|DenseReluDense/wo|"
        r"output/dense|lin2|linear2|linear_2|net/2|mlp/3|feed_forward/wo|fc_2"
    ),
    "conv": r"conv\w*|downsample/0",
}  # fmt: skip
_MOMENTS = re.compile(
    r"(max_)?exp_avg\w*|exp_inf|momentum_buffer|square_avg|grad_avg|acc_delta|prev|eta|mu|nu"
)
_HEAD = re.compile(r"(output|fc|proj_out)\.(weight|bias)")  # of GGUF, torchvision, Whisper
_BIAS = re.compile(r"(.*[._])?bias")
_EXPERT = re.compile(r"(?:^|[._])(?:shared_)?(?:experts?|exps)(?=[._]|$)")
_LAYER = re.compile(r"(?:.*?[._/])??\d+(?=[._/]|$)")
_NUMBER = re.compile(r"\d+")
_BY_DIMS = {0: "scalar", 1: "vector", 2: "linear", 4: "conv"}
_BEFORE_BIAS = tuple(_WORDS)[: tuple(_WORDS).index("norm") + 1]
_KINDS = {
    kind: re.compile(rf"(?:^|\.)(?:{words.replace('/', '[.]')})(?=\.|$)", re.IGNORECASE)
    for kind, words in _WORDS.items()
}


def find_kind(name: str, shape: Sequence[int]) -> str:
    """Return the role of a tensor, by its dimensions if its name does not tell."""
    return _find_kind(_NUMBER.sub(_keep_short, name)) or _BY_DIMS.get(len(shape), "tensor")


def is_state(kind: str) -> bool:
    """Return whether tensors of a kind are kept beside weights: moments, running averages."""
    return kind == "norm statistics" or _MOMENTS.fullmatch(kind) is not None


def _keep_short(number: re.Match[str]) -> str:
    """Layers have the same kinds; but ``net.0`` and ``net.2`` differ."""
    return number[0] if len(number[0]) == 1 else "10"


@lru_cache(maxsize=4096)
def _find_kind(name: str) -> str | None:
    leaf = name.rpartition(".")[2]
    if _MOMENTS.fullmatch(leaf):
        return leaf
    if _HEAD.fullmatch(name):
        return "head"
    for kind, pattern in _KINDS.items():
        if kind not in _BEFORE_BIAS and _BIAS.fullmatch(name):
            return "bias"
        if pattern.search(name):
            is_expert = kind.startswith("mlp.") and _EXPERT.search(name)
            return kind.replace("mlp", "expert", 1) if is_expert else kind
    return "expert" if _EXPERT.search(name) else None


def find_layer(name: str) -> str | None:
    """Return the part of a name up to its first number (``model.layers.10``), or None."""
    found = _LAYER.match(name)
    return None if found is None else found[0]


def find_part(name: str) -> str:
    """Return the layer that a tensor is in, or else its module, or itself."""
    return find_layer(name) or name.rpartition(".")[0] or name


_MAX_KINDS = 3
_PART_NAMES = {"head": "the head", "embedding": "the embedding", "norm": "norms", "bias": "biases"}


def kind_of(change: TensorChange) -> str:
    """Return the role of a tensor in its model."""
    return find_kind(change.name, change.pair.shown.view.shape)


def name_part(frozen: Sequence[TensorChange], changed: Sequence[TensorChange]) -> str | None:
    """Name the part of a model to which all changes are confined, or return None."""
    weights = {change.name: kind_of(change) for change in (*frozen, *changed)}

    def role_of(change: TensorChange) -> str:  # a bias plays the part of the weight beside it
        name, dot, leaf = change.name.rpartition(".")
        return weights[change.name] if leaf != "bias" else weights.get(f"{name}{dot}weight", "bias")

    for find in (kind_of, role_of):
        kinds = {find(change) for change in changed}
        if len(kinds) <= _MAX_KINDS and not kinds & {find(change) for change in frozen}:
            return _join([_PART_NAMES.get(kind, kind) for kind in sorted(kinds)])
    return _name_layers(frozen, changed, role_of)


def _join(words: Sequence[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


def _name_layers(
    frozen: Sequence[TensorChange],
    changed: Sequence[TensorChange],
    role_of: Callable[[TensorChange], str],
) -> str | None:
    """Return "the last N layers" (and what else) if no layer before them changed; else None."""
    still, moved = (
        {layer for change in some if (layer := find_layer(change.name))}
        for some in (frozen, changed)
    )
    if not still or not moved or len({layer.rstrip("0123456789") for layer in still | moved}) > 1:
        return None
    if max(map(natural_key, still)) >= min(map(natural_key, moved)):
        return None
    layers = "the last layer" if len(moved) == 1 else f"the last {len(moved)} layers"
    beside = {role_of(change) for change in changed if find_layer(change.name) is None}
    if len(beside) > _MAX_KINDS:
        return None
    return _join([layers, *(_PART_NAMES.get(kind, kind) for kind in sorted(beside))])


def find_frozen_modules(
    frozen: Sequence[TensorChange], changed: Sequence[TensorChange]
) -> list[str]:
    """Return the topmost modules of several tensors where no tensor changed, in natural order."""
    touched = {name for change in changed for name in _modules_of(change.name)}
    counts: dict[str, int] = {}
    for change in frozen:
        free = next((name for name in _modules_of(change.name) if name not in touched), None)
        if free is not None:
            counts[free] = counts.get(free, 0) + 1
    return sorted((name for name, count in counts.items() if count > 1), key=natural_key)


def _modules_of(name: str) -> Iterator[str]:
    parts = name.split(".")
    return (".".join(parts[:end]) for end in range(1, len(parts)))
