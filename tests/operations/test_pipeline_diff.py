"""Pipelines that differ, and what only looks like one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc import Identity, Repo
from mvc.operations.pipeline_diff import find_pipeline
from mvc.training import compare_pipelines


def make_node(version, own=None, **parts):
    empty = {"inputs": [], "params": {}, "code": {}, "libraries": {}, "is_declared": True}
    return {"version": version, "own": own or version, **empty, **parts}


OLD = {
    "clean": make_node("1", code={"m.clean": "def clean(x):\n    return x\n"}),
    "cut": make_node("2", own="b", inputs=["clean"], params={"size": "8"}),
    "gone": make_node("3"),
}
NEW = {
    "clean": make_node("4", code={"m.clean": "def clean(x):\n    return x + 1\n"}),
    "cut": make_node("5", own="b", inputs=["clean"], params={"size": "8"}),
    "come": make_node("6"),
}


def test_what_differs_is_named_by_node():
    clean, cut, come, gone = compare_pipelines(OLD, NEW)
    assert clean.code[0][1][-2:] == ("-    return x", "+    return x + 1")
    assert (cut.is_own, cut.params) == (False, ())
    assert (come.status, come.old_version, come.new_version) == ("added", None, "6")
    assert (gone.status, gone.old_version) == ("removed", "3")
    assert compare_pipelines(OLD, OLD) == ()


_VALUES = st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@given(
    st.sampled_from(["version", "own", "inputs", "params", "code", "libraries", "is_declared"]),
    _VALUES,
)
def test_what_is_not_as_a_run_writes_it_is_no_pipeline(name, value):
    forged = {**OLD, "cut": {**OLD["cut"], name: value}}
    for one in compare_pipelines(forged, NEW):
        assert one.name in {*OLD, *NEW}
    compare_pipelines(value, {name: value})


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b'"pipeline"',
        b'{"pipeline": 1}',
        b'{"data_record": {"pipeline": []}}',
        b"[" * 9000 + b'"pipeline"',
    ],
)
def test_a_file_that_is_no_state_stays_as_it_is(text):
    assert find_pipeline(text) == ({}, text)


def test_two_commits_show_it(tmp_path):
    repo = Repo.init(tmp_path)
    repo.identity = Identity("Ada", "ada@example.org")
    for pipeline in (OLD, NEW):
        state = {"model": {"w": np.zeros(2, np.float32)}, "data_record": {"pipeline": pipeline}}
        repo.commit_state(state, message="x")
    [file] = repo.diff("HEAD~1", "HEAD")
    assert [one.name for one in file.nodes] == ["clean", "cut", "come", "gone"]
    assert file.lines == ()
