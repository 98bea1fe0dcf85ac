"""The worked example of docs/format.md is what mvc really does."""

import json
import re
from pathlib import Path

import numpy as np
from blake3 import blake3

from mvc import Repo
from mvc.formats.manifest import is_manifest
from mvc.formats.manifest_lines import parse_manifest

PAGE = Path(__file__).parents[2] / "docs" / "format.md"


def _example_file() -> bytes:
    table = {"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
    text = json.dumps(table, separators=(",", ":")).encode().ljust(72)
    return len(text).to_bytes(8, "little") + text + np.array([1.0, -2.0], "<f4").tobytes()


def test_the_example_manifest(tmp_path):
    data = _example_file()
    assert len(data) == 88
    (tmp_path / "x.safetensors").write_bytes(data)
    repo = Repo.init(tmp_path)
    added = repo.add("x.safetensors")
    section = PAGE.read_text().partition("## 9.")[2]
    text = re.search(r"```json\n(.*?)```", section, re.DOTALL)[1]
    text = text.replace("GAP", blake3(data[:80]).hexdigest())
    text = text.replace("CHUNK", blake3(bytes.fromhex("0000803f000000c0")).hexdigest())
    blob = added.added[0].blob
    stored = repo._context.history.read_blob(blob)
    assert is_manifest(stored)
    assert stored.decode() == text
    assert parse_manifest(stored).size_bytes == 88


def test_every_dtype_is_in_the_page():
    from mvc.dtypes import DTYPES

    page = PAGE.read_text()
    for name in DTYPES:
        stem = re.sub(r"^(IQ|TQ|Q\d_).*", r"\1", name)
        assert stem in page or name.startswith("Q"), name
