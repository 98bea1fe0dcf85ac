"""Two live models, module by module and by what they predict."""

from __future__ import annotations

import copy
import math
import threading
import warnings
import weakref

import numpy as np
import pytest
import torch
from torch import nn

from mvc import UsageError
from mvc_lab import compare_modules, compare_outputs
from support.behaving import Classifier, changed, perceptron

INPUTS = torch.randn(20, 6, generator=torch.Generator().manual_seed(1))
TOKENS = torch.randint(0, 50, (40, 7), generator=torch.Generator().manual_seed(1))


def by_name(report):
    return {module.name: module for module in report.modules}


def outputs_of(model, inputs):
    """Return name → what each module returned, as the hooks of one plain run see it."""
    found = {}

    def keep(name):
        def hook(module, args, output):
            found[name] = output.clone()

        return hook

    handles = [one.register_forward_hook(keep(name)) for name, one in model.named_modules()]
    with torch.no_grad():
        model.eval()(inputs)
    for handle in handles:
        handle.remove()
    return found


def test_each_module_against_a_run_of_its_own():
    old = perceptron()
    new = changed(old, "3.weight")
    with torch.no_grad():
        new[0].bias[2] += 0.5
    report = compare_modules(old, new, INPUTS, cosine=None, bound=1e-7, batch_size=7)
    assert [module.name for module in report.modules] == ["0", "1", "2", "3", ""]
    sides = (outputs_of(copy.deepcopy(model), INPUTS) for model in (old, new))
    first, second = (
        {name: one.double().flatten().numpy() for name, one in side.items()} for side in sides
    )
    for name, module in by_name(report).items():
        one, other = first[name], second[name]
        # ReLU works in place: what the module before it returned must be compared before that.
        norms = np.linalg.norm(one) * np.linalg.norm(other)
        assert module.cosine == pytest.approx(one @ other / norms, abs=1e-12)
        apart = np.linalg.norm(other - one) / np.linalg.norm(one)
        assert module.relative_l2 == pytest.approx(apart, rel=1e-5)
        assert module.largest_difference == pytest.approx(np.abs(other - one).max(), rel=1e-5)
        assert (module.elements, module.calls) == (one.size, 3)
    assert report.first.name == "0"
    assert not report.passed


def test_the_first_module_below_the_threshold_is_named_in_the_order_of_running():
    old = Classifier()
    new = changed(old, "mix.weight_hh_l0", 0.5)
    report = compare_modules(old, new, {"input_ids": TOKENS})
    assert [module.name for module in report.modules] == ["embed", "mix", "drop", "head", ""]
    assert report.first.name == "mix"
    assert by_name(report)["embed"].passed
    assert report.worst_first[0].relative_l2 == max(one.relative_l2 for one in report.modules)
    assert compare_modules(old, copy.deepcopy(old), {"input_ids": TOKENS}, bound=0.0).passed
    assert compare_modules(old, old, {"input_ids": TOKENS}, bound=0.0).passed


class Twice(nn.Module):
    """Runs its first module before and after the one that is to differ."""

    def __init__(self):
        super().__init__()
        self.same, self.other = nn.ReLU(), nn.Linear(6, 6)

    def forward(self, x):
        return self.same(self.other(self.same(x)))


def test_the_first_is_the_one_whose_call_differed_first():
    old = Twice()
    report = compare_modules(old, changed(old, "other.bias", 0.5), INPUTS, batch_size=7)
    assert [(one.name, one.passed) for one in report.modules] == [
        ("same", False), ("other", False), ("", False),
    ]  # fmt: skip
    assert report.first.name == "other"
    assert by_name(report)["same"].calls == 6


def test_models_and_settings_come_back_as_they_were():
    old, new = perceptron().train(), perceptron(1).eval()
    state, threads = torch.get_rng_state(), threading.active_count()
    compare_modules(old, new, INPUTS)
    with pytest.raises(UsageError):
        compare_modules(old, new, TOKENS)
    assert torch.equal(torch.get_rng_state(), state)
    assert threading.active_count() == threads
    assert not torch.are_deterministic_algorithms_enabled()
    assert all(module.training for module in old.modules())
    assert not any(module.training for module in new.modules())
    assert not any(module._forward_hooks for module in [*old.modules(), *new.modules()])


class Noisy(nn.Module):
    """Draws random numbers whatever the mode."""

    def forward(self, x):
        return x + torch.randn_like(x)


def test_models_that_draw_random_numbers_draw_the_same():
    one = nn.Sequential(Noisy(), Noisy(), nn.Linear(6, 3))
    report = compare_modules(one, copy.deepcopy(one), INPUTS, bound=0.0)
    assert report.passed
    assert not compare_modules(nn.Sequential(Noisy()), nn.Sequential(nn.Identity()), INPUTS).passed


class Halves(nn.Module):
    """Holds on to nothing, so that only the comparison could."""

    def __init__(self, seen):
        super().__init__()
        self.seen = seen

    def forward(self, x):
        alive = sum(one() is not None for one in self.seen)
        result = x * 0.5
        self.seen.append(weakref.ref(result))
        assert alive <= 4, alive
        return result


def test_no_more_than_a_few_outputs_are_held():
    seen = []
    models = [nn.Sequential(*(Halves(seen) for _ in range(30))) for _ in range(2)]
    assert compare_modules(*models, INPUTS, batch_size=20).passed
    assert len(seen) == 60


def test_modules_that_run_otherwise():
    class Branch(nn.Module):
        def __init__(self, first):
            super().__init__()
            self.a, self.b, self.first = nn.Linear(6, 6), nn.Linear(6, 6), first

        def forward(self, x):
            return self.a(x) if self.first else self.b(x)

    report = compare_modules(Branch(True), Branch(False), INPUTS)
    assert report.parted == ("a", "b")
    assert not report.passed
    longer = nn.Sequential(*perceptron(), nn.Identity())
    assert compare_modules(perceptron(), longer, INPUTS).parted == ("", "4")


def test_outputs_that_do_not_compare():
    report = compare_modules(nn.Linear(6, 3), nn.Linear(6, 4), INPUTS, batch_size=20)
    assert report.modules[0].reason == "shape [20, 3] became [20, 4]"
    assert math.isnan(report.modules[0].cosine)
    assert not report.passed


class Constant(nn.Module):
    def __init__(self, value):
        super().__init__()
        self.value = value

    def forward(self, x):
        return {"a": (torch.full((len(x), 2), self.value), [None, {"b": torch.ones(1)}])}


@pytest.mark.parametrize(
    ("old", "new", "passed", "largest"),
    [
        (math.nan, math.nan, True, 0),
        (math.inf, math.inf, True, 0),
        (math.nan, 1.0, False, math.nan),
        (1.0, math.inf, False, math.inf),
        (0.0, 0.0, True, 0),
        (0.0, -0.0, True, 0),
    ],
)
def test_what_is_not_finite(old, new, passed, largest):
    report = compare_modules(Constant(old), Constant(new), INPUTS)
    assert report.passed == passed
    assert report.modules[-1].largest_difference == pytest.approx(largest, nan_ok=True)


class Cast(nn.Module):
    def __init__(self, dtype, by):
        super().__init__()
        self.dtype, self.by = dtype, by

    def forward(self, x):
        return (x.abs() + self.by).to(self.dtype)


@pytest.mark.parametrize(
    "dtype", ["float8_e4m3fn", "float8_e5m2", "bfloat16", "complex64", "int8", "uint16", "float64"]
)
def test_outputs_of_any_dtype(dtype):
    dtype = getattr(torch, dtype)
    assert compare_modules(Cast(dtype, 1), Cast(dtype, 1), INPUTS, bound=0.0).passed
    report = compare_modules(Cast(dtype, 1), Cast(dtype, 3), INPUTS)
    sides = (Cast(dtype, by)(INPUTS).to(torch.complex128).numpy().ravel() for by in (1, 3))
    old, new = sides
    wanted = np.linalg.norm(new - old) / np.linalg.norm(old)
    assert report.modules[0].relative_l2 == pytest.approx(wanted)
    assert not report.passed


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"cosine": 2.0}, "not between -1 and 1"),
        ({"cosine": math.nan}, "not between -1 and 1"),
        ({"bound": -1.0}, "not at least 0"),
        ({"cosine": None}, "nothing to judge by"),
        ({"batch_size": 0}, "too small"),
    ],
)
def test_thresholds_that_mean_nothing(options, said):
    with pytest.raises(UsageError, match=said):
        compare_modules(perceptron(), perceptron(), INPUTS, **options)


def test_a_model_that_fails_says_so_in_one_line():
    with pytest.raises(
        UsageError, match=r"fails on the inputs: RuntimeError: mat1 and mat2"
    ) as error:
        compare_modules(perceptron(), perceptron(), INPUTS[:, :5])
    assert "\n" not in error.value.message
    assert threading.active_count() < 20


def test_what_runs_as_a_whole_is_compared_as_a_whole():
    model = perceptron()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch advises other tools
        whole = torch.jit.trace(model.eval(), INPUTS)
    report = compare_modules(whole, whole, INPUTS)
    assert [one.name for one in report.modules] == [""]
    compiled = torch.compile(model, backend="eager")
    assert [one.name for one in compare_modules(compiled, compiled, INPUTS).modules] == [""]


def test_what_is_no_model_or_returns_nothing():
    class Nothing(nn.Module):
        def forward(self, x):
            return None

    with pytest.raises(UsageError, match="no module returns a tensor"):
        compare_modules(Nothing(), Nothing(), INPUTS)
    with pytest.raises(UsageError, match="a function is not a torch"):
        compare_modules(perceptron(), outputs_of, INPUTS)


class TestOutputs:
    def test_the_same_model(self):
        model = Classifier()
        inputs = {"input_ids": TOKENS, "labels": TOKENS}
        report = compare_outputs(model, copy.deepcopy(model), inputs)
        assert report.passed
        assert (report.samples, report.score, report.agreement.share) == (40, "confidence", 1)
        assert report.loss.old == report.loss.new
        assert report.divergence == 0
        assert sum(report.histogram.old) == 40

    def test_perplexity_is_that_of_the_next_token(self):
        old, new = Classifier(), Classifier()
        labels = TOKENS.clone()
        labels[:, 5:] = -100
        report = compare_outputs(old, new, {"input_ids": TOKENS, "labels": labels}, batch_size=7)
        for model, found in ((old, report.loss.old), (new, report.loss.new)):
            with torch.no_grad():
                logits = model.eval()(TOKENS)["logits"][:, :-1].double()
            wanted = nn.functional.cross_entropy(
                logits.reshape(-1, 50), labels[:, 1:].reshape(-1), ignore_index=-100
            )
            assert found == pytest.approx(math.exp(wanted))
        assert not report.passed
        assert {test.name for test in report.tests if not test.passed} >= {"top-agreement"}

    def test_classes_and_targets_in_their_places(self):
        old = perceptron()
        targets = torch.randint(0, 4, (20,))
        report = compare_outputs(old, changed(old, "3.bias"), INPUTS, targets=targets)
        with torch.no_grad():
            wanted = nn.functional.cross_entropy(old.eval()(INPUTS).double(), targets)
        assert report.loss.old == pytest.approx(math.exp(wanted))
        images = nn.Conv2d(3, 5, 1)
        pictures, classes = torch.randn(12, 3, 4, 4), torch.randint(0, 5, (12, 4, 4))
        report = compare_outputs(images, images, pictures, targets=classes)
        with torch.no_grad():
            wanted = nn.functional.cross_entropy(images(pictures).double(), classes)
        assert report.loss.old == pytest.approx(math.exp(wanted))

    def test_numbers_and_targets(self):
        old = nn.Linear(6, 1)
        targets = torch.randn(20, 1)
        report = compare_outputs(old, changed(old, "bias", 0.5), INPUTS, targets=targets)
        with torch.no_grad():
            wanted = (old(INPUTS).double() - targets).square().mean()
        assert (report.loss.kind, report.score) == ("mean-squared-error", "value")
        assert report.loss.old == pytest.approx(float(wanted))
        assert report.agreement is None

    def test_what_the_attention_mask_hides_does_not_count(self):
        old, new = Classifier(), Classifier()
        mask = torch.ones_like(TOKENS)
        mask[:, 4:] = 0
        inputs = {"input_ids": TOKENS, "attention_mask": mask}
        report = compare_outputs(old, new, inputs)
        with torch.no_grad():
            tops = [model.eval()(TOKENS)["logits"][:, :4].argmax(-1) for model in (old, new)]
        assert report.agreement.share == pytest.approx(float((tops[0] == tops[1]).double().mean()))

    def test_a_small_systematic_change_is_found(self):
        old = nn.Linear(6, 1)
        inputs = torch.randn(400, 6, generator=torch.Generator().manual_seed(2))
        spread = float(old(inputs).detach().std())
        assert not compare_outputs(old, changed(old, "bias", 0.3 * spread), inputs).passed

    def test_too_few_samples_are_not_judged(self):
        report = compare_outputs(perceptron(), perceptron(1), INPUTS[:3], agreement=0.01)
        assert (report.passed, report.is_judged, report.least_samples) == (None, False, 10)

    def test_what_is_not_finite_on_one_side_fails(self):
        report = compare_outputs(Numbers(1.0), Numbers(math.nan), INPUTS)
        assert report.tests[0].name == "not-finite"
        assert report.passed is False
        assert compare_outputs(Numbers(math.nan), Numbers(math.nan), INPUTS).passed

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"significance": 0.0}, "significance"),
            ({"significance": math.nan}, "significance"),
            ({"agreement": 1.5}, "agreement"),
            ({"targets": torch.zeros(3, dtype=torch.long)}, "different numbers of samples"),
            ({"targets": torch.full((20,), 9)}, "not one of 4 classes"),
            ({"targets": torch.zeros(20, 9)}, "targets of shape"),
        ],
    )
    def test_wrong_use(self, options, said):
        with pytest.raises(UsageError, match=said):
            compare_outputs(perceptron(), perceptron(), INPUTS, **options)

    def test_outputs_that_cannot_be_scored(self):
        class Words(nn.Module):
            def forward(self, x):
                return "seven"

        with pytest.raises(UsageError, match="no tensor of floating-point"):
            compare_outputs(Words(), Words(), INPUTS)
        with pytest.raises(UsageError, match="not a row for each"):
            compare_outputs(nn.Flatten(0), nn.Flatten(0), INPUTS)
        with pytest.raises(UsageError, match="cannot be compared"):
            compare_outputs(nn.Linear(6, 3), nn.Linear(6, 4), INPUTS)


class Numbers(nn.Module):
    def __init__(self, value):
        super().__init__()
        self.value = value

    def forward(self, x):
        return torch.full((len(x), 1), self.value) * x[:, :1].abs()
