"""A trainer publishes, a server follows: only what changed is copied into the live model.

Each step changes one percent of one layer, scattered, as reinforcement learning does. The server takes
the tensors that changed, verified, and never loads a checkpoint again after the first. At the end the
trainer rolls back, and the server follows that too. In life both are processes on different machines, with
a bucket between them, and the server's loop never ends.

    python examples/serve_live.py --folder serve
"""

from __future__ import annotations

import argparse
from pathlib import Path

import ml_dtypes  # NumPy learns bfloat16
import numpy as np
from safetensors.numpy import save_file

import mvc

CHANNEL, STEPS, LAYERS = "prod", 3, 4


def train_step(weights: dict[str, np.ndarray], step: int) -> None:
    """Move one percent of one layer by a little."""
    random = np.random.default_rng(step)
    layer = weights[f"layers.{step % LAYERS}"].reshape(-1)
    places = random.choice(layer.size, layer.size // 100, replace=False)
    layer[places] += np.asarray(random.standard_normal(places.size) * 1e-3, layer.dtype)


def publish(repo: mvc.Repo, weights: dict[str, np.ndarray], step: int) -> int:
    """Commit the weights and publish them; return the bytes that travelled."""
    save_file(weights, repo.worktree / "model.safetensors")
    repo.commit(f"step {step}", paths=["model.safetensors"])
    return repo.publish(CHANNEL).sent_bytes


def serve(live: dict[str, np.ndarray], store: Path, folder: Path) -> None:
    """Bring the live model to what is published now."""
    for update in mvc.follow(store, CHANNEL, folder, once=True):
        _, gone = update.names()
        for name in gone:
            del live[name]
        changed = dict(update.tensors())
        live.update(changed)
        print(f"version {update.version.number}: {', '.join(changed)}")


def check(live: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    """Check that the live model is what was published, to the bit."""
    assert live.keys() == wanted.keys()
    assert all(live[name].tobytes() == wanted[name].tobytes() for name in wanted)


def main() -> None:
    """Train, publish, serve; then roll back."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("serve"))
    folder = parser.parse_args().folder.resolve()
    store, served = folder / "store", folder / "served"
    repo = mvc.Repo.init(folder / "trainer")
    repo.add_remote("origin", str(store))
    random = np.random.default_rng(0)
    weights = {
        f"layers.{number}": (random.standard_normal((512, 512)) * 0.02).astype(ml_dtypes.bfloat16)
        for number in range(LAYERS)
    }
    live: dict[str, np.ndarray] = {}
    before = weights
    for step in range(STEPS + 1):
        before = {name: one.copy() for name, one in weights.items()}
        if step:
            train_step(weights, step)
        sent_bytes = publish(repo, weights, step)
        raw_bytes = sum(one.nbytes for one in weights.values())
        print(f"step {step}: {100 * sent_bytes / raw_bytes:.2f} % of the weights travelled")
        serve(live, store, served)
        check(live, weights)
    repo.publish(CHANNEL, "HEAD~1")
    serve(live, store, served)
    check(live, before)
    print("bit-exact, also after going back")


if __name__ == "__main__":
    main()
