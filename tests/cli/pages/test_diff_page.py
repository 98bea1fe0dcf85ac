"""The page of a comparison in a real browser: what it shows, and what a user does with it."""

import re

import pytest

from mvc.cli.pages.report import write_page

NAMES = "[...document.querySelectorAll('tbody tr[tabindex] td.name')].map(e => e.title)"
FOCUS = "document.activeElement.closest('tr')?.querySelector('td').title"
TEXT = "document.body.innerText"
MODES = ".both button:nth-child({})"


def _list(browser):
    browser.click(MODES.format(2))


def test_it_shows_what_was_compared_and_what_came_of_it(opened, fields):
    text = opened.ask(TEXT)
    total = fields["total"]
    assert "old.safetensors" in text
    assert "new.safetensors" in text
    assert re.search(rf"tensors that differ\s+{total['differing']}\s+of {total['tensors']}", text)
    assert re.search(r"NaN\s+0 → 32", text)
    assert f"{total['statistics']['sigma']:.4g}" in text
    assert opened.ask("document.querySelectorAll('.chart rect').length") > 3


def test_every_tensor_is_on_the_heat_map_or_in_its_cell(opened, fields):
    cells = opened.ask(
        "[...document.querySelectorAll('.heat button')].map(e => [e.className, e.ariaLabel])"
    )
    states = [state for state, _ in cells]
    for state in ("broken", "unmeasured", "added", "removed"):
        assert states.count(state) == 1
    (broken,) = [label for state, label in cells if state == "broken"]
    assert broken.startswith("layer 10 · ")
    assert "NaN or Inf" in broken
    assert opened.ask(
        "[...document.querySelectorAll('.heat .layer')].map(e => e.innerText).join(' ').trim()"
    ) == " ".join(["–", *map(str, range(12))])


def test_modules_fold(opened):
    closed = opened.ask(NAMES)
    assert "layers.2" in closed
    assert "layers.2.q" not in closed
    opened.click("tr[data-key='layers.2']")
    names = opened.ask(NAMES)
    place = names.index("layers.2")
    assert names[place + 1 : place + 4] == ["layers.2.mlp", "layers.2.q", "layers.2.v"]
    assert names.index("layers.9") < names.index("layers.10")
    opened.press("ArrowDown")
    assert opened.ask(FOCUS) == "layers.2.mlp"
    opened.press("ArrowUp", "ArrowLeft")
    assert opened.ask(NAMES) == closed
    opened.press("ArrowRight")
    assert opened.ask(NAMES) == names
    assert opened.ask(FOCUS) == "layers.2"


def test_the_list_sorts_by_mouse_and_keyboard(opened, fields):
    def sigma(name):
        statistics = tensors[name]["statistics"]
        return -1 if statistics is None else statistics["sigma"]

    tensors = {one["name"]: one for one in fields["tensors"]}
    _list(opened)
    names = opened.ask(NAMES)
    assert len(names) == len(tensors)
    assert [sigma(one) for one in names] == sorted(map(sigma, tensors), reverse=True)
    opened.click("th:nth-child(2) button")
    assert [sigma(one) for one in opened.ask(NAMES)] == sorted(map(sigma, tensors))
    sort = "document.querySelector('th:nth-child({})').ariaSort"
    assert opened.ask(sort.format(2)) == "ascending"
    opened.ask("document.querySelector('th:nth-child(1) button').focus()")
    opened.press("Enter")
    names = opened.ask(NAMES)
    assert names.index("layers.9.q") < names.index("layers.10.q")
    assert (opened.ask(sort.format(1)), opened.ask(sort.format(2))) == ("ascending", "none")


@pytest.mark.parametrize(
    ("query", "test"),
    [
        ("LAYERS.1", lambda name: "layers.1" in name),
        ("layers q", lambda name: "layers" in name and "q" in name),
        ("layers.?.q", lambda name: re.fullmatch(r"layers\..\.q", name)),
        ("*.v", lambda name: name.endswith(".v")),
        ("q+(", lambda name: False),
    ],
)
def test_the_filter_takes_words_and_wildcards(opened, fields, query, test):
    _list(opened)
    opened.ask("document.querySelector('input').focus()")
    opened.type(query)
    wanted = {one["name"] for one in fields["tensors"] if test(one["name"])}
    assert set(opened.ask(NAMES)) == wanted
    count = f"{len(wanted)} of {len(fields['tensors'])} tensors"
    assert opened.ask("document.querySelector('[role=status]').innerText") == count


def test_the_menu_shows_broken_tensors_alone(opened):
    _list(opened)
    opened.ask("document.querySelector('select').focus()")
    opened.press("End")
    assert opened.ask(NAMES) == ["layers.10.mlp"]


def test_a_cell_of_the_heat_map_filters_the_table(opened):
    opened.click(".heat .broken")
    assert opened.ask(NAMES) == ["layers.10.mlp", "layers.10.q", "layers.10.v"]
    assert opened.ask("document.querySelector('.heat .broken').ariaSelected") == "true"
    assert "NaN or Inf" in opened.ask("document.getElementById('tip').innerText")
    opened.press("ArrowRight")
    assert opened.ask("document.activeElement.ariaLabel").startswith("layer 11 · ")
    opened.press("Enter")
    assert set(opened.ask(NAMES)) == {"layers.11.mlp", "layers.11.q", "layers.11.v"}
    opened.press("Enter")
    assert len(opened.ask(NAMES)) > 20


def test_a_verdict_shows_the_tensors_it_rests_on(opened, fields):
    (alarm,) = (one for one in fields["verdicts"] if one["level"] == "bad" and "NaN" in one["text"])
    assert alarm["text"] in opened.ask("document.querySelector('.verdicts .bad').innerText")
    opened.click(".verdicts .bad button")
    assert opened.ask(NAMES) == list(alarm["tensors"]) == ["layers.10.mlp"]
    opened.click("[aria-label^='Show all again']")
    assert len(opened.ask(NAMES)) > 20


def test_what_did_not_change_stands_back(opened, fields):
    quiet = opened.ask("[...document.querySelectorAll('tr.quiet td.name')].map(e => e.title)")
    differing = {one["name"]: one["differing"] for one in fields["modules"]}
    assert {"layers.0", "layers.3"} <= set(quiet)
    assert all(differing.get(name, 0) == 0 for name in quiet)


def test_a_tensor_shows_all_its_figures(opened, fields):
    (tensor,) = (one for one in fields["tensors"] if one["name"] == "layers.2.v")
    _list(opened)
    opened.click("tr[data-key='" + str(fields["tensors"].index(tensor)) + "']")
    text = opened.ask("document.querySelector('tr.detail').innerText")
    place = ", ".join(map(str, tensor["statistics"]["max_index"]))
    assert f"at [{place}]" in text
    assert re.search(r"zeros\s+0 → 1,024", text)
    bars = "document.querySelectorAll('tr.detail .chart rect').length"
    assert opened.ask_until(f"{bars} > 3")  # drawn once its width is known
    opened.press(" ")
    assert opened.ask("document.querySelector('tr.detail')") is None


def test_light_and_dark(browser, page):
    ground = "getComputedStyle(document.body).backgroundColor"
    cell = "getComputedStyle(document.querySelector('.heat .changed')).backgroundColor"
    browser.open(page, prefers_color_scheme="light")
    light = browser.ask(ground), browser.ask(cell)
    browser.click("#theme")
    dark = browser.ask(ground), browser.ask(cell)
    assert light[0] != dark[0]
    browser.open(page, prefers_color_scheme="dark")
    assert (browser.ask(ground), browser.ask(cell)) == dark
    browser.click("#theme")
    assert (browser.ask(ground), browser.ask(cell)) == light


def test_a_phone_scrolls_in_one_direction_only(browser, page):
    browser.open(page, width=360, height=700)
    assert browser.ask("document.documentElement.scrollWidth") == 360
    shown = "[...document.querySelectorAll('thead th')].filter(e => e.offsetWidth).length"
    assert browser.ask(shown) == 3


def test_the_page_can_reach_no_network(browser, page):
    browser.open(page)
    for what in ("fetch('http://127.0.0.1:9/')", "import('http://127.0.0.1:9/x.js')"):
        assert browser.ask(f"{what}.then(() => 'reached', () => 'refused')") == "refused"
    evil = "document.createElement('script')"
    browser.ask(
        f"(e => {{ e.textContent = 'window.owned = 1'; document.body.append(e); }})({evil})"
    )
    assert browser.ask("window.owned") is None


HOSTILE = [
    "</script><script>window.owned = 1</script>",
    "<img src=x onerror=window.owned=1>",
    "\"quoted\" 'twice' `and` ${window.owned = 1}",
    "rtl \u202e\u2066gnp.elif\u2069 \u200f\u05d0\u05d1",
    "line\nbreak\0nul\x1b[31m",
    "<!--<script>",
    "&lt;b&gt;",
    "\ud800lone",
    "x" * 10_000,
    ".".join(["deep"] * 3_000),
    "__proto__.constructor",
    "..",
]


def test_hostile_names_are_text(browser, tmp_path, fields):
    (tensor,) = (one for one in fields["tensors"] if one["name"] == "layers.2.v")
    tensors = [
        {**tensor, "name": name, "old_name": name, "kind": name, "layer": name, "path": name}
        for name in HOSTILE
    ]
    sides = {"old": {"label": HOSTILE[0], "commit": None}, "new": {"label": HOSTILE[3]}}
    report = {**fields, **sides, "tensors": tensors, "modules": []}
    path = tmp_path / "hostile.html"
    write_page("diff", HOSTILE[0], report, str(path))
    browser.open(path)
    _list(browser)
    for row in range(len(HOSTILE)):
        browser.click(f"tr[data-key='{row}']")
    assert browser.errors == []
    assert browser.requests == [path.as_uri()]
    assert browser.ask("window.owned") is None
    assert browser.ask("document.title") == HOSTILE[0]
    assert browser.ask("document.documentElement.scrollWidth") == 1280
    assert HOSTILE[0] in browser.ask("document.querySelector('.side').innerText")
    shown = browser.ask("[...document.querySelectorAll('td.name')].map(e => e.innerText)")
    assert set(HOSTILE[:3]) <= set(shown)
    assert "rtl \\u{202e}\\u{2066}gnp.elif\\u{2069} \\u{200f}\u05d0\u05d1" in shown
    assert not any(sign in "".join(shown) for sign in "\0\x1b\u202e\u200f")


@pytest.mark.slow
def test_fifty_thousand_tensors(browser, tmp_path, fields):
    (tensor,) = (one for one in fields["tensors"] if one["name"] == "layers.2.v")
    statistics = {**tensor["statistics"], "histogram": [[-3, 1]]}
    kinds = [f"experts.{expert}.w{part}" for expert in range(125) for part in range(4)]
    tensors = [
        {
            **tensor,
            "name": f"layers.{layer}.{kind}",
            "kind": f"w{layer}",
            "layer": f"layers.{layer}",
            "statistics": statistics,
        }
        for layer in range(100)
        for kind in kinds
    ]
    path = tmp_path / "large.html"
    write_page("diff", "large", {**fields, "tensors": tensors}, str(path))
    assert path.stat().st_size < 400 * len(tensors)
    browser.open(path)
    assert "50,000 tensors" in browser.ask(TEXT)
    rows = "document.querySelectorAll('tbody tr').length"
    assert browser.ask(rows) <= 200
    _list(browser)
    assert browser.ask(rows) == 200
    browser.click("section > button")
    assert browser.ask(rows) == 400
    browser.ask("document.querySelector('input').focus()")
    browser.type("layers.77.experts.99.w3")
    assert browser.ask(NAMES) == ["layers.77.experts.99.w3"]
    assert "36 kinds more" in browser.ask("document.querySelector('.legend').innerText")
