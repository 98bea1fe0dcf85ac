"""The main job from end to end, on a model that is really trained; `make demo` runs it.

A small character-level transformer learns from the source text of Python's standard library.
It is committed, fine-tuned on other text, compared, branched, and brought back; sha256sum proves that
the bytes that come back are the bytes that went in. It is pushed to a folder, cloned and pulled. At the
end a training run meets bad data, rolls back automatically, and is replayed: every tensor of every step
is the same to the bit; another is sharded over processes, loses one, and ends on fewer.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shlex
import shutil
import subprocess
import sys
import sysconfig
from contextlib import suppress
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

CONTEXT = 64
VOCABULARY = 128
PROGRAMS = {
    "mvc": [sys.executable, "-m", "mvc"],
    "torchrun": [sys.executable, "-m", "torch.distributed.run", "--standalone"],
}


class CharModel(nn.Module):
    """A transformer over ASCII characters, with its output tied to its embedding."""

    def __init__(self, width: int = 128, layers: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.place = nn.Embedding(CONTEXT, width)
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT))

    def forward(self, text: Tensor) -> Tensor:
        """Return the logits of the next character, (batch, time, vocabulary)."""
        hidden = self.embed(text) + self.place.weight
        hidden = self.norm(self.blocks(hidden, mask=self.mask, is_causal=True))
        logits: Tensor = hidden @ self.embed.weight.T
        return logits


def read_text(pattern: str) -> Tensor:
    """Return the ASCII text of standard-library sources as character codes."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    text = "".join(path.read_text(errors="ignore") for path in sorted(folder.glob(pattern)))
    codes = text.encode("ascii", "ignore")
    return torch.frombuffer(bytearray(codes), dtype=torch.uint8).long()


def train(model: CharModel, text: Tensor, steps: int, rate: float) -> float:
    """Train with AdamW on random windows of the text; return the mean loss of the last steps."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    losses: list[float] = []
    for _ in range(steps):
        starts = torch.randint(0, len(text) - CONTEXT - 1, (16,))
        batch = torch.stack([text[start : start + CONTEXT + 1] for start in starts])
        logits = model(batch[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch has no types here
        optimizer.step()
        losses.append(loss.item())
    return sum(losses[-20:]) / len(losses[-20:])


def save(model: CharModel, folder: Path) -> None:
    """Write the model as any training script would."""
    save_file(model.state_dict(), folder / "model.safetensors")
    config = {"vocabulary": VOCABULARY, "context": CONTEXT, "width": model.embed.embedding_dim}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def run(folder: Path, *command: str) -> str:
    """Show a command as a user would type it, run it, show and return what it says."""
    print(f"\n$ {shlex.join(command)}", flush=True)
    words = [*PROGRAMS.get(command[0], command[:1]), *command[1:]]
    done = subprocess.run(words, cwd=folder, check=True, stdout=subprocess.PIPE, text=True)
    print(done.stdout, end="", flush=True)
    return done.stdout


def say(text: str) -> None:
    """Print a heading."""
    print(f"\n=== {text}", flush=True)


def digest(folder: Path) -> str:
    """Return the SHA-256 of the model file."""
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def commit_base(folder: Path, model: CharModel, steps: int) -> str:
    """Train from scratch and commit; return the digest of the model file."""
    say("train a small transformer on the source text of the standard library")
    loss = train(model, read_text("*.py"), steps, 1e-3)
    save(model, folder)
    print(f"loss after {steps} steps: {loss:.3f}")
    say("version it")
    run(folder, "mvc", "init")
    run(folder, "mvc", "add", "model.safetensors", "config.json")
    facts = ["--step", str(steps), "--meta", f"loss={loss:.4f}"]
    run(folder, "mvc", "commit", "-m", "base model", *facts)
    run(folder, "sha256sum", "model.safetensors")
    return digest(folder)


def commit_fine_tuned(folder: Path, model: CharModel, steps: int) -> str:
    """Train half of the model on other text, look at the difference and commit it."""
    say("fine-tune it on other text: only the second block learns")
    for parameter in [*model.embed.parameters(), *model.blocks.layers[0].parameters()]:
        parameter.requires_grad_(requires_grad=False)
    loss = train(model, read_text("email/*.py"), steps // 3, 3e-4)
    save(model, folder)
    run(folder, "mvc", "status")
    run(folder, "mvc", "diff")
    facts = ["--step", str(steps + steps // 3), "--meta", f"loss={loss:.4f}"]
    run(folder, "mvc", "commit", "-am", "fine-tuned on email", *facts)
    return digest(folder)


def commit_wild(folder: Path, model: CharModel, steps: int) -> None:
    """Spoil the model on another branch."""
    say("try something wild on a branch")
    run(folder, "mvc", "switch", "-c", "wild")
    loss = train(model, read_text("json/*.py"), steps // 10 + 1, 3e-2)
    save(model, folder)
    run(folder, "mvc", "commit", "-am", "a learning rate too high", "--meta", f"loss={loss:.4f}")
    run(folder, "mvc", "log", "--oneline", "--graph", "--all")


def go_back(folder: Path, steps: int, base: str, tuned: str) -> None:
    """Bring both good models back and compare their bytes."""
    say("go back: to the branch, then to the first commit by its training step")
    run(folder, "mvc", "switch", "main")
    run(folder, "sha256sum", "model.safetensors")
    assert digest(folder) == tuned, "the fine-tuned model came back with other bytes"
    run(folder, "mvc", "checkout", f"main@{steps}")
    run(folder, "sha256sum", "model.safetensors")
    assert digest(folder) == base, "the base model came back with other bytes"
    load_file(folder / "model.safetensors")
    say("and every byte in the store matches its hash")
    run(folder, "mvc", "fsck", "--data")


def store_less(folder: Path, tuned: str) -> None:
    """Store the same in less space, look at the sizes, and prove that nothing changed."""
    say("store the same in less space, and see what everything costs")
    run(folder, "mvc", "switch", "main")
    run(folder, "mvc", "repack")
    run(folder, "mvc", "du")
    assert digest(folder) == tuned, "the fine-tuned model changed"
    run(folder, "mvc", "fsck", "--data")


def share(folder: Path, tuned: str) -> None:
    """Push to a remote that is a folder, clone it elsewhere, compare, and push only what changed."""
    say("share it: any bucket does, and so does a folder")
    run(folder, "mvc", "remote", "add", "origin", "store")
    run(folder, "mvc", "push", "-u", "--all")
    run(folder, "mvc", "clone", "store", "copy")
    run(folder / "copy", "sha256sum", "model.safetensors")
    assert digest(folder / "copy") == tuned, "the clone has other bytes"
    run(folder / "copy", "mvc", "fsck", "--data")
    say("change one tensor in the clone: only that travels")
    state = load_file(folder / "copy" / "model.safetensors")
    state["norm.bias"] += 0.5
    save_file(state, folder / "copy" / "model.safetensors")
    run(folder / "copy", "mvc", "commit", "-am", "another bias")
    run(folder / "copy", "mvc", "push")
    run(folder, "mvc", "pull")
    assert digest(folder) == digest(folder / "copy"), "what was pulled has other bytes"


def train_and_diverge(folder: Path) -> None:
    """Train on partly damaged data, see the run roll back, and prove the result."""
    say("train with a repository, on partly damaged data")
    loop = Path(__file__).resolve().parent / "plain_loop.py"
    folder.mkdir()
    run(folder, sys.executable, str(loop), "--folder", ".")
    say("it rolled back automatically; the abandoned branch, and why it was left, are still there")
    run(folder, "mvc", "log", "--oneline", "--graph", "--all")
    say("prove it: train 50 steps again from a commit after the rollback, compare every tensor")
    run(folder, "mvc", "verify", "--replay", "50", "--entry", f"{loop}:build", "main@250")
    run(folder, "mvc", "fsck", "--data")


def train_sharded(folder: Path) -> None:
    """Train over four processes, kill one, go on with two, and load the result in this one."""
    say("train a model that is sharded over 4 processes, and kill one of them without warning")
    loop = str(Path(__file__).resolve().parent / "sharded_loop.py")
    words = ["torchrun", "--nproc-per-node", "4", loop, "--folder", ".", "--kill-at", "60"]
    folder.mkdir()
    with suppress(subprocess.CalledProcessError):
        run(folder, *words)
    run(folder, "mvc", "log", "--oneline")
    say("go on with 2 processes; on the way there is bad data, and a rollback")
    out = run(folder, "torchrun", "--nproc-per-node", "2", loop, "--folder", ".")
    run(folder, "mvc", "log", "--oneline", "--graph", "--all")
    say("the commit is the one of a single process: a plain file that any tool loads")
    run(folder, "mvc", "checkout", "HEAD", "--", "model.safetensors")
    found = hashlib.sha256()
    for name, value in sorted(load_file(folder / "model.safetensors").items()):
        found.update(name.encode() + value.numpy().tobytes())
    print(f"\nweights in this process: {found.hexdigest()}", flush=True)
    assert f"weights at the end: {found.hexdigest()}" in out, "other bits than the run had"
    run(folder, "mvc", "fsck", "--data")


def main() -> None:
    """Run the whole story in one folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("demo-run"))
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    folder: Path = options.folder.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    torch.set_num_threads(1)  # the matrices are small, and threads would only wait for each other
    torch.manual_seed(0)

    model = CharModel()
    base = commit_base(folder, model, options.steps)
    tuned = commit_fine_tuned(folder, model, options.steps)
    commit_wild(folder, model, options.steps)
    go_back(folder, options.steps, base, tuned)
    store_less(folder, tuned)
    share(folder, tuned)
    train_and_diverge(folder / "run")
    train_sharded(folder / "sharded")
    print(f"\nbit-exact: {base}", flush=True)


if __name__ == "__main__":
    main()
