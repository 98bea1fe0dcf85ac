#!/usr/bin/env bash
# torchmetrics 1.9.0, torch 2.13.0: `MinMaxMetric.state_dict()` is empty even after `persistent(True)`: neither its extremes
# nor the metric it wraps are in it. Loading it raises nothing, and the metric starts again. `MeanMetric` and `Running` come back.
#
# Seen: after 1, 5, 2 the maximum is 8; after save, load and one more 1 it is 9 in the first and 1 in the second
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/python" -m pip install --quiet --disable-pip-version-check torchmetrics==1.9.0 torch==2.13.0 numpy==2.4.6
"$folder/bin/python" -W ignore - <<'PYTHON'
import torch
from torchmetrics import MinMaxMetric, SumMetric

first, second = MinMaxMetric(SumMetric()), MinMaxMetric(SumMetric())
first.persistent(True)
for value in (1.0, 5.0, 2.0):
    first.update(torch.tensor(value))
    first.compute()
state = first.state_dict()
second.load_state_dict(state)
for metric in (first, second):
    metric.update(torch.tensor(1.0))
print("state:", dict(state), "maximum:", first.compute()["max"].item(), second.compute()["max"].item())
assert dict(state) == {}, "the state is saved now"
assert (first.compute()["max"].item(), second.compute()["max"].item()) == (9.0, 1.0)
PYTHON
