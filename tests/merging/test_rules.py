import pytest

from mvc.errors import NotFoundError, UsageError
from mvc.merging.rules import MergeRule, Rules, parse_rule


def test_the_first_rule_that_fits_decides():
    rules = Rules((MergeRule("lm_head.*", "theirs"), MergeRule("*", "ours")), "base")
    assert rules.find("m.safetensors", "lm_head.weight", ()) == "theirs"
    assert rules.find("m.safetensors", "embed", ()) == "ours"
    assert Rules((), "base").find("m.safetensors", "embed", ()) == "base"
    assert Rules().find("m.safetensors", "embed", ()) is None


@pytest.mark.parametrize("pattern", ["w", "*.bin", "d/m.bin", "d/m.bin:w", "d/m*:?"])
def test_a_rule_names_tensors_files_or_both(pattern):
    assert MergeRule(pattern, "ours").fits("d/m.bin", "w")
    assert not MergeRule(pattern, "ours").fits("d/n.safetensors", "v")


def test_a_rule_about_a_file():
    assert MergeRule("*.txt", "ours").fits("notes.txt", None)
    assert not MergeRule("w", "ours").fits("notes.txt", None)


def test_a_method_decides_over_weights_only():
    """Moments of an optimizer and generators have no mean that means anything."""
    paths = ["run/state.json", "run/model.safetensors", "run/optimizer.safetensors"]
    rules = Rules((), "linear")
    assert rules.find("run/model.safetensors", "w", paths) == "linear"
    assert rules.find("run/optimizer.safetensors", "exp_avg", paths) is None
    assert rules.find("run/state.json", None, paths) is None
    assert rules.find("optimizer.safetensors", "exp_avg", paths) == "linear"  # no state beside it
    assert Rules((), "ours").find("run/optimizer.safetensors", "exp_avg", paths) == "ours"
    own = Rules((MergeRule("optimizer.*", "linear"), MergeRule("run/opt*", "linear")), None)
    assert own.find("run/optimizer.safetensors", "exp_avg", paths) == "linear"


def test_a_mistyped_rule_is_an_error():
    for text in ("lm_head.*", "=ours", "lm_head=", ""):
        with pytest.raises(UsageError, match="GLOB=STRATEGY"):
            parse_rule(text)
    assert parse_rule("a=b=ours") == MergeRule("a=b", "ours")
    rules = Rules((MergeRule("lm_head.*", "ours"), MergeRule("lm_haed.*", "ours")))
    with pytest.raises(NotFoundError, match="lm_haed"):
        rules.check_used([("m", None), ("m", "lm_head.weight")])
    rules.check_used([("lm_haed.x", None), ("m", "lm_head.weight")])


def test_what_an_optimizer_keeps_is_not_averaged_by_default():
    rules = Rules((MergeRule("*.step", "ours"),), "linear")
    names = ("state.0.exp_avg", "optimizer.state.12.momentum_buffer", "state.0.step")
    assert [rules.find("m.pt", name, ()) for name in names] == [None, None, "ours"]
    for weight in ("state.0.weight", "net.state.1.bias", "state.exp_avg", "w"):
        assert rules.find("m.pt", weight, ()) == "linear"
