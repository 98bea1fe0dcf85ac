"""What part tensors play, for the names that model families give them."""

import pytest

from mvc.comparison.kinds import find_kind, find_layer
from support.cases import for_each

KINDS = """
model.embed_tokens.weight embedding
model.layers.11.self_attn.q_proj.weight q_proj
model.layers.11.self_attn.q_proj.bias bias
model.layers.0.self_attn.o_proj.weight o_proj
model.layers.0.mlp.gate_proj.weight mlp.gate
model.layers.0.mlp.up_proj.weight mlp.up
model.layers.0.mlp.down_proj.weight mlp.down
model.layers.0.input_layernorm.weight norm
model.layers.0.mlp.experts.63.down_proj.weight expert.down
model.layers.0.block_sparse_moe.experts.7.w1.weight expert.gate
model.layers.0.block_sparse_moe.gate.weight router
model.layers.0.mlp.shared_expert.up_proj.weight expert.up
model.norm.weight norm
lm_head.weight head
base_model.model.layers.3.self_attn.v_proj.lora_A.weight lora_A
base_model.model.layers.3.self_attn.v_proj.lora_B.default.weight lora_B
transformer.wpe.weight position embedding
transformer.h.0.attn.c_attn.weight qkv_proj
transformer.h.0.attn.c_proj.weight o_proj
transformer.h.0.mlp.c_fc.weight mlp.up
transformer.h.0.mlp.c_proj.weight mlp.down
transformer.h.0.ln_1.bias norm
gpt_neox.layers.0.attention.query_key_value.weight qkv_proj
gpt_neox.layers.0.mlp.dense_4h_to_h.weight mlp.down
bert.encoder.layer.0.attention.self.query.weight q_proj
bert.encoder.layer.0.attention.output.dense.weight o_proj
bert.encoder.layer.0.attention.output.LayerNorm.weight norm
bert.encoder.layer.0.intermediate.dense.weight mlp.up
bert.encoder.layer.0.output.dense.weight mlp.down
encoder.block.0.layer.0.SelfAttention.k.weight k_proj
encoder.block.0.layer.1.DenseReluDense.wo.weight mlp.down
blk.3.attn_q.weight q_proj
blk.3.ffn_down.weight mlp.down
blk.3.ffn_up_exps.weight expert.up
blk.3.attn_norm.weight norm
token_embd.weight embedding
output.weight head
output_norm.weight norm
backbone.layers.0.mixer.A_log ssm
blocks.0.attn.qkv.weight qkv_proj
blocks.0.attn.proj.weight o_proj
blocks.0.mlp.fc1.weight mlp.up
head.weight head
layer1.0.conv2.weight conv
layer1.0.bn2.running_mean norm statistics
layer1.0.downsample.1.weight norm
fc.weight head
down_blocks.0.attentions.1.transformer_blocks.0.attn1.to_k.weight k_proj
down_blocks.0.attentions.1.transformer_blocks.0.ff.net.2.weight mlp.down
encoder.layers.0.self_attn.in_proj_weight qkv_proj
encoder.layers.0.linear2.weight mlp.down
state.12.exp_avg_sq exp_avg_sq
state.12.momentum_buffer momentum_buffer
"""


@for_each("line", KINDS.strip().splitlines())
def test_kinds(line):
    name, _, kind = line.partition(" ")
    assert find_kind(name, (4, 4)) == kind


def test_dimensions_tell_where_the_name_does_not():
    assert [find_kind("x", shape) for shape in [(), (3,), (3, 3), (1, 2, 3), (1, 2, 3, 4)]] == [
        "scalar", "vector", "linear", "tensor", "conv",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("model.layers.10.mlp.experts.3.w1", "model.layers.10"),
        ("layer1.0.conv1.weight", "layer1.0"),
        ("blk.7.attn_q.weight", "blk.7"),
        ("model.norm.weight", None),
        ("0.weight", "0"),
        ("fc1.weight", None),
    ],
)
def test_layers(name, layer):
    assert find_layer(name) == layer


def test_hostile_names_take_no_time():
    for name in ("." * 100_000, "1" * 100_000, "a." * 50_000, "exp_avg" * 10_000, "a1." * 30_000):
        find_kind(name, (1,))
        find_layer(name)
