#!/usr/bin/env bash
# torchao 0.18.0, torch 2.13.0: a weight quantised to int8 or float8 says float32 for its dtype, four bytes for `element_size()`
# and the full size for `untyped_storage().nbytes()`: what counts bytes by them is wrong by a factor of four. And a plain model
# that loads the quantised state fails with a message about an attribute that a Parameter lacks.
#
# Seen: Int8Tensor (64, 64): dtype float32, 16384 bytes by its storage, 4096 in `qdata`
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/python" -m pip install --quiet --disable-pip-version-check torchao==0.18.0 torch==2.13.0 numpy==2.4.6
"$folder/bin/python" -W ignore - <<'PYTHON'
import torch
from torchao.quantization import Int8WeightOnlyConfig, quantize_

model = torch.nn.Sequential(torch.nn.Linear(64, 64))
quantize_(model, Int8WeightOnlyConfig())
weight = model[0].weight
stored = weight.qdata.numel() * weight.qdata.element_size()
print(type(weight).__name__, weight.dtype, weight.untyped_storage().nbytes(), "bytes;", stored, "in qdata")
assert (weight.dtype, weight.element_size(), weight.untyped_storage().nbytes()) == (torch.float32, 4, 16384)
assert stored == 4096
plain = torch.nn.Sequential(torch.nn.Linear(64, 64))
try:
    plain.load_state_dict(model.state_dict())
    raise SystemExit("a plain model takes quantised weights now")
except RuntimeError as error:
    assert "has no attribute 'tensor_data_names'" in str(error)
PYTHON
