"""A trainer publishes, a server follows: only what changed is copied into the live model.

Each step changes one percent of one layer, scattered, as reinforcement learning does. The server takes
the tensors that changed, verified, and never loads a checkpoint again unless tensors came, went or have
another type. At the end the trainer adds a layer, and then rolls back; the server follows that too. In
life both are processes on different machines, with a bucket between them, and the server's loop never ends.

    python examples/serve_live.py --folder serve
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

import mvc

CHANNEL, STEPS, LAYERS, WIDTH = "prod", 3, 4, 512


def make_model(layers: int) -> torch.nn.Sequential:
    """Make a model of bf16 layers."""
    with torch.device("cpu"):
        made = [torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers)]
    return torch.nn.Sequential(*made).to(torch.bfloat16)


def train_step(model: torch.nn.Sequential, step: int) -> None:
    """Move one percent of one layer by a little."""
    torch.manual_seed(step)
    weight = list(model.parameters())[step % len(model)].detach().view(-1)
    places = torch.randperm(weight.numel())[: weight.numel() // 100]
    weight[places] += (torch.randn(places.numel()) * 1e-3).to(weight.dtype)


def publish(repo: mvc.Repo, model: torch.nn.Sequential, message: str) -> None:
    """Commit the weights and publish them; tell what travelled."""
    weights = model.state_dict()
    save_file(weights, repo.worktree / "model.safetensors")
    repo.commit(message, paths=["model.safetensors"])
    sent_bytes = repo.publish(CHANNEL).sent_bytes
    raw_bytes = sum(one.nbytes for one in weights.values())
    print(f"{message}: {100 * sent_bytes / raw_bytes:.2f} % of the weights travelled")


class Server:
    """A live model that is at what is published."""

    def __init__(self, store: Path, folder: Path) -> None:
        self.model = make_model(0)
        self._where = store, folder

    def follow(self) -> None:
        """Bring the model to what is published now."""
        store, folder = self._where
        for update in mvc.follow(store, CHANNEL, folder, once=True):
            changes = update.changes()
            if changes:  # values alone do not fit
                weights = load_file(update.version.folder / "model.safetensors")
                self.model = make_model(len(weights))
                self.model.load_state_dict(weights)
                told = f"{len(changes.added)} tensors added, {len(changes.removed)} removed: loaded"
            else:
                live = self.model.state_dict()
                changed = dict(update.tensors("torch"))
                for name, value in changed.items():
                    live[name].copy_(value)
                told = f"copied {', '.join(changed)}"
            print(f"version {update.version.number}: {told}")


def check(live: torch.nn.Module, wanted: dict[str, torch.Tensor]) -> None:
    """Check that the live model is what was published, to the bit."""
    found = live.state_dict()
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def copy_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the weights as they are now."""
    return {name: value.clone() for name, value in model.state_dict().items()}


def main() -> None:
    """Train, publish, serve; add a layer; roll back."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("serve"))
    folder = parser.parse_args().folder.resolve()
    repo = mvc.Repo.init(folder / "trainer")
    repo.remotes.add("origin", str(folder / "store"))
    model, server = make_model(LAYERS), Server(folder / "store", folder / "served")
    for step in range(STEPS + 1):
        if step:
            train_step(model, step)
        publish(repo, model, f"step {step}")
        server.follow()
        check(server.model, model.state_dict())
    before = copy_of(model)
    model.append(make_model(1)[0])
    publish(repo, model, "one layer more")
    server.follow()
    check(server.model, model.state_dict())
    repo.publish(CHANNEL, "HEAD~1")
    server.follow()
    check(server.model, before)
    print("bit-exact, also after going back")


if __name__ == "__main__":
    main()
