"""mvc scale."""

import json
import re

import pytest

GOOD = {
    "ranks": 1, "checks": 9, "mismatches": 0, "deviation_max": 0.0, "sync_p99_s": 0.01,
    "bandwidth_used": 0.9, "recovery_s": 3.0, "loss": 2.0,
}  # fmt: skip


@pytest.fixture
def planned(empty):
    empty.ok("commit", "--allow-empty", "-m", "one")
    assert empty.ok("scale", "plan", "--from", "1", "--to", "3").out == "1 -> 2 -> 3\n"
    return empty


def write(shell, **values):
    (shell.folder / "measured.json").write_text(json.dumps(GOOD | values))
    return ("--measured", "measured.json")


def test_the_founding_example(bare):
    lines = bare.ok("scale", "allreduce", "--preset", "founding").lines
    assert lines[:2] == [
        "512 ranks, 232,000,000 bytes on each",
        "a link: 2.7 us per message, 50 GB/s",
    ]
    heading, *rows = (re.split("  +", line) for line in lines[3:])
    assert heading == ["algorithm", "time", "messages", "bytes", "adding", "bandwidth used"]
    assert len(rows) == 6
    assert rows[-1] == [
        "torus-3d", "8x8x8", "3.201 ms", "0.113 ms", "3.087 ms", "0.000 ms", "96 %", "best",
    ]  # fmt: skip
    fields = bare.json("scale", "allreduce", "--preset", "founding")
    assert fields["best"] == "torus-3d"
    assert fields["link"] == {"latency_s": 2.7e-6, "bandwidth_bytes_s": 50e9}


def test_links_that_are_stated(bare):
    words = ["--ranks", "16", "--bytes", "1e6", "--latency", "1e-5", "--bandwidth", "1e9"]
    more = ["--per-node", "4", "--inside-bandwidth", "1e11", "--adding", "1e10", "--dims", "8x2"]
    out = bare.ok("scale", "allreduce", *words, *more).lines
    assert out[1:4] == [
        "a link: 10 us per message, 1 GB/s",
        "within a node: 10 us per message, 100 GB/s",
        "adding: 10 GB/s",
    ]
    assert any(line.startswith("torus-2d          8x2") for line in out)
    only = bare.ok("scale", "allreduce", *words, "--algorithm", "ring").lines
    assert [line.split()[0] for line in only[4:]] == ["ring"]
    torus = ("--preset", "founding", "--ranks", "64", "--dims", "3")
    assert bare.json("scale", "allreduce", *torus)["algorithms"][-1]["shape"] == [4, 4, 4]


def test_a_run_grows(planned):
    assert planned.ok("scale", "gate", *write(planned)).lines[-1].startswith("passed: 1 rank at ")
    bad = planned("scale", "gate", *write(planned, ranks=2, mismatches=1, loss=None))
    assert bad.code == 1
    assert bad.lines[0] == "bits       failed  1 of 9 checks found a rank that differs"
    assert bad.lines[-1].endswith(", at bits, loss")
    refused = planned("scale", "gate", *write(planned, ranks=3))
    assert (refused.code, refused.out) == (4, "")
    assert refused.error.startswith("3 ranks have to wait: 2 failed at bits: 1 of 9 checks found")
    assert planned("scale", "status", "--ranks", "3").code == 4
    words = ("--waive", "bits", "--waive", "loss")
    planned.ok("scale", "gate", *write(planned, ranks=2, mismatches=1, loss=None), *words)
    assert planned.ok("scale", "status", "--ranks", "3").lines[-1] == "next: 3 ranks"
    assert "waived: bits, loss" in planned.ok("scale", "status").out
    done = planned.process(
        "scale", "gate", "--measured", "-", input=json.dumps(GOOD | {"ranks": 3}).encode()
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert planned.ok("scale", "status").lines[-1] == "all sizes have passed"


def test_wrong_use_has_one_line(planned):
    write(planned)
    (planned.folder / "text").write_text("ranks: 4")
    for words, error in [
        ("grow", "'grow' is not one of allreduce, plan, status, gate"),
        ("plan --from 4", "a plan needs --from and --to"),
        ("plan --from 1 --to 2 --waive loss", "--waive does not go with plan"),
        ("status --deviation 0", "--deviation does not go with status"),
        ("status HEAD main", "unexpected argument 'main'"),
        ("gate", "name what was measured: --measured FILE, or - for standard input"),
        ("gate --measured nothing", "file 'nothing' does not exist"),
        ("gate --measured .", "'.' is a folder, not a file of what was measured"),
        ("gate --measured text", "'text' is not JSON, as what was measured has to be"),
        ("gate --measured measured.json --ranks 2", "this was measured on 1 ranks, not on 2"),
        ("allreduce --ranks 4", "allreduce needs --bytes, or a --preset"),
        ("allreduce --preset unknown", "'unknown' is not a preset; there is founding"),
        ("allreduce --preset founding --dims 8by8", "'8by8' is not a torus such as 8x8x8 or 16x32"),
        ("allreduce --preset founding --ranks 7 --dims 2", "7 ranks are no torus of 2 dimensions"),
        (
            "allreduce --preset founding --inside-latency 1",
            "--inside-latency and --inside-bandwidth need --per-node",
        ),
    ]:
        answer = planned("scale", *words.split())
        assert answer.error == error
        assert (answer.code in (2, 3), answer.out) == (True, "")


def test_shapes_that_are_promised(planned):
    """The keys of docs/json.md, and no others."""
    found = planned.json("scale", "gate", *write(planned))
    assert set(found) == {"commit", "ranks", "passed", "time", "gates"}
    assert all(set(one) == {"gate", "status", "value", "limit", "text"} for one in found["gates"])
    plan = planned.json("scale", "plan", "--from", "256", "--to", "1024", "-n")
    assert plan == {"steps": [256, 512, 1024], "kept": False}
    found = planned.json("scale", "status")
    assert set(found) == {"steps", "next_ranks"}
    assert all(set(one) == {"ranks", "result"} for one in found["steps"])
    found = planned.json("scale", "allreduce", "--preset", "founding")
    assert set(found) == {
        "ranks", "size_bytes", "link", "inside", "per_node", "reduce_bytes_s", "best", "algorithms",
    }  # fmt: skip
    figures = {"algorithm", "shape", "time_s", "latency_s", "transfer_s", "reduce_s"}
    assert all(set(one) == {*figures, "bandwidth_used"} for one in found["algorithms"])
