"""Bounded coverage-guided fuzzing of every parser, where atheris runs."""

import re
from pathlib import Path

import pytest

from support.commands import run_python

SCRIPT = Path(__file__).parent / "fuzz_parsers.py"
TARGETS = re.findall(r"def fuzz_(\w+)", SCRIPT.read_text())
RUNS = 20_000


@pytest.mark.nightly
@pytest.mark.parametrize("target", TARGETS)
def test_target(target, tmp_path):
    pytest.importorskip("atheris", reason="atheris has no build for this Python")
    seeds = tmp_path / "seeds"
    seeds.mkdir()
    golden = SCRIPT.parents[1] / "golden"
    for number, path in enumerate(sorted(golden.rglob("*"))):
        if path.is_file() and path.stat().st_size < 20_000:
            (seeds / f"{number}").write_bytes(path.read_bytes())
    limits = [f"-runs={RUNS}", "-seed=1", "-max_len=4096", "-timeout=120", "-rss_limit_mb=2048"]
    limits += [f"-artifact_prefix={tmp_path}/", seeds]
    done = run_python(SCRIPT, target, *limits, folder=tmp_path)
    assert "Done " in done.stderr, done.stderr[-2000:]
