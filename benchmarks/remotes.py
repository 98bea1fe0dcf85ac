"""push and fetch beside a plain upload and download of the same bytes by the same client, and beside peers."""

from __future__ import annotations

import json
import os
import secrets
import sys
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

from benchmarks.children import middle
from benchmarks.peers import MODEL, Dvc
from benchmarks.sweep import fresh_folder
from benchmarks.tables import MIB, Table, Target

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from benchmarks.children import Cost
    from benchmarks.peers import Tools

    Measure = Callable[..., None]
    Results = dict[str, Any]

_ROOT = Path(__file__).parent.parent
_PERCENT = 100
_PAIRS = (("push", "upload"), ("fetch", "download"))
_MOST_TIME, _MOST_MEMORY_MIB, _MOST_REF_TIME = 1.2, 400, 1.5


def measure_remotes(
    tools: Tools, folder: Path, mvc: Path, models: Sequence[Path], *, url: str | None, rounds: int
) -> dict[str, object]:
    """Return costs of push and fetch, and how long refs take to move.

    Args:
        tools: the peers, and what starts them and mvc.
        folder: for repositories, and for the store if there is no URL.
        mvc: the command.
        models: versions of one model, each a commit of what is pushed.
        url: below which the store is; credentials and endpoint come from the environment.
        rounds: how often each is measured, in turn.
    """
    runner = tools.runner
    for name in os.environ:
        if name.startswith(("AWS_", "GOOGLE_", "AZURE_")):
            runner.environment[name] = os.environ[name]
    place = fresh_folder(folder / "remotes")
    base = f"{url or f'file://{place}'}/{secrets.token_hex(4)}"
    work = fresh_folder(place / "work")
    runner.run(work, [mvc, "init"])
    for model in models:
        (work / MODEL).unlink(missing_ok=True)
        os.link(model, work / MODEL)
        runner.run(work, [mvc, "add", MODEL], [mvc, "commit", "-m", model.stem])
    runner.run(work, [mvc, "commit", "--allow-empty", "-m", "again"])
    packs = work / ".mvc" / "chunks" / "packs"
    child: list[str | Path] = [sys.executable, "-m", "benchmarks.remote_child"]
    costs: dict[str, list[Cost]] = {}

    def measure(name: str, where: Path, *command: str | Path) -> None:
        costs.setdefault(name, []).append(runner.measure(where, list(command)))

    for number in range(rounds):
        plain, ours = f"{base}/plain-{number}", f"{base}/mvc-{number}"
        measure("upload", _ROOT, *child, "upload", plain, packs)
        measure("push", work, mvc, "push", ours)
        got, copy = fresh_folder(place / "got"), fresh_folder(place / "copy")
        measure("download", _ROOT, *child, "download", plain, got)
        runner.run(copy, [mvc, "init"], [mvc, "remote", "add", "origin", ours])
        measure("fetch", copy, mvc, "fetch")
        runner.run(copy, [mvc, "fsck", "--data"])
        _measure_rclone(tools, packs, fresh_folder(got), f"{base}/rclone-{number}", measure)
        _measure_dvc(tools, models, fresh_folder(copy), f"{base}/dvc-{number}", measure)
    words = [*child, "refs", f"{base}/mvc-0", work, str(50 * rounds)]
    seconds = json.loads(runner.output(_ROOT, words))
    size_bytes = sum(path.stat().st_size for path in packs.iterdir())
    fresh_folder(place)
    return {
        "store": "a folder" if url is None else url.partition(":")[0],
        "size_bytes": size_bytes,
        "costs": {name: _figures(middle(many)) for name, many in costs.items()},
        "refs": {name: _percentiles(many) for name, many in seconds.items()},
    }


def _measure_rclone(tools: Tools, packs: Path, got: Path, url: str, measure: Measure) -> None:
    """Copy the same packs there and back, where rclone is."""
    program = tools.find("rclone")
    scheme, _, rest = url.partition("://")
    if program is None or scheme not in ("s3", "file"):
        return
    endpoint = os.environ.get("AWS_ENDPOINT_URL", "")
    settings = f':s3,provider=Other,env_auth,no_check_bucket,endpoint="{endpoint}":'
    there = f"{settings if scheme == 's3' else ''}{rest}"
    copy = ["env", "-u", "AWS_CA_BUNDLE", program, "copy"]  # it ends where that is set
    measure("rclone copy, up", packs, *copy, packs, there)
    measure("rclone copy, down", packs, *copy, there, got)


def _measure_dvc(
    tools: Tools, models: Sequence[Path], folder: Path, url: str, measure: Measure
) -> None:
    """Push the same models and fetch them again, where dvc is: it sends them as they are."""
    program = tools.find("dvc")
    if program is None:
        return
    work, copy, runner = fresh_folder(folder / "work"), folder / "copy", tools.runner
    Dvc(tools).prepare(work)
    runner.run(work, [program, "remote", "add", "-q", "-d", "store", url.removeprefix("file://")])
    if "AWS_ENDPOINT_URL" in os.environ and url.startswith("s3:"):
        endpoint = os.environ["AWS_ENDPOINT_URL"]
        runner.run(work, [program, "remote", "modify", "-q", "store", "endpointurl", endpoint])
    for number, model in enumerate(models):
        os.link(model, work / f"{number}-{MODEL}")
    runner.run(
        work, [program, "add", "-q", *(f"{number}-{MODEL}" for number in range(len(models)))]
    )
    runner.run(work, ["git", "add", "-A"], ["git", "commit", "-q", "-m", "versions"])
    measure("dvc push", work, program, "push", "-q")
    runner.run(folder, ["git", "clone", "-q", work, copy])
    measure("dvc fetch", copy, program, "fetch", "-q")


def list_targets(results: Results) -> Iterator[Target]:
    """Yield how far push, fetch and refs may be from the client that they use."""
    found = results.get("remotes", {"costs": {}, "refs": {}, "store": "a store"})
    for ours, theirs in _PAIRS:
        cost = found["costs"].get(ours)
        ratio = cost and cost["seconds"] / found["costs"][theirs]["seconds"]
        yield Target(
            f"{ours} against a plain {theirs}, {found['store']}", _MOST_TIME, ratio, "times"
        )
        peak = cost and cost["peak_bytes"] / MIB
        yield Target(f"{ours}, peak memory", _MOST_MEMORY_MIB, peak, "MiB")
    for name in ("p50", "p99"):
        ratio = found["refs"] and found["refs"]["update"][name] / found["refs"]["put"][name]
        what = f"refs move, {name}, against a conditional put, {found['store']}"
        yield Target(what, _MOST_REF_TIME, ratio or None, "times")


def remote_tables(results: Results) -> Iterator[Table]:
    """Yield what transfers and updates of refs took."""
    found = results["remotes"]
    rows = [["transfer", "s", "processor s", "MiB of memory"]]
    for name, cost in found["costs"].items():
        figures = cost["seconds"], cost["cpu_seconds"], cost["peak_bytes"] / MIB
        rows.append([name, *(f"{figure:.1f}" for figure in figures)])
    yield Table(f"{found['size_bytes']:,} bytes of packs to and from {found['store']}", rows)
    rows = [["refs", "p50 ms", "p99 ms"]]
    for name, times in found["refs"].items():
        rows.append([name, *(f"{1000 * seconds:.1f}" for seconds in times.values())])
    yield Table(f"one small object or ref on {found['store']}", rows)


def _figures(cost: Cost) -> dict[str, float]:
    return {name: getattr(cost, name) for name in ("seconds", "cpu_seconds", "peak_bytes")}


def _percentiles(seconds: list[float]) -> dict[str, float]:
    return {"p50": median(seconds), "p99": quantiles(seconds, n=_PERCENT)[-1]}
