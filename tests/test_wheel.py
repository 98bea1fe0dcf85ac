"""The wheel that users install holds both packages and works away from the source tree."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import mvc
from mvc.cli import NAMES

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
        "mvc_data/py.typed",
        "mvc_lab/py.typed",
        "mvc_lab/monitor/rules.yml",
        "mvc_lab/monitor/dashboard.json",
        *(f"mvc/cli/pages/{part}" for part in ("page.html", "page.css", "frame.js", "diff.js")),
    } <= names
    assert not [name for name in names if name.startswith(("tests", "hooks/", "benchmarks"))]


def test_man_pages_say_what_docs_cli_does(installed):
    (folder,) = installed.glob("*.data/data/share/man/man1")
    pages = {path.name: path.read_text() for path in folder.iterdir()}
    assert set(pages) == {"mvc.1", *(f"mvc-{name}.1" for name in NAMES)}
    assert pages["mvc-du.1"].startswith(f'.TH MVC\\-DU 1 "" "mvc {mvc.__version__}" "mvc"\n')
    assert "mvc\\-du \\- show what branches, commits, tags" in pages["mvc-du.1"]
    assert "\n.TP\n\\fB\\-\\-by KIND\\fR\nPrint one full list: branch, tag" in pages["mvc-du.1"]
    assert "\n.SH EXIT CODES AND ERRORS\n" in pages["mvc.1"]
    for text in pages.values():
        assert "`" not in text
        assert "](" not in text
        assert "\n.SH SYNOPSIS\n" in text


@pytest.mark.skipif(shutil.which("mandoc") is None, reason="mandoc is not installed")
def test_mandoc_finds_no_fault_in_man_pages(installed):
    pages = installed.glob("*.data/data/share/man/man1/*")
    done = subprocess.run(
        ["mandoc", "-Tlint", "-W", "warning", *pages], capture_output=True, text=True, check=False
    )
    faults = [line for line in done.stdout.splitlines() if "missing date" not in line]
    assert faults == []


def test_it_works_away_from_the_source(installed, tmp_path):
    script = (
        f"import sys; sys.path.insert(0, {str(installed)!r})\n"
        "import mvc, mvc_hooks, mvc_data, mvc_lab, mvc.cli.main\n"
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
