#!/usr/bin/env bash
# keras 3.15.1, h5py 3.16.0: a layer quantised to int4 stores its kernel in `.weights.h5` as int8 with half as many columns:
# two numbers a byte. The file has no mark of it (no attribute, no dtype): it reads like an int8 kernel of another shape.
# Only the config of the model, which `save_weights` does not write, tells them apart. bfloat16, in contrast, is stored as
# opaque two-byte values and does carry an attribute `dtype`.
#
# Seen: kernel of Dense(64) on 64 inputs: int8 (64, 64) after quantize("int8"), int8 (64, 32) after quantize("int4"), no attributes
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/python" -m pip install --quiet --disable-pip-version-check keras==3.15.1 h5py==3.16.0 jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
"$folder/bin/python" -W ignore - <<'PYTHON'
import os
import tempfile

os.environ["KERAS_BACKEND"] = "jax"
import h5py
import keras

kernels = {}
for mode in ("int8", "int4"):
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64)])
    model.quantize(mode)
    path = os.path.join(tempfile.mkdtemp(), "model.weights.h5")
    model.save_weights(path)
    with h5py.File(path) as file:
        kernel = file["layers/dense/vars/0"]
        kernels[mode] = (str(kernel.dtype), kernel.shape, dict(kernel.attrs))
    print(mode, kernels[mode])
assert kernels["int8"] == ("int8", (64, 64), {})
assert kernels["int4"] == ("int8", (64, 32), {}), "packed int4 is marked now"
PYTHON
