"""diff --html: what is written, what is said, and what is refused before any work."""

import json
import re

import numpy as np
from safetensors.numpy import save_file

from mvc.cli.render.text import size_text
from support.models import write_model


def test_a_page_of_two_revisions(shell, browser):
    answer = shell.ok("diff", "v1", "main", "--html", "page.html")
    page = shell.folder / "page.html"
    assert answer.lines == [f"page.html: {size_text(page.stat().st_size)}"]
    browser.open(page)
    text = browser.ask("document.querySelector('main').innerText")
    assert browser.ask("document.title") == "mvc diff v1 main"
    for side in ("base model", "step 0", "grown", "step 2,000", shell.json("log")[0]["commit"][:7]):
        assert side in text
    assert browser.errors == []
    assert browser.requests == [page.as_uri()]
    shell.ok("diff", "--html", "page.html", "--exit-code")
    browser.open(page)
    assert "tensors that differ\n0\nof 9" in browser.ask("document.body.innerText")
    assert browser.errors == []


def test_json_and_rows_come_beside_the_page(shell):
    expected = shell.json("diff", "v1", "main", "--stats")
    assert shell.json("diff", "v1", "main", "--html", "page.html") == expected
    rows = shell.ok("diff", "v1", "main", "--stats").lines
    assert shell.ok("diff", "v1", "main", "--stats", "--html", "page.html").lines[1:] == rows


def test_pages_of_plain_files_outside_a_repository(bare):
    write_model(bare.folder / "a.safetensors")
    write_model(bare.folder / "b.safetensors", norm=np.zeros(32, np.float32))
    arguments = ("diff", "a.safetensors", "b.safetensors", "--html", "p.html")
    lines = bare.ok(*arguments).lines
    assert [line.partition(":")[0] for line in lines] == ["p.html"]
    assert (bare.folder / "p.html").read_bytes().startswith(b"<!doctype html>")
    assert bare(*arguments, "--exit-code").code == 1
    assert sorted(path.name for path in bare.folder.iterdir()) == [
        "a.safetensors", "b.safetensors", "p.html",
    ]  # fmt: skip


def test_spectra_are_on_the_page(shell, browser):
    shell.ok("diff", "v1", "main", "--spectral", "--html", "page.html")
    browser.open(shell.folder / "page.html")
    browser.click(".both button:nth-child(2)")
    browser.ask("document.querySelector('input').focus()")
    browser.type("layers.1.q")
    browser.click("tbody tr")
    text = browser.ask("document.querySelector('tr.detail').innerText")
    (tensor,) = (
        one
        for one in shell.json("diff", "v1", "main", "--spectral")["tensors"]
        if one["name"] == "layers.1.q"
    )
    spectrum = tensor["spectrum"]
    assert f"{spectrum['rank_90']}, {spectrum['rank_99']} of 32" in text
    assert f"{spectrum['stable_rank']:.4g}" in text


def test_embeddings_are_shown_by_token_where_the_tokenizer_changed(bare, browser):
    table = np.random.default_rng(0).standard_normal((10, 8)).astype(np.float32)
    for name, order in (("a", range(10)), ("b", [3, *range(3), *range(4, 10)])):
        (bare.folder / name).mkdir()
        tokens = {f"t{token}": row for row, token in enumerate(order)}
        (bare.folder / name / "vocab.json").write_text(json.dumps(tokens))
        embedding = {"embed_tokens.weight": table[list(order)]}
        save_file(embedding, bare.folder / name / "model.safetensors")
    bare.ok("diff", "a", "b", "--html", "page.html")
    browser.open(bare.folder / "page.html")
    text = browser.ask("document.body.innerText")
    assert "common tokens\n10\n4 at other ids" in text
    browser.click("tbody tr")
    text = browser.ask("document.querySelector('tr.detail').innerText")
    assert re.search(r"σ by token\s+0\s", text)
    assert not re.search(r"σ\s+0\s", text)
    assert browser.errors == []


def test_mistakes_are_errors_before_any_work(shell):
    for arguments, error in [
        (("--html", "page.html", "--stat"), "--stat and --html cannot be used together"),
        (("--png", "page.png"), "pictures are no longer drawn: --html FILE writes a page"),
        (("--html", "."), "'.' is a folder"),
        (("--html", "page.html", "--sort", "size"), "--sort 'size' is not "),
    ]:
        answer = shell("diff", "v1", "main", *arguments)
        assert answer.code
        assert answer.error.startswith(error)
        assert not list(shell.folder.glob("page.*"))
