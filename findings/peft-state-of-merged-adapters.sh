#!/usr/bin/env bash
# peft 0.21.2, torch 2.13.0: `state_dict()` of a model whose adapters are merged holds the merged base weights and the
# adapters beside them, and nothing says which. A new model loads it with "All keys matched" and adds the adapter again.
#
# Seen: <All keys matched successfully>; the merged model gives what it gave before, the loaded one does not
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/python" -m pip install --quiet --disable-pip-version-check peft==0.21.2 torch==2.13.0 transformers==5.23.0 numpy==2.4.6
"$folder/bin/python" -W ignore - <<'PYTHON'
import torch
from peft import LoraConfig, get_peft_model


def make():
    torch.manual_seed(0)
    base = torch.nn.Sequential()
    base.add_module("linear", torch.nn.Linear(4, 4))
    return get_peft_model(base, LoraConfig(target_modules=["linear"], r=2, init_lora_weights=False))


model, inputs = make(), torch.ones(2, 4)
before = model(inputs)
model.merge_adapter()
assert torch.allclose(model(inputs), before, atol=1e-5)
loaded = make()
print(loaded.load_state_dict(model.state_dict()))
difference = (loaded(inputs) - before).abs().max().item()
print("largest difference", difference)
assert difference > 0.01, "that adapters are merged is part of the state now"
PYTHON
