#!/usr/bin/env bash
# flax 0.12.8: `flax.serialization.msgpack_serialize` keeps the name of an array's dtype but not its byte order. A big-endian
# array (old FITS, HDF5 and NetCDF files give them) comes back with every number's bytes swapped, without an error.
#
# Seen: [0, 1, 2] as ">i4" comes back as [0, 16777216, 33554432]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/python" -m pip install --quiet --disable-pip-version-check flax==0.12.8 jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
"$folder/bin/python" -W ignore - <<'PYTHON'
import numpy as np
from flax.serialization import msgpack_restore, msgpack_serialize

stored = np.arange(3, dtype=">i4")
back = msgpack_restore(msgpack_serialize({"ids": stored}))["ids"]
print(stored.tolist(), "comes back as", back.tolist(), back.dtype)
assert back.tolist() == [0, 16777216, 33554432], "the byte order is kept or refused now"
PYTHON
