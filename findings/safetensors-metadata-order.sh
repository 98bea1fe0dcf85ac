#!/usr/bin/env bash
# safetensors 0.8.0: two files of the same tensors and the same metadata differ, even when one process writes both. The
# entries of `__metadata__` come out in the order of a hash table with a random seed. With two entries or more, the hash of
# a file says nothing of whether its content changed; the bytes of the tensors are the same.
#
# Seen: 40 saves of one tensor with four entries gave more than ten different files; with one entry, one.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/python" -m pip install --quiet --disable-pip-version-check safetensors==0.8.0 numpy==2.4.6
"$folder/bin/python" -W ignore - <<'PYTHON'
import numpy as np
from safetensors.numpy import save

weights = {"weight": np.arange(4.0)}
entries = {"format": "np", "step": "1", "run": "a", "base": "b"}
files = {save(weights, metadata=entries) for _ in range(40)}
single = {save(weights, metadata={"format": "np"}) for _ in range(40)}
print(len(files), "files of four entries;", len(single), "of one")
assert len(single) == 1
assert len(files) > 1, "the order of the metadata is fixed now"
assert len({file[-32:] for file in files}) == 1
PYTHON
