"""The README's quickstart runs, command by command, in a folder with a model in it."""

import re
import shlex

import numpy as np
import pytest

from support.commands import ROOT, run_python
from support.models import write_config, write_model

README = (ROOT / "README.md").read_text()


def _blocks(language: str) -> list[str]:
    quickstart = README.partition("<!-- quickstart")[2].partition("## What it looks like")[0]
    return re.findall(rf"```{language}\n(.*?)```", quickstart, re.DOTALL)


@pytest.mark.slow
def test_quickstart(tmp_path):
    write_model(tmp_path / "model.safetensors")
    write_config(tmp_path / "config.json")
    home = str(tmp_path / "home")
    first, *rest = _blocks("console")
    outputs = {}
    for number, block in enumerate([first, *rest]):
        if number == 1:  # "Fine-tune": what the reader does between the blocks
            write_model(tmp_path / "model.safetensors", norm=np.zeros(32, np.float32))
        for line in block.splitlines():
            words = shlex.split(line.removeprefix("$ "), comments=True)
            assert words[0] == "mvc"
            done = run_python("-m", *words, folder=tmp_path, HOME=home)
            outputs[line] = done.stdout
    assert "norm" in outputs["$ mvc diff"]
    short = {line.partition("#")[0].rstrip(): text for line, text in outputs.items()}
    assert "1 modified" in short["$ mvc diff --stats"]
    assert "dpo, first try" in short["$ mvc merge try-dpo"]
    assert "sft, epoch 1" in short["$ mvc blame"]
    assert "the same:" in short["$ mvc verify"]
    assert "sft, epoch 1" in outputs["$ mvc log --oneline --graph"]

    script, _ = _blocks("python")
    check = """
assert back['step'] == 3000 and (back['model']['weight'] == norm).all()
assert (weights['norm'] == norm).all()
"""
    run_python("-W", "error", "-c", script + check, folder=tmp_path, HOME=home)


TRAINING = """
import torch
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.AdamW(model.parameters())
data = torch.utils.data.TensorDataset(torch.randn(64, 4))
loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)

def train_step(batch):
    optimizer.zero_grad()
    loss = model(batch[0]).square().mean()
    loss.backward()
    optimizer.step()
    return loss
"""


@pytest.mark.slow
@pytest.mark.torch
def test_the_three_lines_for_a_training_run(tmp_path):
    _, script = _blocks("python")
    short = script.replace("100_000", "20").replace("every=1000", "every=5")
    assert short.count("20") == short.count("every=5") == 1
    check = TRAINING + short + "assert [one.step for one in ckpt.commits] == [0, 5, 10, 15, 20]\n"
    run_python("-c", check, folder=tmp_path)


def test_every_link_leads_somewhere():
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
