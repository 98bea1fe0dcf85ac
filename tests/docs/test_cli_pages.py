"""docs/cli.md and docs/json.md say what the commands do."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest

from mvc.cli import NAMES, errors
from mvc.cli.parameters import Line, load_command
from mvc.errors import MvcError
from mvc.numbers.merge_methods.table import METHODS

DOCS = Path(__file__).resolve().parents[2] / "docs"
CLI = (DOCS / "cli.md").read_text(encoding="utf-8")
JSON = (DOCS / "json.md").read_text(encoding="utf-8")
MERGING = (DOCS / "merging.md").read_text(encoding="utf-8")


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


PAGES = [DOCS.parent / "README.md", *sorted(DOCS.glob("*.md"))]


def _shown_commands(page):
    """Yield the words of each mvc command that a page shows, in a line or a block of its own."""
    text = page.read_text(encoding="utf-8")
    blocks = "\n".join(re.findall(r"^```(?:console|)\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
    lines = re.findall(r"^(?:\$ )?(mvc .*?)(?: {2,}#.*)?$", blocks, re.MULTILINE)
    spans = re.findall(
        r"`(mvc [^`]*)`", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    )
    for line in [*lines, *spans]:
        yield re.sub(r"\s+", " ", line).removeprefix("mvc ").split(" ")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_options_that_pages_show_exist(page):
    for name, *words in _shown_commands(page):
        if name not in NAMES or "--" in words[:1]:
            continue
        known = Line(load_command(name)).options
        for word in words:
            option = re.match(r"--[a-z-]+", word)
            if option and name != "bisect":  # `bisect run` has options of another command
                assert option[0] in known, f"mvc {name} has no {word} ({page.name})"


def test_merging_page_has_every_method_and_its_defaults():
    rows = re.findall(r"^\| (`.*?) \| .*? \|(.*?)\|$", MERGING, re.MULTILINE)
    shown = {name: cell for names, cell in rows for name in re.findall(r"`(\w+)`", names)}
    assert shown.keys() == METHODS.keys()
    for name, method in METHODS.items():
        if "as above" in shown[name] or name in {"ram", "ramplus_tl"}:
            continue
        wanted = {
            one.name: "" if one.default is None else json.dumps(one.default)
            for one in method.parameters
            if one.name != "int8_mask"
        }
        cells = dict(re.findall(r"`(\w+)`(?: \(([^)]*)\))?", shown[name]))
        assert cells.keys() == wanted.keys(), name
        for key, default in wanted.items():
            assert json.loads(cells[key] or "null") == json.loads(default or "null"), (name, key)
