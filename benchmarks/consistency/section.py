"""The section ``consistency``: two processes, and the share of a step that a check takes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.tables import Table, Target

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.children import Runner

_ROOT = Path(__file__).parent.parent.parent
_LIMIT = 0.01


def measure_consistency(
    runner: Runner, *, is_quick: bool, say: Callable[[str], None]
) -> dict[str, Any]:
    """Return what checks cost two processes that train a decoder of about 100 million parameters."""
    sizes = (1, 64, 64, 4) if is_quick else (12, 768, 512, 100)
    say("consistency, 2 processes")
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    words += ["-m", "benchmarks.consistency.child", *map(str, sizes)]
    printed = runner.output(_ROOT, words)
    found: dict[str, Any] = json.loads(
        [line for line in printed.splitlines() if line[:1] == "{"][-1]
    )
    return found


def find_share(found: dict[str, Any], clock: str = "") -> float:
    """Return the share of the steps' time, or with ``cpu_`` processor time, that went into checks."""
    return float(sum(found[f"check_{clock}s"]) / sum(found[f"step_{clock}s"]))


def list_targets(results: dict[str, Any]) -> Iterator[Target]:
    """Yield the target for the share of a step."""
    found = results.get("consistency")
    share = None if found is None else find_share(found)
    yield Target("comparing two ranks, share of a step's time", _LIMIT, share, "")


def consistency_tables(results: dict[str, Any]) -> Iterator[Table]:
    """Yield the table."""
    found = results["consistency"]
    title = f"consistency, {found['parameters'] / 1e6:,.0f} M parameters on 2 processes, every=100"
    head = [
        "step s",
        "check s",
        "share of all steps",
        "of processor time",
        "digested MB",
        "first two steps s",
    ]
    row = [
        f"{median(found['step_s']):.3f}",
        f"{median(found['check_s']):.4f}",
        f"{100 * find_share(found):.2f} %",
        f"{100 * find_share(found, 'cpu_'):.2f} %",
        f"{found['digested_bytes'] / 1e6:,.0f}",
        f"{sum(found['start_s']):.2f}",
    ]
    yield Table(title, [head, row])
