"""Recipes: what mergekit's say, and everything that is wrong with one, before a model is opened."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc import FormatError, MvcError, NotFoundError, UnsupportedError
from mvc.merging.recipe import TokenizerChoice, evaluate, parse_recipe
from support.cases import for_each

GRADIENT_SLERP = """
slices:
  - sources:
      - model: a
        layer_range: [0, 40]
      - model: b
        layer_range: [0, 40]
merge_method: slerp
base_model: a
parameters:
  t:
    - filter: self_attn
      value: [0, 0.5, 0.3, 0.7, 1]
    - filter: mlp
      value: [1, 0.5, 0.7, 0.3, 0]
    - value: 0.5
dtype: float16
"""
TIES = """
merge_method: ties
base_model: main~3
models:
  - model: main
    parameters: {weight: 0.5, density: 1e-1}
  - model: other:model.safetensors
    parameters: {weight: 0.5}
parameters: {normalize: false, int8_mask: true, t: 1}
out_dtype: bfloat16
tokenizer: {source: union, pad_to_multiple_of: 64}
"""


def test_layers_filters_and_gradients_are_read_as_mergekit_reads_them():
    recipe = parse_recipe(GRADIENT_SLERP)
    assert (recipe.method, recipe.base, recipe.dtype, recipe.models) == (
        "slerp",
        "a",
        "F16",
        ["a", "b"],
    )
    assert recipe.is_sliced
    assert [one.layers for one in recipe.slices[0].sources] == [range(40), range(40)]
    t = recipe.parameters["t"]
    assert evaluate(t, "model.layers.0.self_attn.q_proj.weight", 0.0) == 0
    assert evaluate(t, "model.layers.5.self_attn.q_proj.weight", 0.125) == 0.25
    assert evaluate(t, "model.layers.39.mlp.up_proj.weight", 1.0) == 0
    assert evaluate(t, "model.norm.weight", 0.0) == 0.5
    assert evaluate(t[:2], "model.norm.weight", 0.0) is None


def test_models_parameters_and_tokenizers():
    recipe = parse_recipe(TIES)
    assert recipe.models == ["main~3", "main", "other:model.safetensors"]
    first = recipe.slices[0].sources[0]
    assert evaluate(first.parameters["density"], "w", 0.0) == 0.1  # YAML takes 1e-1 for a text
    assert evaluate(recipe.parameters["normalize"], "w", 0.0) is False
    assert recipe.dtype == "BF16"
    assert recipe.tokenizer == TokenizerChoice("union", 64)
    # Of slerp: no mistake of the pen, and without meaning here.
    assert recipe.ignored == ("ties has no parameter 't': ignored, as in mergekit",)


def test_one_value_for_all_models_does_not_count_at_one_of_them():
    recipe = parse_recipe(
        TIES.replace("{weight: 0.5}", "{weight: 0.5, lambda: 2, int8_mask: true}")
    )
    assert recipe.ignored[0].startswith(
        "`lambda` of ties takes one value for all models: that of models[1]"
    )
    assert len(recipe.ignored) == 2  # int8_mask changes nothing anywhere


def test_a_recipe_of_several_may_have_a_name():
    assert parse_recipe(f"name: first\n{TIES}").models == parse_recipe(TIES).models


def test_switches_along_the_layers_are_steps():
    recipe = parse_recipe(
        "{merge_method: linear, models: [{model: a, parameters: {weight: 1}}],"
        " parameters: {normalize: [true, false]}}"
    )
    setting = recipe.parameters["normalize"]
    assert [evaluate(setting, "w", depth) for depth in (0.0, 0.6, 1.0)] == [True, True, False]


@for_each(
    ("old", "new", "message", "hint"),
    [
        ("ties", "tied", "unknown merge method 'tied'", "did you mean 'ties'"),
        ("base_model", "basemodel", "recipe has an unknown key: 'basemodel'", "'base_model'"),
        ("models", "modules", "recipe has 'modules', which mvc does not support", "architectures"),
        ("density", "densty", "have an unknown name: 'densty'", "did you mean 'density'"),
        ("1e-1", "much", "'density' of models[0] must be a number, true or false", None),
        ("bfloat16", "bf16", "out_dtype 'bf16' is not a supported dtype (float16", None),
        ("model: main\n", "model: main+lora\n", "puts an adapter on a model: 'main+lora'", "first"),
        ("model: main\n", "model: other:model.safetensors\n", "names 'other:model.safetensors' twice", None),
        ("tokenizer:", "tokenizer_source: base\ntokenizer:", "both tokenizer_source and tok", None),
        ("source: union", "tokens: {a: {source: b}}", "tokenizer.tokens is not supported", "those"),
        ("64", "0.5", "pad_to_multiple_of must be a whole number", None),
        ("merge_method: ties", "", "recipe has no merge_method", "linear"),
        ("merge_method: ties", "merge_method: ties\nmerge_method: slerp", "gives 'merge_method' twice in the entry of line 2", None),
        ("{weight: 0.5}", "{weight: 0.5, weight: 1}", "gives 'weight' twice in the entry of line 8", None),
        ("merge_method: ties", "merge_method: ties\n---\nmerge_method: ties", "several recipes", "its own file"),
        (None, "# nothing", "recipe is empty", None),
        ("{weight: 0.5}", "[1]", "parameters of models[1] must map names to values", None),
        ("  - model: main\n", "  - modl: main\n", "models[0] has an unknown key: 'modl'", "'model'"),
        ("{weight: 0.5}", "{weight: [{filter: 3, value: 1}]}", "filter for 'weight' of models[1]", None),
        ("{weight: 0.5}", "{weight: [{filter: x}]}", "a condition for 'weight' of models[1] has no", None),
        ("{weight: 0.5}", "{weight: .nan}", "'weight' of models[1] must be a number", None),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_place(old, new, message, hint):
    assert old is None or old in TIES
    with pytest.raises((FormatError, NotFoundError, UnsupportedError)) as caught:
        parse_recipe(new if old is None else TIES.replace(old, new))
    assert message in caught.value.message
    assert hint is None or hint in caught.value.hint


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[0, 40]", "[0, 20]", "sources of slices[0] have different numbers of layers"),
        ("[0, 40]", "[40, 0]", "layer_range of slices[0].sources[0] must be [first, end]"),
        ("layer_range: [0, 40]", "", "layer_range of slices[0].sources[0] must be"),
        ("[0, 40]", "[0, 100000]", "layer_range of"),
        ("slices:", "models: [{model: a}]\nslices:", "recipe needs either models or slices"),
    ],
)
def test_what_is_wrong_with_slices(old, new, message):
    with pytest.raises(FormatError) as caught:
        parse_recipe(GRADIENT_SLERP.replace(old, new, 1))
    assert message in caught.value.message


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a: [",
        "- 1",
        "!!python/object/apply:os.system ['true']",
        "[" * 5000,
        "x" * 2**19,
        "a: &a {b: 1}\nc: {<<: [*a, *a]}",
        "merge_method: linear\nmodels: &m [{model: a, parameters: {weight: &w ["
        + "1," * 1000
        + "]}}"
        + ", {model: b, parameters: {weight: *w}}" * 200
        + "]",
    ],
    ids=["empty", "torn", "list", "object", "deep", "long", "merge key", "alias bomb"],
)
def test_hostile_recipes_are_refused(text):
    with pytest.raises(MvcError):
        parse_recipe(text)


MODELS = "merge_method: linear\nmodels: [{model: a}, {model: b}]\n"
LAUGHS = "&a [x], " + ", ".join(
    f"&{name} [{', '.join(['*' + before] * 10)}]"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@for_each(
    ("text", "message"),
    [
        (f"models: [{LAUGHS}]\nbase_model: *i\nmerge_method: linear\n", "base_model must be a rev"),
        (f"{MODELS}parameters: &p {{weight: *p}}", "'weight' of recipe has an unknown key: 'weight'"),
        (f"{MODELS}parameters: {{weight: &w [*w]}}", "'weight' of recipe must be a number"),
        (f"{MODELS}parameters: {{weight: {'9' * 5000}}}", "recipe has a number of "),
        (f"{MODELS}parameters: {{weight: 0x{'f' * 400}}}", "recipe has a number of "),
        (f"{MODELS}parameters: {{weight: 1{':59' * 300}.5}}", "recipe has a number of "),
        (f"{MODELS}tokenizer: {{pad_to_multiple_of: 0x{'f' * 9000}}}", "recipe has a number of "),
        (f"{MODELS}tokenizer: {{pad_to_multiple_of: true}}", "pad_to_multiple_of must be a whole"),
        (f"{MODELS}dtype: [float16]", "dtype ['float16'] is not a supported dtype (float16"),
        (f"{MODELS}dtype: {{float16: 1}}", "dtype {'float16': 1} is not a supported dtype (float16"),
        (f"{MODELS}base_model: {'a' * 5000}", "base_model must be a revision or a file"),
        (f"{MODELS}x: &x {{a: b}}\n!!merge k: *x\n", "recipe has a merge key (<<)"),
        ("merge_method: passthrough\nslices: [{sources: [{model: a, layer_range: [false, 1]}]}]", "layer_range of"),
        (f"merge_method: linear\nmodels: [&m {{model: a}}{', *m' * 20_000}]", "models names 'a' twice"),
    ],
)  # fmt: skip
def test_hostile_values_are_one_clear_error(text, message):
    with pytest.raises((FormatError, UnsupportedError)) as caught:
        parse_recipe(text)
    assert message in caught.value.message
    assert len(caught.value.message) < 200


def test_a_merge_key_in_a_text_is_none():
    assert parse_recipe(f"{MODELS}base_model: 'a<<: b'\n").base == "a<<: b"


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["merge_method", "models", "slices", "sources", "model", "layer_range", "parameters", "weight", "value", "filter", "dtype", "tokenizer", "base_model"]), inner, max_size=4), max_leaves=20))  # fmt: skip
def test_any_values_give_a_recipe_or_an_error_of_ours(values):
    import yaml

    given_method = {"merge_method": "linear", **values} if isinstance(values, dict) else values
    with contextlib.suppress(MvcError):
        parse_recipe(yaml.safe_dump(given_method))
