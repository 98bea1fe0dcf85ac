"""Loaders of other libraries in trainings that are killed, moved and rolled back: as the page says."""

from pathlib import Path

import pytest

from support.bounds import rest_nightly
from support.data_libraries import (
    COLUMNS,
    LOADERS,
    PASS,
    TOTAL,
    examine,
    format_row,
    read_trace,
    run_cut,
)

PAGE = Path(__file__).parents[3] / "docs/data-libraries.md"

pytestmark = [pytest.mark.torch, pytest.mark.slow]


@pytest.fixture(scope="module")
def libraries(quick_writers):
    for name in ("datasets", "grain", "litdata", "torchdata", "webdataset"):
        pytest.importorskip(name)
    from support.zygote import Zygote

    with Zygote("support.data_libraries") as zygote:
        yield zygote


@pytest.mark.parametrize("name", rest_nightly(LOADERS))
def test_a_loader_is_as_the_page_says(libraries, tmp_path, name):
    assert format_row(name, examine(libraries, tmp_path, name)) in PAGE.read_text().splitlines()


def test_the_page_names_these_loaders_only():
    rows = [line.split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    named = [f"{row[0][2:]}: {row[1]}" for row in rows if len(row) == 2 + len(COLUMNS)]
    assert named[2:] == list(LOADERS)


ITERATED = {
    "torchdata: StatefulDataLoader": {"workers": 2},
    "datasets: streamed in StatefulDataLoader": {"workers": 2, "persistent": True},
    "datasets: streamed, passed itself": {},
    "streaming: StreamingDataLoader": {"workers": 2, "persistent": True},
    "litdata: StreamingDataLoader": {"workers": 2},
}


@pytest.mark.parametrize("name", rest_nightly(ITERATED))
def test_a_loader_that_the_loop_iterates_has_whole_passes_after_a_resume(libraries, tmp_path, name):
    how = {"name": name, "iterates": True, **ITERATED[name]}
    plain = libraries.run("train", tmp_path, run="plain", **how)
    assert not plain.error, plain.error
    how.pop("name")
    run_cut(libraries, tmp_path, name, "cut", (5, PASS, PASS + 5), **how)
    expected, got = (read_trace(tmp_path / f"{run}-0.jsonl") for run in ("plain", "cut"))
    assert [got[step]["ids"] for step in range(TOTAL)] == [
        expected[step]["ids"] for step in range(TOTAL)
    ]
    assert got == expected
