"""mvc profile: traces in, lines, JSON and a page out."""

import pytest

from support.traces import gloo, op, own, step, write

EVENTS = [
    step(1, 0, 10), op(0, 6), gloo(3, 8, 25), own("mvc.capture", 8, 9),
    step(2, 10, 20), op(10, 18), gloo(12, 14, 25), gloo(17, 20, 1),
]  # fmt: skip


@pytest.fixture
def trace(bare):
    """A trace in a folder that is no repository, gzipped besides."""
    write(bare.folder / "t.json", EVENTS)
    write(bare.folder / "t.json.gz", EVENTS)
    return bare


def test_steps_are_a_table_with_a_picture(trace):
    lines = trace.ok("profile", "t.json").lines
    assert lines[0] == "t.json  rank 0 of 2, CPU, 2 steps"
    assert [" ".join(line.split()) for line in lines[1:5]] == [
        "step time compute communication hidden exposed idle mvc",
        "ProfilerStep#1 10 ms 6 ms 5 ms 3 ms 2 ms 2 ms 1 ms",
        "ProfilerStep#2 10 ms 8 ms 5 ms 3 ms 2 ms 0 0",
        "mean 10 ms 7 ms 5 ms 3 ms 2 ms 1 ms 500 µs",
    ]
    assert lines[6] == "ProfilerStep#2, 10 ms"
    picture = {line.split()[0]: line[15:] for line in lines[7:10]}
    drawn = {
        name: {at for at, sign in enumerate(row) if sign == "█"} for name, row in picture.items()
    }
    assert drawn["compute"] == set(range(51))
    assert drawn["communication"] == {*range(14, 26), *range(46, 65)}
    assert drawn["exposed"] == set(range(52, 65))
    assert "ProfilerStep#1 gloo:all_reduce  25 MiB       3 ms   5 ms     2 ms" in lines
    assert "mvc.capture: 1 ms, 1 time" in lines
    assert lines[-2].startswith("mvc takes 5.0 % of these steps")


def test_ranks_stand_one_after_the_other_and_the_late_one_is_named(trace):
    slow = [step(1, 0, 10), op(0, 7.5), gloo(7.5, 8), step(2, 10, 20), op(10, 19), gloo(19, 20)]
    write(trace.folder / "u.json", slow, rank=1)
    lines = trace.ok("profile", "t.json", "u.json").lines
    assert "u.json  rank 1 of 2, CPU, 2 steps" in lines
    assert lines[-2:] == [
        "the others wait for rank 1: they are in collectives for 5 ms of a step, it for 750 µs",
        "  its steps do not say why: its link may be slow, or other programs run there",
    ]


def test_many_steps_are_shortened(bare):
    events = [one for at in range(12) for one in
              (step(at, 10 * at, 10 * at + 10), op(10 * at, 10 * at + 5), gloo(10 * at + 4, 10 * at + 6 + at / 10))]  # fmt: skip
    write(bare.folder / "t.json", events)
    lines = bare.ok("profile", "t.json").lines
    assert lines[1] == "the 8 steps with the most exposed communication:"
    assert [line.split()[0] for line in lines[3:12]] == [
        *(f"ProfilerStep#{at}" for at in range(4, 12)), "mean",
    ]  # fmt: skip


def test_bad_use_is_one_line(trace):
    for line, code, text in [
        (["gone.json"], 3, "file 'gone.json' does not exist"),
        (["."], 2, "'.' is a folder"),
        (["odd.json"], 5, "'odd.json' is not a Chrome trace: it does not begin with"),
        (["chrome.json"], 7, "'chrome.json' is a trace of another tool, not of torch.profiler"),
        (["t.json", "t.json"], 2, "a trace is named twice"),
        (["t.json", "--html", "missing/x.html"], 3, "folder 'missing' does not exist"),
        ([], 2, "missing argument 'TRACE...'"),
        (["t.json", "--steps", "3"], 2, "no such option: --steps"),
    ]:
        (trace.folder / "odd.json").write_text("hello")
        (trace.folder / "chrome.json").write_text('[{"ph": "X", "name": "x", "ts": 1, "dur": 2}]')
        answer = trace("profile", *line)
        assert answer.code == code
        assert text in answer.error
        assert answer.out == ""


def test_hostile_names_do_not_reach_the_terminal(bare):
    name = "mvc.\x1b[2J\u202e"
    write(bare.folder / "t.json", [step(1, 0, 2), op(0, 1), own(name, 0, 1), gloo(1, 2)])
    assert "\x1b" not in bare.ok("profile", "t.json").out


def test_the_page_shows_it(trace, browser):
    assert trace.ok("profile", "t.json", "--html", "p.html").lines[-1].startswith("p.html: ")
    browser.open(trace.folder / "p.html")
    text = browser.ask("document.body.innerText")
    for part in (
        "mvc profile",
        "t.json",
        "Rank 0: ProfilerStep#2",
        "mvc.capture",
        "gloo:all_reduce",
    ):
        assert part in text
    assert browser.ask("document.querySelectorAll('.chart rect.first').length") > 40
    assert 10 < browser.ask("document.querySelectorAll('.chart rect.bad').length") < 40
    assert browser.errors == []
