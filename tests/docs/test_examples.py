"""The example of a killed run does what it claims; the demo runs the plain loop."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/resume_after_kill.py"


@pytest.mark.torch
def test_a_killed_run_ends_in_the_same_bits(tmp_path):
    command = [sys.executable, str(EXAMPLE), "--folder", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "both runs end in the same bits" in done.stdout
    assert "begins at step 25" in done.stdout


def test_the_page_shows_every_example_but_the_demo():
    page = (ROOT / "docs/examples.md").read_text()
    for path in (ROOT / "examples").glob("*.py"):
        if path.name != "demo.py":
            assert f'--8<-- "examples/{path.name}"' in page
