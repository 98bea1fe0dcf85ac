"""verify --html: what each layer found, as a page in a real browser."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from mvc.cli.pages.report import write_comparison_page
from support.models import write_model

NAMES = "[...document.querySelectorAll('section')].map(e => e.querySelector('h2').innerText)"
ROWS = (
    "[...document.querySelectorAll('section[aria-labelledby={}] tbody td.name')].map(e => e.title)"
)
ENTRY = """
from torch import nn

def build():
    return nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 4))
"""


def test_the_page_of_the_unit_layer(shell, browser):
    answer = shell("verify", "v1", "main", "--html", "page.html")
    assert answer.code == 1
    assert answer.lines[0].startswith("page.html: ")
    assert answer.lines[1].startswith("unit failed: ")
    browser.open(shell.folder / "page.html")
    text = browser.ask("document.querySelector('main').innerText")
    assert "unit failed: 3 of 9 tensors are not the same to the bit" in text
    assert "base model" in text
    assert set(browser.ask(ROWS.format("tensors-that-differ"))) == {"embed", "head", "layers.1.q"}
    browser.click("tr[data-key='0']")
    assert "status" in browser.ask("document.querySelector('tr.detail').innerText")
    assert browser.errors == []
    assert browser.requests == [(shell.folder / "page.html").as_uri()]


def test_the_page_says_how_far_tensors_are_apart(bare, browser):
    write_model(bare.folder / "a.safetensors")
    tensors = load_file(bare.folder / "a.safetensors")
    tensors["norm"][5] += 0.5
    save_file(tensors, bare.folder / "b.safetensors")
    arguments = ("verify", "a.safetensors", "b.safetensors", "--html", "page.html", "--quiet")
    assert "page.html" not in bare(*arguments, "--atol", "1e-5").out
    browser.open(bare.folder / "page.html")
    assert "within 0.00001" in browser.ask("document.body.innerText").replace("1e-05", "0.00001")
    browser.click("tr[data-key='0']")
    text = browser.ask("document.querySelector('tr.detail').innerText")
    assert "1 → 1.5 at [5]" in text
    bare.ok(*arguments, "--atol", "1")
    browser.open(bare.folder / "page.html")
    passed = browser.ask("document.querySelector('.verdicts .good').innerText")
    assert passed.startswith("unit passed")


def test_replay_draws_nothing(shell):
    answer = shell("verify", "--replay", "3", "--entry", "train.py:build", "--html", "page.html")
    assert answer.error == "--html compares two models and does not go with --replay"


@pytest.fixture
def runs(bare):
    pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    shapes = {"0.weight": (12, 6), "0.bias": (12,), "2.weight": (4, 12), "2.bias": (4,)}
    tensors = {
        name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()
    }
    save_file(tensors, bare.folder / "a.safetensors")
    save_file({**tensors, "2.bias": tensors["2.bias"] + 3}, bare.folder / "b.safetensors")
    (bare.folder / "entry.py").write_text(ENTRY)
    rows = rng.standard_normal((40, 6)).round(3).tolist()
    (bare.folder / "inputs.json").write_text(json.dumps(rows))
    return bare


@pytest.mark.slow
@pytest.mark.torch
def test_the_page_of_all_three_layers(runs, browser):
    options = ("--entry", "entry.py:build", "--inputs", "inputs.json")
    report = ("--html", "page.html", "--json")
    answer = runs("verify", "a.safetensors", "b.safetensors", *options, *report)
    assert answer.code == 1, answer.err
    browser.open(runs.folder / "page.html")
    levels = browser.ask(
        "[...document.querySelectorAll('.verdicts li')].map(e => [e.className, e.innerText])"
    )
    words = [(level, text.split(":")[0]) for level, text in levels]
    assert words == [("bad", "unit failed"), ("bad", "module failed"), ("bad", "system failed")]
    assert "first 2" in levels[1][1]
    assert browser.ask(NAMES) == [
        "Verdict", "Outputs of both models", "Tests of the outputs", "Modules", "Tensors that differ",
    ]  # fmt: skip
    modules = browser.ask(ROWS.format("modules"))
    assert set(modules[:2]) == {"2", "the whole model"}
    assert set(modules[2:]) == {"0", "1"}
    both = "[document.querySelectorAll('rect.first').length, document.querySelectorAll('rect.second').length]"
    assert min(browser.ask(both)) > 0
    # Outputs that are close together need more digits than two.
    system = answer.json["system"]
    near = [0.5 + 1e-5 * edge for edge in range(1, 1 + len(system["histogram"]["edges"]))]
    system = {**system, "histogram": {**system["histogram"], "edges": near}}
    sides = {side: {"label": side, "commit": None} for side in ("old", "new")}
    close = {**answer.json, **sides, "system": system}
    write_comparison_page("verify", close, str(runs.folder / "page.html"), quiet=True)
    browser.open(runs.folder / "page.html")
    drawn = "document.querySelector('.chart text') !== null"
    assert browser.ask_until(drawn)
    texts = browser.ask("[...document.querySelectorAll('.chart text')].map(e => e.textContent)")
    numbers = [text for text in texts if text.startswith("0.5")]
    assert len(numbers) == len({*numbers}) > 2
    assert browser.errors == []

    # One model in two precisions has the same modules, under a title of their own, and one side.
    setting = {"setting": "dtypes", "old": "float32", "new": "bfloat16", **answer.json["module"]}
    one = {**answer.json, "unit": None, "module": None, "system": None, "settings": [setting]}
    fields = {**one, "old": {"label": "a", "commit": None}, "new": None}
    write_comparison_page("verify", fields, str(runs.folder / "page.html"), quiet=True)
    browser.open(runs.folder / "page.html")
    assert browser.ask(NAMES) == ["Verdict", "dtypes: float32 and bfloat16"]
    text = browser.ask("document.querySelector('.verdicts').innerText")
    assert text.startswith("dtypes float32 and bfloat16 failed: cosine at least 0.9999")
    assert browser.ask("document.querySelectorAll('.side').length") == 1
