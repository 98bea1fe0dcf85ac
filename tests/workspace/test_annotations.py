"""What a commit says about the training: facts come back to the bit, and smuggle nothing in."""

import math

import numpy as np
import pytest

from mvc import UsageError
from mvc.training import Agreement, Dispute
from mvc.workspace.trailers import read_agreement

NUMBERS = {
    "half": 0.5,
    "tiny": 5e-324,
    "third": 1 / 3,
    "minus-zero": -0.0,
    "inf": math.inf,
    "minus-inf": -math.inf,
    "whole": 7,
    "big": 2**70,
    "float-whole": 3.0,
    "np-f32": np.float32(0.1),
    "np-int": np.int64(12),
}


class TestAnnotations:
    def test_numbers_come_back_to_the_bit(self, repo):
        repo.commit("m", allow_empty=True, metrics={**NUMBERS, "nan": math.nan, "yes": True})
        found = repo.show().annotations.metrics
        assert list(found) == [*NUMBERS, "nan", "yes"]
        assert math.isnan(found["nan"])
        assert found["yes"] == 1
        for name, value in NUMBERS.items():
            assert found[name] == value
            assert math.copysign(1, found[name]) == math.copysign(1, value)
        assert isinstance(found["whole"], int)
        assert isinstance(found["float-whole"], float)

    @pytest.mark.parametrize("value", ["x", None, [1], 1j, pytest.param(10**5000, id="long")])
    def test_what_is_no_number(self, repo, value):
        with pytest.raises(UsageError, match="metric 'loss' is"):
            repo.commit("m", allow_empty=True, metrics={"loss": value})

    @pytest.mark.parametrize("name", ["", "a b", "a=b", "a\nb", "a\u2028b"])
    def test_names(self, repo, name):
        with pytest.raises(UsageError, match="is not a valid name"):
            repo.commit("m", allow_empty=True, metrics={name: 1})
        with pytest.raises(UsageError, match="is not a valid name"):
            repo.commit("m", allow_empty=True, meta={name: "x"})

    @pytest.mark.parametrize("step", [0, 12_000, 10**18 - 1, np.int64(5)])
    def test_steps(self, repo, step):
        commit = repo.commit("m", allow_empty=True, step=step).commit
        assert repo.show().annotations.step == step
        assert repo.resolve(f"main@{int(step)}") == commit

    @pytest.mark.parametrize(
        "step", [-1, 1.5, "7", 10**18, math.nan, pytest.param(10**5000, id="long")]
    )
    def test_what_is_no_step(self, repo, step):
        with pytest.raises(UsageError, match="step"):
            repo.commit("m", allow_empty=True, step=step)

    def test_meta_is_one_line_of_text(self, repo):
        meta = {"host": "gpu 01", "note": "x\nStep: 99", "empty": "", "eq": "a=b=c", "uni": "ü"}
        repo.commit("m", allow_empty=True, step=1, meta=meta)
        annotations = repo.show().annotations
        assert (annotations.step, annotations.meta) == (1, {**meta, "note": "x Step: 99"})

    def test_hostile_trailers_say_nothing(self, repo):
        lines = [
            "Step: " + "9" * 5000,
            "Step: -4",
            "Step: ²",
            "Metric: a=" + "9" * 5000,
            "Metric: b=0x10",
            "Metric: c",
            "Metric: d=²",
        ]
        repo.commit("m\n\n" + "\n".join(lines), allow_empty=True)
        annotations = repo.show().annotations
        assert annotations.step is None
        assert annotations.metrics.keys() <= {"a"}


ODD = Dispute("a model.safetensors", "layers.0 w\n%20\u2028é", 3, (0,), (1, 12))
PLAIN = Dispute("model.safetensors", "layers.3.weight", 5, (0,), (1,))


@pytest.mark.parametrize(
    "agreement",
    [Agreement(37, 592), Agreement(0, 1, 1, (PLAIN,)), Agreement(36, 592, 20, (PLAIN, ODD))],
)
def test_trailers_give_back_what_they_say(agreement):
    trailers = agreement.trailers()
    assert read_agreement(trailers) == agreement
    assert all(value.isprintable() and "\n" not in value for _, value in trailers)


def test_its_spelling_is_that_of_the_format():
    assert Agreement(36, 592, 1, (PLAIN,)).trailers() == [
        ("Replica-Check", "agreed=36 of=592 differed=1"),
        ("Replica-Dispute", "model.safetensors layers.3.weight chunk=5 stored=0 checked=1"),
    ]


def test_its_words():
    assert str(Agreement(1037, 5920)) == "two ranks agree on 1,037 of 5,920 chunks"
    one = "layers.3.weight in model.safetensors differs in chunk 5 between rank 0 and rank 1"
    assert str(Agreement(36, 592, 1, (PLAIN,))) == one
    assert str(Agreement(36, 592, 4, (PLAIN,))) == f"{one}, and 3 more"
    assert str(Agreement(36, 592, 2)) == "2 chunks differ between ranks"
    more = Dispute("f", "w", 0, (0, 1), (2, 3))
    assert str(more) == "w in f differs in chunk 0 between ranks 0, 1 and ranks 2, 3"


def test_what_anyone_may_write_into_a_message_is_nothing():
    for value in ["", "37 of 592", "agreed=37", "agreed=-1 of=3", "agreed=1 of=2 differed=x", f"agreed={9 * 10**30} of=1",
     "agreed=1 of=2 ", "agreed=1 of=2 more=3", "agreed=\u0663 of=4"]:  # fmt: skip
        assert read_agreement([("Replica-Check", value)]) is None


def test_disputes_that_cannot_be_read_are_left_out_and_none_are_too_many():
    bad = [
        "",
        "f w chunk=x stored=0 checked=1",
        "f w chunk=1 stored= checked=1",
        "w chunk=1 stored=0 checked=1",
    ]
    good = "f w chunk=1 stored=0 checked=1"
    trailers = [("Replica-Check", "agreed=0 of=99 differed=99")]
    trailers += [("Replica-Dispute", value) for value in [*bad, *[good] * 40]]
    found = read_agreement(trailers)
    assert found.differed == 99
    assert found.disputes == (Dispute("f", "w", 1, (0,), (1,)),) * 16
