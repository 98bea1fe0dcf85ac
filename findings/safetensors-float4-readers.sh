#!/usr/bin/env bash
# safetensors 0.8.0, torch 2.13.0: a tensor of `torch.float4_e2m1fn_x2` (two numbers a byte) can be saved, and three of the
# library's readers disagree about it. `load_file` gives it back. `load`, which takes bytes, raises KeyError: 'F4'.
# `get_slice` reports the shape in numbers (twice that of the tensor in the last axis) and raises for every slice,
# the whole one included.
#
# Seen: saved (2, 8); load_file (2, 8); header and get_shape [2, 16]; load: KeyError; sl[:]: RuntimeError
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/python" -m pip install --quiet --disable-pip-version-check safetensors==0.8.0 torch==2.13.0 numpy==2.4.6 packaging==26.4
"$folder/bin/python" -W ignore - <<'PYTHON'
import os
import tempfile

import torch
from safetensors import safe_open
from safetensors.torch import load, load_file, save

packed = torch.arange(16, dtype=torch.uint8).reshape(2, 8).view(torch.float4_e2m1fn_x2)
content = save({"weight": packed})
path = os.path.join(tempfile.mkdtemp(), "w.safetensors")
with open(path, "wb") as file:
    file.write(content)
whole = load_file(path)["weight"]
assert torch.equal(whole.view(torch.uint8), packed.view(torch.uint8)) and whole.shape == (2, 8)
try:
    load(content)
    raise SystemExit("load() reads float4 now")
except KeyError as error:
    print("load:", "KeyError", error)
with safe_open(path, "pt") as file:
    part = file.get_slice("weight")
    print("get_shape:", part.get_shape())
    assert part.get_shape() == [2, 16]
    try:
        part[:]
        raise SystemExit("slices of float4 are read now")
    except RuntimeError as error:
        print("slice:", "RuntimeError", error)
PYTHON
