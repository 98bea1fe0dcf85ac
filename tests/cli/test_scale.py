"""mvc scale."""

from __future__ import annotations

import json

import pytest

FOUNDING = """\
512 ranks, 232,000,000 bytes on each
a link: 2.7 us per message, 50 GB/s

algorithm                     time  messages      bytes    adding  bandwidth used
ring                     12.021 ms  2.759 ms   9.262 ms  0.000 ms            77 %
tree                     83.569 ms  0.049 ms  83.520 ms  0.000 ms            11 %
double-tree              11.277 ms  1.048 ms  10.229 ms  0.000 ms            82 %
halving-doubling          9.310 ms  0.049 ms   9.262 ms  0.000 ms            99 %
torus-2d          32x16   5.024 ms  0.248 ms   4.776 ms  0.000 ms            92 %
torus-3d          8x8x8   3.201 ms  0.113 ms   3.087 ms  0.000 ms            96 %  best
"""
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
    assert bare.ok("scale", "allreduce", "--preset", "founding").out == FOUNDING
    fields = bare.json("scale", "allreduce", "--preset", "founding")
    assert fields["best"] == "torus-3d"
    assert fields["link"] == {"latency_s": 2.7e-6, "bandwidth_bytes_s": 50e9}


def test_links_that_are_stated(bare):
    words = ["--ranks", "16", "--bytes", "1e6", "--latency", "1e-5", "--bandwidth", "1e9"]
    more = ["--per-node", "4", "--inside-bandwidth", "1e11", "--adding", "1e10", "--dims", "8x2"]
    out = bare.ok("scale", "allreduce", *words, *more).lines
    assert out[:4] == [
        "16 ranks, 1,000,000 bytes on each", "a link: 10 us per message, 1 GB/s",
        "within a node: 10 us per message, 100 GB/s", "adding: 10 GB/s",
    ]  # fmt: skip
    assert any(line.startswith("torus-2d          8x2") for line in out)
    only = bare.ok("scale", "allreduce", *words, "--algorithm", "ring").lines
    assert [line.split()[0] for line in only[4:]] == ["ring"]
    fewer = ("scale", "allreduce", "--preset", "founding", "--ranks", "64")
    assert {len(one["shape"]) for one in bare.json(*fewer)["algorithms"]} == {0}
    assert bare.json(*fewer, "--dims", "3")["algorithms"][-1]["shape"] == [4, 4, 4]


def test_a_run_grows(planned):
    assert planned.ok("scale", "gate", *write(planned)).lines[-1].startswith("passed: 1 rank at ")
    bad = planned("scale", "gate", *write(planned, ranks=2, mismatches=1, loss=None))
    assert bad.code == 1
    assert bad.lines[0] == "bits       failed  1 of 9 checks found a rank that differs"
    assert bad.lines[-1].endswith(", at bits, loss")
    refused = planned("scale", "gate", *write(planned, ranks=3))
    assert (refused.code, refused.out) == (4, "")
    assert refused.error == (
        "3 ranks have to wait: 2 failed at bits: 1 of 9 checks found a rank that differs; "
        "at loss: loss was not measured"
    )
    assert planned("scale", "status", "--ranks", "3").code == 4
    assert (
        planned.ok("scale", "status")
        .lines[1]
        .endswith("1 of 9 checks found a rank that differs; loss was not measured")
    )
    words = ("--waive", "bits", "--waive", "loss")
    planned.ok("scale", "gate", *write(planned, ranks=2, mismatches=1, loss=None), *words)
    assert planned.ok("scale", "status", "--ranks", "3").lines[-1] == "next: 3 ranks"
    assert "waived: bits, loss" in planned.ok("scale", "status").out
    planned.ok("scale", "gate", *write(planned, ranks=3))
    assert planned.ok("scale", "status").lines[-1] == "all sizes have passed"
    fields = planned.json("scale", "status")
    assert [one["ranks"] for one in fields["steps"]] == [1, 2, 3]
    assert fields["next_ranks"] is None


def test_what_was_measured_comes_through_a_pipe(planned):
    done = planned.process("scale", "gate", "--measured", "-", input=json.dumps(GOOD).encode())
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_plan_is_shown_only(empty):
    assert empty.json("scale", "plan", "--from", "256", "--to", "10240", "-n") == {
        "steps": [256, 512, 1024, 2048, 4096, 8192, 10240], "kept": False,
    }  # fmt: skip
    assert empty("scale", "status").error == "no plan to grow is kept here"


def test_wrong_use_has_one_line(planned):
    for words, error in [
            ("", "'' is not one of allreduce, plan, status, gate"),
            ("grow", "'grow' is not one of allreduce, plan, status, gate"),
            ("plan --from 4", "a plan needs --from and --to"),
            ("plan --from 4 --to 2", "a plan grows: it cannot go from 4 ranks to 2"),
            ("plan --from 0 --to 2", "a plan is for 1 to 10,000,000 ranks, not 0"),
            ("plan --from 1 --to 2 --waive loss", "--waive does not go with plan"),
            ("status --deviation 0", "--deviation does not go with status"),
            ("status HEAD main", "unexpected argument 'main'"),
            ("gate", "name what was measured: --measured FILE, or - for standard input"),
            ("gate --measured nothing", "file 'nothing' does not exist"),
            ("gate --measured .", "'.' is a folder, not a file of what was measured"),
            ("gate --measured text", "'text' is not JSON, as what was measured has to be"),
            ("gate --measured measured.json --ranks 2", "this was measured on 1 ranks, not on 2"),
            ("gate --measured measured.json --bandwidth-used 85", "the limit bandwidth_used must be a share from 0 to 1, such as 0.85, not 85"),
            ("gate --measured measured.json --waive bandwith", "'bandwith' is not a gate"),
            ("allreduce --ranks 4", "allreduce needs --bytes, or a --preset"),
            ("allreduce --preset unknown", "'unknown' is not a preset; there is founding"),
            ("allreduce --preset founding --ranks 0", "an AllReduce takes 2 to 10,000,000 ranks, not 0"),
            ("allreduce --preset founding --algorithm rings", "'rings' is not an algorithm"),
            ("allreduce --preset founding --dims 8x8", "a torus of 8x8 has 64 ranks, not 512"),
            ("allreduce --preset founding --dims 8by8", "'8by8' is not a torus such as 8x8x8 or 16x32"),
            ("allreduce --preset founding --ranks 7 --dims 2", "7 ranks are no torus of 2 dimensions"),
            ("allreduce --preset founding --ranks 64 --algorithm torus-3d", "torus-3d needs links that are not stated"),
            ("allreduce --preset founding --inside-latency 1", "--inside-latency and --inside-bandwidth need --per-node"),
            ("allreduce --preset founding --per-node 7", "512 ranks are not whole nodes of 7"),
        ]:  # fmt: skip
        write(planned)
        (planned.folder / "text").write_text("ranks: 4")
        answer = planned("scale", *words.split())
        assert answer.error == error
        assert answer.code in (2, 3)
        assert answer.out == ""
        assert len(answer.err.splitlines()) <= 2


def test_shapes_that_are_promised(planned):
    """The keys of docs/json.md, and no others."""
    found = planned.json("scale", "gate", *write(planned))
    assert set(found) == {"commit", "ranks", "passed", "time", "gates"}
    assert all(set(one) == {"gate", "status", "value", "limit", "text"} for one in found["gates"])
    found = planned.json("scale", "status")
    assert set(found) == {"steps", "next_ranks"}
    assert all(set(one) == {"ranks", "result"} for one in found["steps"])
    found = planned.json("scale", "allreduce", "--preset", "founding")
    assert set(found) == {
        "ranks", "size_bytes", "link", "inside", "per_node", "reduce_bytes_s", "best", "algorithms",
    }  # fmt: skip
    figures = {
        "algorithm",
        "shape",
        "time_s",
        "latency_s",
        "transfer_s",
        "reduce_s",
        "bandwidth_used",
    }
    assert all(set(one) == figures for one in found["algorithms"])
