"""docs/cli.md and docs/json.md say what the commands do."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from mvc.cli import NAMES, errors
from mvc.errors import MvcError

DOCS = Path(__file__).resolve().parents[2] / "docs"
CLI = (DOCS / "cli.md").read_text(encoding="utf-8")
JSON = (DOCS / "json.md").read_text(encoding="utf-8")


def _generator():
    spec = importlib.util.spec_from_file_location("make_cli", DOCS / "make_cli.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_is_what_the_commands_say():
    assert _generator().page() == CLI, "run: python docs/make_cli.py"


@pytest.mark.parametrize("name", NAMES)
def test_every_command_is_documented(name):
    assert f"### mvc {name}\n" in CLI
    heading = rf"^## (?:[\w, ]*\W)?{name}(?:\W[\w, ]*)?$"
    assert re.search(heading, JSON, re.MULTILINE), f"json.md has no section for {name}"


def test_every_command_has_help_with_an_option_for_json():
    for section in CLI.split("### mvc ")[1:]:
        name = section.split("\n", 1)[0]
        description = section.split("```")[2].split("| option")[0].strip()
        assert len(description) > 20, name
        assert "`--json`" in section, name


def _all_errors(kind=MvcError):
    """Yield the errors of the commands; those of the training hooks may be loaded beside them."""
    for child in kind.__subclasses__():
        if child.__module__.partition(".")[0] == "mvc":
            yield child
            yield from _all_errors(child)


def test_every_exit_code_is_documented():
    codes = set(re.findall(r"^\| (\d+) \|", CLI, re.MULTILINE))
    used = {str(kind.exit_code) for kind in _all_errors()}
    used |= {str(code) for code in (errors.DONE, errors.NEGATIVE, errors.INTERNAL)}
    used |= {str(code) for code in (errors.INTERRUPTED, errors.BROKEN_PIPE)}
    assert codes == used
    for kind in _all_errors():
        assert f"`{kind.kind}`" in CLI
    told = {*errors.EXIT_CODES, errors.INTERRUPTED, errors.BROKEN_PIPE}
    assert set(map(str, told)) == codes
