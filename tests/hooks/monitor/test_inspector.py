"""Files of NCCL Inspector, and whatever else may be there."""

import json
import platform

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc_lab.monitor.metrics import parse_inspector, read_inspector

RECORD = {
    "header": {"id": "0x7f", "rank": 2, "n_ranks": 8, "nnodes": 1},
    "metadata": {"inspector_output_format_version": "v4.0", "hostname": platform.node(), "pid": 7},
    "coll_perf": {"coll": "AllReduce", "coll_sn": 1407, "coll_msg_size_bytes": 17179869184,
                  "coll_exec_time_us": 61974, "coll_algobw_gbs": 277.2, "coll_busbw_gbs": 485.1},
}  # fmt: skip
LABELS = (
    'version="v5.1",node="n1",gpu="GPU0",nranks="8",collective="ReduceScatter",message_size="2-3MB"'
)
PROM = (
    f"# TYPE nccl_bus_bandwidth_gbs gauge\nnccl_bus_bandwidth_gbs{{{LABELS}}} 120.5\n"
    f'nccl_collective_exec_time_microseconds{{{LABELS}}} 812\nnccl_p2p_total{{node="n1"}} 3\n'
)


def test_both_formats(tmp_path):
    lines = [json.dumps(RECORD), json.dumps(RECORD)[:200], "", "rubbish"]
    (tmp_path / "host-7.log").write_text("\n".join(lines))
    (tmp_path / "nccl_inspector_metrics_GPU-1.prom").write_text(PROM)
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("/dev/zero")
    assert read_inspector(str(tmp_path)) == {
        "AllReduce": {"bus": pytest.approx(485.1e9), "seconds": pytest.approx(0.061974)},
        "ReduceScatter": {"bus": pytest.approx(120.5e9), "seconds": pytest.approx(812e-6)},
    }


def test_the_median_of_the_last_ones_counts(tmp_path):
    lines = [
        json.dumps({"coll_perf": {"coll": "AllGather", "coll_busbw_gbs": n}}) for n in range(9000)
    ]
    (tmp_path / "a.log").write_text("\n".join(lines))
    assert 8e12 < read_inspector(str(tmp_path))["AllGather"]["bus"] < 9e12


def test_collectives_of_another_machine_are_not_ours():
    other = RECORD | {"metadata": {"hostname": "elsewhere"}}
    assert list(parse_inspector(json.dumps(other))) == []


@pytest.mark.parametrize("folder", [None, "", "/nowhere", "/dev/null"])
def test_no_folder(folder):
    assert read_inspector(folder) == {}


PLAIN = st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=9)
TREES = st.recursive(
    PLAIN,
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["coll_perf", "coll", "coll_busbw_gbs", "coll_exec_time_us", "metadata", "hostname"]),
        inner,
        max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip
RUBBISH = st.one_of(
    st.text(max_size=300),
    TREES.map(json.dumps),
    st.builds(
        lambda text, at: PROM[:at] + text + PROM[at:], st.text(max_size=9), st.integers(0, 300)
    ),
    st.just("{" * 100_000),
    st.just('{"coll_perf": {"coll": "A", "coll_busbw_gbs": ' + "9" * 5000 + "}}"),
)


@given(st.lists(RUBBISH, max_size=4))
def test_rubbish_is_skipped(parts):
    for name, what, value in parse_inspector("\n".join(parts)):
        assert name.isalnum() or "_" in name
        assert len(name) <= 40
        assert what in ("bus", "seconds")
        assert 0 <= value < float("inf")
