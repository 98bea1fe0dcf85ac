"""Records of a feed as lines of JSON: what is plain comes back, and names of feeds are safe."""

import math
import os

from hypothesis import given
from hypothesis import strategies as st

from mvc.runs.records import encode_record, feed_name, find, find_branch, parse_record


@given(st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=90), max_size=8))
def test_names_of_feeds(branches):
    names = [feed_name(branch) for branch in branches]
    assert len(set(names)) == len(set(branches))
    for name, branch in zip(names, branches, strict=True):
        assert len(os.fsencode(name)) <= 200
        assert not set("/\0 ") & set(name)
        assert not name.startswith(".")
        assert find_branch(name) in (None, branch)


@given(st.floats(), st.integers(-(2**63), 2**63))
def test_numbers_come_back(number, whole):
    line, lost = encode_record("other", 1.0, {"loss": number, "step": whole})
    record = parse_record(line)
    assert lost == 0
    back = find(record, "loss")
    assert back == number or (math.isnan(back) and math.isnan(number))
    assert float(record["step"]) == float(whole)
