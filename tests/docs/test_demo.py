"""The demo tells its whole story, briefly, and its proof holds."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.torch
def test_demo(tmp_path):
    folder = tmp_path / "demo"
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples/demo.py"), "--folder", str(folder), "--steps", "12"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    digests = [
        line.split()[0]
        for line in done.stdout.splitlines()
        if line.endswith("  model.safetensors") and len(line.split()[0]) == 64
    ]
    assert len(digests) == 3
    base, tuned, back = digests
    assert back == base != tuned
    assert f"bit-exact: {base}" in done.stdout
