"""The wheel that users install holds both packages and works away from the source tree."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = folder.glob("mvc_models-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def test_the_wheel_holds_what_it_should(installed):
    names = {path.relative_to(installed).as_posix() for path in installed.rglob("*.*")}
    assert {
        "mvc/__init__.py",
        "mvc/py.typed",
        "mvc_hooks/py.typed",
        "mvc_hooks/handover.py",
    } <= names
    assert not [name for name in names if name.startswith(("tests", "hooks/", "benchmarks"))]


def test_it_works_away_from_the_source(installed, tmp_path):
    script = (
        f"import sys; sys.path.insert(0, {str(installed)!r})\n"
        "import mvc, mvc_hooks, mvc.cli.main\n"
        f"assert mvc.__file__.startswith({str(installed)!r}), mvc.__file__\n"
        f"assert mvc_hooks.__file__.startswith({str(installed)!r}), mvc_hooks.__file__\n"
        "raise SystemExit(mvc.cli.main.run(['init']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / ".mvc" / "HEAD").exists()
