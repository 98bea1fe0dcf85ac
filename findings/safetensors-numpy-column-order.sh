#!/usr/bin/env bash
# safetensors 0.8.0, numpy 2.4.6: `safetensors.numpy.save` writes the bytes of an array as they lie in memory. An array in
# column order (a transpose, `np.asfortranarray`, what many LAPACK routines return) is stored with the right shape and its
# numbers in another order, without an error. The torch side of the same library refuses such tensors.
#
# Seen: saved [[0, 1, 2], [3, 4, 5]], loaded [[0, 3, 1], [4, 2, 5]]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/python" -m pip install --quiet --disable-pip-version-check safetensors==0.8.0 numpy==2.4.6
"$folder/bin/python" -W ignore - <<'PYTHON'
import numpy as np
from safetensors.numpy import load, save

rows = np.arange(6.0).reshape(2, 3)
loaded = load(save({"weight": np.asfortranarray(rows)}))["weight"]
print("saved", rows.tolist(), "loaded", loaded.tolist())
assert loaded.shape == rows.shape
assert loaded.tolist() == [[0, 3, 1], [4, 2, 5]], "column order is kept or refused now"
transposed = np.arange(6.0).reshape(2, 3).T
assert not np.array_equal(load(save({"weight": transposed}))["weight"], transposed)
PYTHON
