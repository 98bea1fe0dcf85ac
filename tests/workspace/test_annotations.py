"""What a commit says about the training: facts come back to the bit, and smuggle nothing in."""

import math

import numpy as np
import pytest

from mvc import UsageError

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
