"""Verdicts on real pairs of files: each says what was done to the model, and nothing else."""

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

import mvc

BF16 = ml_dtypes.bfloat16
WIDTH, ROWS, LAYERS = 32, 80, 4


@pytest.fixture
def rng():
    return np.random.default_rng(11)


@pytest.fixture
def base(rng):
    """A small model with names as Llama's."""

    def weights(*shape):
        return rng.standard_normal(shape) * 0.02

    model = {"model.embed_tokens.weight": weights(ROWS, WIDTH)}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        model |= {f"{at}self_attn.{one}_proj.weight": weights(WIDTH, WIDTH) for one in "qkvo"}
        model[f"{at}mlp.up_proj.weight"] = weights(2 * WIDTH, WIDTH)
        model[f"{at}mlp.down_proj.weight"] = weights(WIDTH, 2 * WIDTH)
        model[f"{at}input_layernorm.weight"] = np.ones(WIDTH)
    return model | {"model.norm.weight": np.ones(WIDTH), "lm_head.weight": weights(ROWS, WIDTH)}


@pytest.fixture
def judge(tmp_path, base):
    """Returns kind → verdict of a model beside the base one."""

    def compare(new, *, old=None, old_type=BF16, new_type=BF16):
        for name, model, kind in (("old", old or base, old_type), ("new", new, new_type)):
            arrays = {key: np.ascontiguousarray(value, kind) for key, value in model.items()}
            save_file(arrays, tmp_path / f"{name}.safetensors")
        found = mvc.compare(tmp_path / "old.safetensors", tmp_path / "new.safetensors")
        assert len({one.kind for one in found.verdicts}) == len(found.verdicts)
        return {one.kind: one for one in found.verdicts}

    return compare


def moved(model, rng, share, wanted=""):
    return {
        name: value + share * 0.02 * rng.standard_normal(value.shape) if wanted in name else value
        for name, value in model.items()
    }


def test_identical(judge, base):
    found = judge(base)
    assert list(found) == ["identical"]
    assert found["identical"].level == "good"
    assert "every bit of 31 tensors" in found["identical"].text


def test_a_healthy_fine_tune_raises_no_alarm(judge, base, rng):
    found = judge(moved(base, rng, 0.02))
    assert {one.level for one in found.values()} == {"note"}
    assert "a moderate change" in found["size"].text


@pytest.mark.parametrize(
    ("share", "words"),
    [(0.005, "near twins"), (0.1, "strong"), (0.3, "heavy")],
)
def test_the_size_of_a_change(judge, base, rng, share, words):
    assert words in judge(moved(base, rng, share))["size"].text


def test_other_weights_are_unrelated(judge, base, rng):
    other = {name: 0.02 * rng.standard_normal(value.shape) for name, value in base.items()}
    assert "unrelated" in judge(other)["size"].text


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ("lm_head", "only the head changed"),
        ("norm", "only norms changed"),
        ("q_proj", "only q_proj changed"),
        ("layers.3", "only the last layer changed"),
        ("layers.0", "all of model.layers.1, model.layers.2, model.layers.3"),
    ],
)
def test_frozen_parts(judge, base, rng, wanted, words):
    found = judge(moved(base, rng, 0.1, wanted))
    assert words in found["frozen"].text
    assert "frozen" in found["frozen"].text


def test_the_last_layers_and_the_head(judge, base, rng):
    new = moved(moved(base, rng, 0.1, "lm_head"), rng, 0.1, "layers.3")
    assert "only the last layer and the head changed" in judge(new)["frozen"].text


def test_nan_rows(judge, base):
    name = "model.layers.1.mlp.up_proj.weight"
    new = base | {name: np.where(np.arange(2 * WIDTH)[:, None] == 5, np.nan, base[name])}
    verdict = judge(new)["not-finite"]
    assert (verdict.level, verdict.tensors) == ("bad", (name,))
    assert f"{WIDTH} elements (NaN in 1 row) of {name}" in verdict.text
    assert "finite-again" in judge(base, old=new)


def test_dead_rows(judge, base):
    name = "model.layers.1.mlp.up_proj.weight"
    new = base | {name: np.where(np.arange(2 * WIDTH)[:, None] < 3, 0, base[name])}
    verdict = judge(new)["dead-rows"]
    assert verdict.level == "bad"
    assert "3 rows became all zero" in verdict.text
    assert "dead-rows" not in judge(base, old=new)


@pytest.mark.parametrize(("factor", "kind"), [(40, "exploded-norm"), (0.01, "vanished-norm")])
def test_norms(judge, base, factor, kind):
    name = "model.layers.2.mlp.down_proj.weight"
    found = judge(base | {name: factor * base[name]})
    assert found[kind].level == "bad"
    assert found[kind].tensors == (name,)
    assert f"{factor:.3g}"[:3] in found[kind].text


def test_moments_of_an_optimizer_may_do_what_they_like(judge, rng):
    old = {"state.0.exp_avg_sq": rng.random((20, 20)) * 1e-9, "state.0.step": np.ones(())}
    found = judge({name: 1000 * value for name, value in old.items()}, old=old)
    assert {one.level for one in found.values()} <= {"note"}


def test_fp8_that_is_clipped(judge, base):
    fp8 = ml_dtypes.float8_e4m3fn
    old = {name: value * 1000 for name, value in base.items()}
    new = {name: np.clip(value * 30_000, -448, 448) for name, value in base.items()}
    assert judge(new, old=old, old_type=fp8, new_type=fp8)["saturated"].level == "warning"
    assert "saturated" not in judge(old, old=old, old_type=BF16, new_type=fp8)


def test_a_cast_is_nothing_but_a_cast(judge, base):
    found = judge(base, old_type=np.float32)
    assert list(found) == ["cast"]
    assert "from F32 to BF16" in found["cast"].text
    assert "every tensor" in found["cast"].text


def test_a_cast_and_more(judge, base, rng):
    found = judge(moved(base, rng, 0.1, "q_proj"), old_type=np.float32)
    assert len(found["cast"].tensors) == 31 - LAYERS
    assert all("q_proj" in name for name in found["retyped"].tensors)


def test_one_factor(judge, base):
    found = judge({name: 0.5 * value for name, value in base.items()})
    assert "new ≈ 0.5 × old in every tensor" in found["scaled"].text
    assert "scaled" not in judge(moved(base, np.random.default_rng(1), 0.1))


def test_a_grown_vocabulary(judge, base, rng):
    grown = {
        name: np.vstack([value, rng.standard_normal((5, WIDTH))])
        if name in ("model.embed_tokens.weight", "lm_head.weight")
        else value
        for name, value in base.items()
    }
    text = judge(grown)["vocabulary"].text
    assert "grew from 80 to 85 rows: " in text
    assert "equal" in text
    assert "size" not in judge(grown)
    assert "shrank from 85 to 80" in judge(base, old=grown)["vocabulary"].text
    assert "changed" in judge(moved(grown, rng, 0.1, "embed"))["vocabulary"].text


def test_names_and_shapes(judge, base, rng):
    new = dict(base)
    new["transformer.final.weight"] = new.pop("lm_head.weight")
    base["odd.weight"], new["odd.weight"] = np.ones((2, 3)), np.ones((2, 4))
    new["extra.weight"] = np.ones(3)
    found = judge(new)
    assert found["renamed"].tensors == ("transformer.final.weight",)
    assert found["added"].tensors == ("extra.weight",)
    assert found["reshaped"].tensors == ("odd.weight",)


def test_a_lora_adapter(judge, base, rng):
    at = "base_model.model.layers.0.self_attn.q_proj."
    adapter = {f"{at}lora_A.weight": np.ones((8, WIDTH)), f"{at}lora_B.weight": np.ones((WIDTH, 8))}
    found = judge(base | adapter)
    assert "r = 8" in found["adapter"].text
    assert "added" not in found


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (lambda one: one.T, "transposed"),
        (lambda one: one[np.roll(np.arange(len(one)), 5)], "rows permuted"),
        (lambda one: one[:, ::-1], "columns permuted"),
        (lambda one: one[::-1, ::-1], "rows and columns permuted"),
    ],
)
@pytest.mark.parametrize("name", ["mlp.up_proj", "self_attn.q_proj"])
def test_elements_that_moved(judge, base, how, words, name):
    name = f"model.layers.2.{name}.weight"
    found = judge(base | {name: how(base[name])})
    assert found["rearranged"].tensors == (name,)
    assert found["rearranged"].text.startswith(f"{words}, no value changed")
    assert not {"size", "reshaped"} & set(found)


def test_only_what_may_have_moved_is_read_again(base, tmp_path, rng, monkeypatch):
    from mvc.comparison import rearranged

    monkeypatch.delattr(rearranged, "take_fingerprints")  # fails if it is called
    for name, model in (("old", base), ("new", moved(base, rng, 0.1))):
        save_file({key: value.astype("f4") for key, value in model.items()}, tmp_path / name)
        (tmp_path / name).rename(tmp_path / f"{name}.safetensors")
    mvc.compare(tmp_path / "old.safetensors", tmp_path / "new.safetensors")


def test_what_began_at_zero_may_grow(judge, base, rng):
    small = {"layers.0.bias": rng.standard_normal(WIDTH) * 1e-5}
    old = moved(base, rng, 0.05) | small
    small |= {"layers.0.q_proj.lora_B.weight": rng.standard_normal((WIDTH, 4)) * 1e-4}
    old |= small
    grown = {name: (300 if "lora" in name else 30_000) * value for name, value in small.items()}
    assert "exploded-norm" not in judge(base | grown, old=old)
    burst = {name: 3e6 * value for name, value in small.items()}
    assert {*judge(base | burst, old=old)["exploded-norm"].tensors} == {*small}


def test_training_scales_no_vector(judge, base, rng):
    old = moved(base, rng, 0.05)
    gains = {name: value * 1.05 for name, value in base.items() if "norm" in name}
    assert "scaled" not in judge(base | gains, old=old)
    matrix = {"lm_head.weight": old["lm_head.weight"] * 1.05}
    assert judge(base | gains | matrix, old=old)["scaled"].tensors == ("lm_head.weight",)


def test_weights_that_are_all_nan_are_only_that(judge, base):
    found = judge({name: np.full_like(value, np.nan) for name, value in base.items()})
    assert list(found) == ["not-finite"]


def test_a_bias_goes_with_its_weight(judge, base, rng):
    biases = {f"{name}.bias": np.zeros(WIDTH) for name in ("lm_head", "model.layers.0.mlp.up_proj")}
    found = judge(moved(base | biases, rng, 0.1, "lm_head"), old=base | biases)
    assert found["frozen"].text.startswith("only the head changed: ")
    found = judge(moved(base | biases, rng, 0.1, "bias"), old=base | biases)
    assert found["frozen"].text.startswith("only biases changed: ")


def test_few_elements_are_not_scaled_by_chance(judge, rng):
    few = {f"layers.{number}.mlp.up_proj.weight": rng.random((2, 2)) for number in range(300)}
    found = judge(moved(few, rng, 1), old=few, old_type=np.float32, new_type=np.float32)
    assert "scaled" not in found
    doubled = {name: 2 * value for name, value in few.items()}
    found = judge(doubled, old=few, old_type=np.float32, new_type=np.float32)
    assert "every tensor that changed (300)" in found["scaled"].text


def test_negated_weights_are_related(judge, base):
    found = judge({name: -value for name, value in base.items()})
    assert "new ≈ -1 × old" in found["scaled"].text
    assert "unrelated" not in found["size"].text


def test_pruned_weights(judge, base, rng):
    name = "model.layers.1.mlp.up_proj.weight"
    new = base | {name: np.where(abs(base[name]) < np.median(abs(base[name])), 0, base[name])}
    found = judge(new)
    assert found["pruned"].text.startswith("pruned: 50 % of the elements became zero, ")
    assert found["pruned"].tensors == (name,)
    assert "pruned" not in judge(moved(new, rng, 0.1, name))


@pytest.mark.parametrize("kind", ["Q8_0", "Q5_1", "Q4_0"])
def test_quantised_weights_are_nothing_but_that(tmp_path, base, rng, kind):
    gguf = pytest.importorskip("gguf")
    matrices = {name: np.float32(value) for name, value in base.items() if value.ndim > 1}

    def write(name, model, packed):
        writer = gguf.GGUFWriter(tmp_path / name, "llama")
        for key, value in model.items():
            if packed is None:
                writer.add_tensor(key, value)
            else:
                writer.add_tensor(key, gguf.quants.quantize(value, packed), raw_dtype=packed)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return tmp_path / name

    packed = gguf.GGMLQuantizationType[kind]
    plain, small = write("a.gguf", matrices, None), write("b.gguf", matrices, packed)
    (found,) = mvc.compare(plain, small).verdicts
    assert found.text.startswith(f"converted from F32 to {kind} as quantisation does, ΔW/W ")
    assert found.text.endswith("every tensor")
    other = {name: np.float32(rng.permuted(value)) for name, value in matrices.items()}
    found = {one.kind for one in mvc.compare(plain, write("c.gguf", other, packed)).verdicts}
    assert found == {"retyped", "size"}
