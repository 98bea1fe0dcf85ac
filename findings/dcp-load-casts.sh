#!/usr/bin/env bash
# torch 2.13.0: `torch.distributed.checkpoint.load` copies what is stored into the tensors it is given, whatever their
# dtype. int64 into float32, int64 into int8 and float32 into bfloat16 lose numbers without an error or a warning; another
# shape is refused.
#
# Seen: int64 16777217 came back as 16777216.0; 300 as int8 44; 1.001 as bfloat16 1
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6
"$folder/bin/python" -W ignore - <<'PYTHON'
import tempfile

import torch
import torch.distributed.checkpoint as dcp

folder = tempfile.mkdtemp()
state = {"ids": torch.tensor([16777217]), "counts": torch.tensor([300]), "weight": torch.tensor([1.001])}
dcp.save(state, checkpoint_id=folder, no_dist=True)
target = {
    "ids": torch.zeros(1, dtype=torch.float32),
    "counts": torch.zeros(1, dtype=torch.int8),
    "weight": torch.zeros(1, dtype=torch.bfloat16),
}
dcp.load(target, checkpoint_id=folder, no_dist=True)
print(target)
assert target["ids"].item() == 16777216.0, "a cast that loses numbers is refused now"
assert target["counts"].item() == 44
assert target["weight"].item() == 1.0
PYTHON
