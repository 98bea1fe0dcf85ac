#!/usr/bin/env bash
# orbax-checkpoint 0.12.8: a restore into a target of another dtype casts without a word, also where numbers are lost:
# int32 into float32, float32 into bfloat16. Another shape is refused, so a reader expects the dtype to be checked, too.
#
# Seen: int32 16777217 came back as float32 16777216; 1.001 as bfloat16 1
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/python" -m pip install --quiet --disable-pip-version-check orbax-checkpoint==0.12.8 jax==0.10.2 jaxlib==0.10.2 flax==0.12.8 numpy==2.4.6
"$folder/bin/python" -W ignore - <<'PYTHON'
import tempfile

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

path = tempfile.mkdtemp() + "/state"
checkpointer = ocp.StandardCheckpointer()
state = {"ids": jnp.asarray([16777217], jnp.int32), "weight": jnp.asarray([1.001], jnp.float32)}
checkpointer.save(path, state)
checkpointer.wait_until_finished()
target = {
    "ids": jax.ShapeDtypeStruct((1,), jnp.float32),
    "weight": jax.ShapeDtypeStruct((1,), jnp.bfloat16),
}
restored = checkpointer.restore(path, target)
print(restored)
assert float(restored["ids"][0]) == 16777216.0, "a cast that loses numbers is refused now"
assert float(restored["weight"][0]) == 1.0
PYTHON
