"""The loops that libraries document do what the page on them says."""

from pathlib import Path

import pytest

from support.loops import LOOPS, examine, format_row
from support.scenarios import SCENARIOS

PAGE = Path(__file__).parents[3] / "docs/loops.md"

pytestmark = pytest.mark.torch


@pytest.mark.nightly
@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_is_as_the_page_says(fits, tmp_path, name):
    if LOOPS[name].needs:
        pytest.importorskip(LOOPS[name].needs)
    assert format_row(name, examine(fits, tmp_path, name)) in PAGE.read_text().splitlines()


def test_the_page_counts_the_loops_of_plain_pytorch():
    assert "More than 50 loops of plain PyTorch" in PAGE.read_text()
    assert sum(len(one.builds) for one in SCENARIOS.values()) > 50


def test_the_page_names_these_loops_only():
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    assert len(rows) == len(LOOPS) + 2
