"""Makes the DCP folders below ``tests/golden/dcp``, with real torch on 2 or 4 ranks.

``torchrun --nproc-per-node 2 tests/support/golden_dcp.py FOLDER``: one state, whatever the ranks.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parents[1] / "golden" / "dcp"


def make_state() -> dict[str, Any]:
    """Return the state with whole tensors: what all golden folders hold."""
    import torch

    return {
        "model": {
            "rows": torch.arange(30.0).reshape(5, 6),
            "columns": torch.arange(21).reshape(3, 7),
            "half": torch.arange(4.0).to(torch.bfloat16),
            "one": torch.tensor(2.5),
        },
        "list": [torch.ones(2), {"deep": torch.zeros(0, 3)}],
        "step": 7,
        "note": {"text": "hello", "betas": (0.5, None), "flags": [True, b"x"]},
    }


def main() -> None:
    """Save it from this rank."""
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    dist.init_process_group("gloo")
    ranks = dist.get_world_size()
    mesh = init_device_mesh("cpu", (2, ranks // 2))
    state = make_state()
    model = state["model"]
    model["rows"] = distribute_tensor(model["rows"], mesh, [Shard(0), Shard(1)])
    model["columns"] = distribute_tensor(model["columns"], mesh, [Shard(1), Replicate()])
    model["half"] = distribute_tensor(model["half"], mesh, [Replicate(), Shard(0)])
    dcp.save(state, checkpoint_id=sys.argv[1])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
