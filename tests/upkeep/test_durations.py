"""Spans of time as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.errors import UsageError
from mvc.upkeep.durations import duration_text, parse_duration


class TestDurations:
    @pytest.mark.parametrize(
        ("text", "seconds"),
        [("90s", 90), ("30m", 1800), ("12h", 43_200), ("7d", 604_800), ("2w", 1_209_600),
         ("1y", 31_536_000), ("0s", 0)],
    )  # fmt: skip
    def test_units(self, text, seconds):
        assert parse_duration(text) == seconds

    @pytest.mark.parametrize(
        "text", ["", "7", "d", "-1d", "1.5d", "7 d", "7D", "٣d", "9" * 17 + "d"]
    )
    def test_what_is_none(self, text):
        with pytest.raises(UsageError):
            parse_duration(text)

    @given(st.integers(0, 2**53))
    def test_text_reads_back(self, seconds):
        assert parse_duration(duration_text(seconds)) == seconds
