"""Bounded coverage-guided fuzzing of every parser, where atheris runs."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "fuzz_parsers.py"
TARGETS = [
    "dcp",
    "delta",
    "encoding",
    "hub",
    "index",
    "layout",
    "manifest",
    "message",
    "pack",
    "path",
    "pickle",
    "references",
    "state",
]
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
    done = subprocess.run(
        [sys.executable, str(SCRIPT), target, *limits, f"-artifact_prefix={tmp_path}/", str(seeds)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "Done " in done.stderr, done.stderr[-2000:]


def test_every_target_is_run():
    text = SCRIPT.read_text()
    assert [name for name in TARGETS if f"def fuzz_{name}(" not in text] == []
    assert text.count("def fuzz_") == len(TARGETS)
