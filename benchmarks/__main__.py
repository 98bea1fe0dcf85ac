"""``python -m benchmarks``: measures mvc side by side with its peers and prints tables.

Nothing here is a test of speed: no number fails the run. A result that is wrong (other bytes
after a checkout) does.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import (
    donor,
    long_history,
    lookups,
    memory,
    report,
    training,
    upkeep,
    values,
    versions,
    workload,
)
from benchmarks.abilities import find_abilities
from benchmarks.children import Runner
from benchmarks.consistency.section import measure_consistency
from benchmarks.data import measure_data
from benchmarks.health import measure_health
from benchmarks.hooks.section import measure_hooks
from benchmarks.machine import describe_commit, describe_machine, describe_packages
from benchmarks.merging import measure_merge
from benchmarks.peers import MODEL, Mvc, Tools, find_peers
from benchmarks.remotes import measure_remotes
from benchmarks.scale.section import measure_scale
from benchmarks.sharded.section import measure_sharded
from benchmarks.small_files import measure_small_files
from benchmarks.stopwatch import middle_seconds
from benchmarks.sweep import folder_bytes, fresh_folder, measure_sweep

if TYPE_CHECKING:
    from collections.abc import Sequence

SECTIONS = (
    "sweep",
    "inprocess",
    "ratio",
    "memory",
    "status",
    "small_files",
    "diff",
    "values",
    "log",
    "blame",
    "merge",
    "health",
    "startup",
    "versions",
    "training",
    "upkeep",
    "commits",
    "remotes",
    "hooks",
    "sharded",
    "scale",
    "consistency",
    "data",
    "loader",
)


class Bench:
    """One run of the benchmark: its settings, its workload and what was measured so far."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.folder: Path = options.dir.resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.runner = Runner(self.folder, patience_s=options.patience)
        self.rounds: int = options.rounds or (1 if options.quick else 3)
        if options.quick:  # torch's threads only wait for each other where all is tiny
            self.runner.environment["OMP_NUM_THREADS"] = "1"
        self.results: dict[str, Any] = {}
        tools = Tools(self.runner, options.peers_venv or self.folder / "venv")
        self.peers, self.peer_versions = find_peers(tools, options.peers)
        self.tools = tools
        self.mvc = Mvc(tools).program
        self.abilities = find_abilities(self.runner, self.folder, self.mvc)
        self._bootstrap: workload.Bootstrap | None = None

    def run(self) -> dict[str, Any]:
        """Run the sections that were asked for and return everything."""
        self.results |= {
            "machine": describe_machine(self.folder),
            "packages": describe_packages(),
            "commit": describe_commit(),
            "peers": self.peer_versions,
            "rounds": self.rounds,
            "abilities": sorted(self.abilities),
        }
        for name in self.options.only or SECTIONS:
            began = time.perf_counter()
            getattr(self, name)()
            self.say(f"{name}: {time.perf_counter() - began:.0f} s")
        self.results["load_after"] = [round(load, 2) for load in os.getloadavg()]
        return self.results

    def say(self, text: str) -> None:
        """Tell on the error stream what is going on."""
        print(text, file=sys.stderr, flush=True)

    def model(
        self, version: str = "base", dtype: str = "BF16", shape: workload.ModelShape | None = None
    ) -> Path:
        """Return a file of the workload, made where it does not exist yet."""
        if shape is None:
            shape = workload.QUICK if self.options.quick else workload.FULL
        if self._bootstrap is None:
            settings = donor.QUICK if self.options.quick else donor.DonorSettings()
            weights, self.results["donor"] = donor.load_donor(self.folder, settings)
            self._bootstrap = workload.Bootstrap(weights)
        sizes = f"{shape.vocabulary}-{shape.hidden}-{shape.layers}"
        path = self.folder / f"model-{sizes}-{version}-{dtype.lower()}.safetensors"
        if not path.exists():
            self.say(f"making {path.name}")
            known = (*workload.VERSIONS, workload.LONGER)
            chosen = next(one for one in known if one.name == version)
            workload.write_model(path, shape, self._bootstrap, chosen, dtype)
        warm(path)
        return path

    def sweep(self) -> None:
        """Five versions through every tool."""
        self.results["sweep"] = measure_sweep(
            self.runner,
            self.folder,
            self.peers,
            self._series(),
            rounds=self.rounds,
            extra_rounds=self.options.extra_rounds,
            say=self.say,
        )

    def _series(self) -> dict[str, Path]:
        chosen = workload.VERSIONS[:2] if self.options.quick else workload.VERSIONS
        return {one.name: self.model(one.name) for one in chosen}

    def inprocess(self) -> None:
        """Saving and reading from a running process."""
        command = [sys.executable, "-m", "benchmarks.inprocess", self.model(), self.folder]
        root = Path(__file__).parent.parent
        words = [*command, str(self.rounds), str(self.options.patience)]
        measured = json.loads(self.runner.output(root, words))
        self.results["inprocess"] = {
            name: {"seconds": middle_seconds(rounds), "rounds": rounds}
            for name, rounds in measured["save"].items()
        }
        self.results["reads"] = measured["read"]

    def ratio(self) -> None:
        """Bytes stored of single files, and of a file that did not change."""
        files = {"bf16": self.model(), "fp32": self.model(dtype="F32")}
        self.results["ratio"] = {name: self._stored(path) for name, path in files.items()}
        self.results["recommit"] = memory.measure_recommit(
            self.runner, self.folder, self.mvc, self.model()
        )

    def _stored(self, path: Path) -> float:
        place = fresh_folder(self.folder / "ratio")
        os.link(path, place / MODEL)
        self.runner.run(
            place, [self.mvc, "init"], [self.mvc, "add", MODEL], [self.mvc, "commit", "-m", "base"]
        )
        stored = folder_bytes(place / ".mvc")
        fresh_folder(place)
        return stored / path.stat().st_size

    def memory(self) -> None:
        """Peak memory for two sizes of file."""
        models = {"base": self.model()}
        if not self.options.quick:
            models["eight times the base"] = self.model(shape=workload.LARGE)
        self.results["memory"] = memory.measure_memory(self.runner, self.folder, self.mvc, models)
        if not self.options.keep and len(models) > 1:
            list(models.values())[-1].unlink()

    def status(self) -> None:
        """What status reads."""
        self.results["status"] = lookups.measure_status(
            self.runner, self.folder, self.mvc, self.model()
        )

    def small_files(self) -> None:
        """Many small files beside stock Git."""
        files = 100 if self.options.quick else 2000
        self.results["small_files"] = measure_small_files(
            self.runner, self.folder, self.mvc, files, self.rounds
        )

    def diff(self) -> None:
        """Diff over very many tensors."""
        tensors = 400 if self.options.quick else 40_000
        self.results["diff"] = lookups.measure_diff(self.runner, self.folder, self.mvc, tensors)

    def values(self) -> None:
        """Comparing two models by their values, beside torch."""
        series = self._series()
        chosen = {name: series[name] for name in ("base", "tiny", "large") if name in series}
        if len(chosen) == 1:
            chosen = series
        data_bytes = (8 if self.options.quick else 512) << 20
        self.results["values"] = values.measure_values(
            self.runner, self.folder, self.mvc, chosen, self.rounds, data_bytes
        )

    def log(self) -> None:
        """Log over many commits."""
        commits = 50 if self.options.quick else 5_000
        self.results["log"] = lookups.measure_log(self.runner, self.folder, self.mvc, commits)

    def blame(self) -> None:
        """Looks through whole histories of 300 tensors."""
        commits = 30 if self.options.quick else 2_000
        self.results["blame"] = lookups.measure_blame(self.runner, self.folder, self.mvc, commits)

    def health(self) -> None:
        """Storing with and without measuring what is stored."""
        self.results["health"] = {
            dtype: measure_health(self.folder, self.model(dtype=dtype), 2 * self.rounds + 1)
            for dtype in ("BF16", "F32")
        }

    def merge(self) -> None:
        """Merges of two models beside torch."""
        models = {one.name: self.model(one.name) for one in workload.VERSIONS[:3]}
        self.results["merge"] = measure_merge(
            self.runner, self.folder, self.mvc, models, self.rounds
        )

    def startup(self) -> None:
        """Start-up of the command."""
        rounds = 1 if self.options.quick else 10
        self.results["startup"] = lookups.measure_startup(
            self.runner, self.folder, self.mvc, rounds
        )

    def versions(self) -> None:
        """The five versions with and without deltas, and repacked."""
        series = self._series()
        gentle = {name: path for name, path in series.items() if name != "large"}
        rows = gentle.pop("rows", None)
        gentle[workload.LONGER.name] = self.model(workload.LONGER.name)
        gentle |= {} if rows is None else {"rows": rows}
        plans = [("versions", series, self.rounds), ("gentle", gentle, 1)]
        for key, chosen, rounds in plans[:1] if self.options.quick else plans:
            self.results[key] = versions.measure_versions(
                self.runner,
                self.folder,
                self.mvc,
                chosen,
                self.abilities,
                rounds=rounds,
                say=self.say,
            )

    def training(self) -> None:
        """Histories of real training states."""
        self.results["training"] = training.measure_training(
            self.runner,
            self.folder,
            self.mvc,
            self.abilities,
            size="quick" if self.options.quick else "full",
            rounds=self.rounds,
            pythons=[
                path / "bin" / "python" for path in (self.folder / "zipnn-venv", self.tools.peers)
            ],
            say=self.say,
        )

    def upkeep(self) -> None:
        """The commands that clean up, on histories of growing length."""
        self.results["upkeep"] = upkeep.measure_upkeep(
            self.runner,
            self.folder,
            self.mvc,
            self.abilities,
            lengths=(5, 10) if self.options.quick else (50, 100, 200),
            values=20_000 if self.options.quick else 1_000_000,
            say=self.say,
        )

    def commits(self) -> None:
        """Thousands of small commits, and the commands on them."""
        commits = 20 if self.options.quick else 2_500
        self.results["commits"] = long_history.measure_long(
            self.runner, self.folder, self.mvc, commits, self.say
        )

    def remotes(self) -> None:
        """Push and fetch beside a plain transfer of the same bytes."""
        self.results["remotes"] = measure_remotes(
            self.tools,
            self.folder,
            self.mvc,
            self.options.remote_model or [self.model()],
            url=self.options.remote,
            rounds=self.rounds,
        )

    def hooks(self) -> None:
        """The training hooks beside what people save their runs with."""
        self.results["hooks"] = measure_hooks(
            self.runner, self.folder, is_quick=self.options.quick, say=self.say
        )

    def sharded(self) -> None:
        """Commits of several processes beside torch's own checkpoints."""
        self.results["sharded"] = measure_sharded(
            self.runner, self.folder, is_quick=self.options.quick, say=self.say
        )

    def scale(self) -> None:
        """Up to 10,240 ranks, simulated with parts measured here; 2 to 8 beside real runs."""
        self.results["scale"] = measure_scale(
            self.runner, self.folder, is_quick=self.options.quick, say=self.say
        )

    def consistency(self) -> None:
        """What it costs to compare the ranks of a run."""
        self.results["consistency"] = measure_consistency(
            self.runner, is_quick=self.options.quick, say=self.say
        )

    def data(self) -> None:
        """Maps of shards beside programs that only hash."""
        self.results["data"] = measure_data(
            self.folder, self.mvc, rounds=self.rounds, is_quick=self.options.quick
        )

    def loader(self) -> None:
        """Loaders of data beside torch's own."""
        size = "quick" if self.options.quick else "full"
        words = [sys.executable, "-m", "benchmarks.loader", self.folder, str(self.rounds), size]
        root = Path(__file__).parent.parent
        self.results["loader"] = json.loads(self.runner.output(root, words))

    def clean(self) -> None:
        """Remove the models; donor and training states, which took minutes to train, stay."""
        for path in self.folder.glob("model-*.safetensors"):
            path.unlink()
        for name in (
            "sweep",
            "ratio",
            "memory",
            "again",
            "status",
            "small",
            "values",
            "wide",
            "long",
            "inprocess",
            "versions",
            "training",
            "upkeep",
            "commits",
            "remotes",
            "hooks",
            "scale",
            "loader",
        ):
            if (self.folder / name).exists():
                fresh_folder(self.folder / name).rmdir()


def warm(path: Path) -> None:
    """Bring a file into the page cache."""
    with path.open("rb") as file:
        while file.read(4 << 20):
            pass


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the settings of a command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tiny model, one round")
    parser.add_argument("--only", action="append", choices=SECTIONS, help="may be repeated")
    parser.add_argument("--rounds", type=int, help="repetitions of what is timed (default 3)")
    parser.add_argument(
        "--patience",
        type=float,
        default=0,
        metavar="SECONDS",
        help="on a shared machine: wait so long for an idle second before each measurement",
    )
    parser.add_argument(
        "--extra-rounds",
        type=int,
        default=0,
        help="on a shared machine: repeat disturbed measurements so many times more",
    )
    parser.add_argument("--keep", action="store_true", help="keep the models for the next run")
    default = Path(tempfile.gettempdir()) / "mvc-bench"
    parser.add_argument(
        "--dir", type=Path, default=default, help=f"where to work (default {default})"
    )
    parser.add_argument(
        "--peers", action="append", help="only these peers; may be repeated; 'none' for none"
    )
    parser.add_argument(
        "--peers-venv", type=Path, help="environment with dvc and oxenai (default DIR/venv)"
    )
    parser.add_argument(
        "--remote", metavar="URL", help="where remotes are, as s3://bucket/prefix (default: DIR)"
    )
    parser.add_argument(
        "--remote-model",
        metavar="PATH",
        type=Path,
        action="append",
        help="a version of what remotes are given; may be repeated (default: the model)",
    )
    parser.add_argument("--json", type=Path, help="also write everything as JSON")
    parser.add_argument("--markdown", type=Path, help="also write the tables as Markdown")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark of a command line."""
    options = parse_options(arguments)
    bench = Bench(options)
    try:
        results = bench.run()
    finally:
        if not options.keep:
            bench.clean()
    print(report.as_text(results))
    if options.json:
        options.json.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    if options.markdown:
        options.markdown.write_text(report.as_markdown(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
