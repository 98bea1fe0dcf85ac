"""Transformers models straight from revisions: no files in between, and none to clean up.

A small Llama is committed from memory with its config, trained a little and committed again. Then
both versions are loaded from the repository, each tensor read when it is due and verified, and one
is exported as a folder that every tool takes for a model of the Hub. Nothing is downloaded.

    python examples/from_revision.py
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

import mvc


def commit(repo: mvc.Repo, model: LlamaForCausalLM, message: str, step: int) -> None:
    """Commit a model as ``model.safetensors`` with its ``config.json``."""
    config = json.dumps(model.config.to_diff_dict(), indent=2)
    repo.commit_state(model.state_dict(), message=message, step=step, files={"config.json": config})


def load(repo: mvc.Repo, revision: str) -> LlamaForCausalLM:
    """Return the model of a revision; the worktree stays as it is."""
    text = repo.read_file(revision, "config.json")
    assert text is not None  # only a file of more than 1 MiB is kept in chunks
    weights = dict(repo.tensors(revision, paths="model.safetensors", framework="pt"))
    config = LlamaConfig.from_dict(json.loads(text))
    model: LlamaForCausalLM = LlamaForCausalLM.from_pretrained(
        None, config=config, state_dict=weights
    )
    return model


def train(model: LlamaForCausalLM, tokens: torch.Tensor, steps: int) -> float:
    """Return the loss after some steps on one batch."""
    value = 0.0
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(steps):
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        value = loss.item()
    return value


def main() -> None:
    """Commit two versions, load both back, export one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "mvc-llama")
    folder = parser.parse_args().folder
    shutil.rmtree(folder, ignore_errors=True)

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    tokens = torch.randint(256, (4, 32))

    with mvc.Repo.init(folder / "repo") as repo:
        commit(repo, model, "base", step=0)
        base = model(tokens).logits
        print(f"trained to a loss of {train(model, tokens, 20):.3f}")
        commit(repo, model, "tuned", step=20)

        old, new = load(repo, "main@0"), load(repo, "main@20")
        assert torch.equal(old(tokens).logits, base)
        assert torch.equal(new(tokens).logits, model(tokens).logits)
        assert old.lm_head.weight is old.model.embed_tokens.weight  # still tied
        print(f"both versions loaded bit-exact, beside {os.listdir(repo.worktree)}")

        repo.export("main@0", folder / "hub")
    exported = AutoModelForCausalLM.from_pretrained(folder / "hub")
    assert torch.equal(exported(tokens).logits, base)
    print(f"exported: {', '.join(sorted(os.listdir(folder / 'hub')))}")


if __name__ == "__main__":
    main()
