#!/usr/bin/env bash
# flax 0.12.8: `flax.serialization.from_bytes(target, content)` takes from the target only the names. Another shape, another
# dtype and tensors that the target does not have pass without a word: the result has the file's shapes and dtypes, and
# what the target lacks is dropped. A state restored into a model of another size fails later, or never.
#
# Seen: a bfloat16 target of shape (2,) became float32 of shape (3,); the tensor "extra" of the file was dropped
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/python" -m pip install --quiet --disable-pip-version-check flax==0.12.8 jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
"$folder/bin/python" -W ignore - <<'PYTHON'
import jax.numpy as jnp
import numpy as np
from flax.serialization import from_bytes, to_bytes

content = to_bytes({"weight": np.ones(3, np.float32), "extra": np.ones(5, np.float32)})
restored = from_bytes({"weight": jnp.zeros(2, jnp.bfloat16)}, content)
print({name: (value.shape, str(value.dtype)) for name, value in restored.items()})
assert list(restored) == ["weight"], "what the target lacks is not dropped any more"
assert restored["weight"].shape == (3,) and restored["weight"].dtype == np.float32
PYTHON
