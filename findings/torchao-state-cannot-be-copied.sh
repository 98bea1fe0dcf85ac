#!/usr/bin/env bash
# torchao 0.18.0, torch 2.13.0: `copy.deepcopy(optimizer.state_dict())`, the usual way to keep a snapshot, raises
# NotImplementedError for AdamW8bit, AdamW4bit and AdamWFp8: their tensors implement no `aten.clone`.
# `torch.save` of the same state works.
#
# Seen: AdamW8bit, AdamW4bit, AdamWFp8: NotImplementedError (aten.clone)
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/python" -m pip install --quiet --disable-pip-version-check torchao==0.18.0 torch==2.13.0 numpy==2.4.6
"$folder/bin/python" -W ignore - <<'PYTHON'
import copy
import io

import torch
from torchao.optim import AdamW4bit, AdamW8bit, AdamWFp8

for kind in (AdamW8bit, AdamW4bit, AdamWFp8):
    model = torch.nn.Linear(128, 64)
    optimizer = kind(model.parameters(), lr=1e-2)
    with torch.compiler.set_stance("force_eager"):
        model(torch.ones(2, 128)).sum().backward()
        optimizer.step()
    torch.save(optimizer.state_dict(), io.BytesIO())
    try:
        copy.deepcopy(optimizer.state_dict())
        raise SystemExit(f"the state of {kind.__name__} can be copied now")
    except NotImplementedError as error:
        assert "aten.clone" in str(error)
        print(kind.__name__, "NotImplementedError (aten.clone)")
PYTHON
