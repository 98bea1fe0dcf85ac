"""The command line: ``python -m mvc_lab.behaviour OLD [NEW] --entry ... --inputs FILE``.

It writes one JSON object to standard output: what was found, or ``{"error": ...}``. What the user's code
prints goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from mvc import MvcError, Repo, UsageError
from mvc_hooks.entry import CommandParser, load_entry
from mvc_lab.behaviour.comparing import (
    AGREEMENT,
    BATCH_SIZE,
    BOUND,
    COSINE,
    SIGNIFICANCE,
    BehaviourSettings,
    check_shares,
    check_thresholds,
    compare_settings,
    parse_settings,
    run_both,
    run_once,
)
from mvc_lab.behaviour.inputs import InputBatch, make_batches, read_inputs
from mvc_lab.behaviour.loading import ModelLoader
from mvc_lab.behaviour.modules import ModuleReport, ModuleSums
from mvc_lab.behaviour.outputs import OutputScores
from mvc_lab.behaviour.statistics import least_samples

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence

    from torch import nn

    from mvc_lab.behaviour.turns import PlacedModel

_DIFFERENT = 1
_INTERRUPTED = 130
_LAYERS = ("module", "system")


def main(arguments: Sequence[str]) -> int:
    """Compare, write what was found, and return the exit code: 1 if a layer does not pass."""
    # What CUDA's deterministic matrix products need, before CUDA is used.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    with _own_output() as write:
        try:
            result = compare(parse(arguments))
        except MvcError as error:
            if os.environ.get("MVC_DEBUG"):
                traceback.print_exc()
            fields = {"kind": error.kind, "message": error.message, "hint": error.hint}
            write(json.dumps({"error": fields}))
            return error.exit_code
        except KeyboardInterrupt:
            return _INTERRUPTED
        write(json.dumps(result))
    verdicts = [result[layer]["passed"] for layer in _LAYERS if result[layer] is not None]
    verdicts += [setting["passed"] for setting in result["settings"]]
    return _DIFFERENT if False in verdicts else 0


@contextmanager
def _own_output() -> Iterator[Callable[[str], object]]:
    """Let all but what is written here go to standard error, that of libraries in C too."""
    sys.stdout.flush()
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as own:
        os.dup2(2, 1)
        try:
            with redirect_stdout(sys.stderr):
                yield lambda text: own.write(f"{text}\n")
        finally:
            sys.stdout.flush()
            os.dup2(own.fileno(), 1)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return what a command line asks for."""
    parser = CommandParser(
        hint="python -m mvc_lab.behaviour --help",
        prog="python -m mvc_lab.behaviour",
        description="Run two models, or one in several ways, on the same inputs and compare what "
        "their modules return and how their outputs are distributed. The exit code is 1 if a layer "
        "does not pass.",
    )
    add = parser.add_argument
    add("old", metavar="OLD", help="a revision, REV:PATH, a checkpoint or a folder of them")
    add("new", metavar="NEW", nargs="?", help="another one; without it, the worktree")
    add("--repo", metavar="FOLDER", help="folder of the repository")
    add("--entry", required=True, help="FILE.py:FUNCTION that builds the model")
    add("--inputs", required=True, metavar="FILE", help="what the models are run on")
    add("--layers", default="module,system", help="module, system or both")
    add("--few", action="store_true", help="leave outputs unjudged if the samples are too few")
    add("--cosine", type=float, help=f"least cosine of a module's outputs ({COSINE})")
    add("--bound", type=float, help="largest relative L2 difference of a module's outputs")
    add("--significance", type=float, default=SIGNIFICANCE)
    add("--agreement", type=float, default=AGREEMENT)
    add("--batch-size", type=int, default=BATCH_SIZE)
    add("--seed", type=int, default=0)
    for name in ("devices", "dtypes", "threads"):
        add(f"--{name}", default="", metavar="A,B", help=f"compare the first of {name} with others")
    return parser.parse_args(arguments)


def compare(chosen: argparse.Namespace) -> dict[str, Any]:
    """Check everything that was asked for, then run the models; return what was found."""
    layers = [layer.strip() for layer in chosen.layers.split(",")]
    if not set(layers) <= set(_LAYERS):
        raise UsageError(f"layers {chosen.layers!r} are not module, system or both")
    settings = parse_settings(chosen.devices, chosen.dtypes, chosen.threads)
    if settings.is_comparison and chosen.new is not None:
        raise UsageError("several devices, dtypes or threads compare one model with itself")
    if chosen.cosine is None and chosen.bound is None:
        chosen.cosine, chosen.bound = (None, BOUND) if settings.is_comparison else (COSINE, None)
    check_thresholds(chosen.cosine, chosen.bound)
    check_shares(chosen.significance, chosen.agreement)
    inputs, build = read_inputs(chosen.inputs), load_entry(chosen.entry)
    with ExitStack() as stack:
        repo = None if chosen.repo is None else stack.enter_context(Repo.open(chosen.repo))
        loader = ModelLoader(build, repo, chosen.seed, stack)
        model = loader.make(chosen.old)
        batches = make_batches(inputs, None, model, chosen.batch_size)
        run_once(model, batches[0].first())
        if "system" in layers and not (settings.is_comparison or chosen.few):
            _check_samples(batches, chosen.significance)
        loader.sample = batches[0].first()
        if settings.is_comparison:
            del model
            return _compare_settings(chosen, settings, batches, lambda: loader.load(chosen.old))
        loader.fill(model, chosen.old)
        sides = (settings.place(model), settings.place(loader.load(chosen.new)))
        return _compare_models(chosen, layers, batches, sides)


def _compare_settings(
    chosen: argparse.Namespace,
    settings: BehaviourSettings,
    batches: Sequence[InputBatch],
    load: Callable[[], nn.Module],
) -> dict[str, Any]:
    reports = compare_settings(
        load, settings, batches, bound=chosen.bound, cosine=chosen.cosine, seed=chosen.seed
    )
    fields = [
        {
            "setting": report.setting,
            "old": report.old,
            "new": report.new,
            **_module_fields(report.modules),
        }
        for report in reports
    ]
    return {"module": None, "system": None, "settings": fields}


def _compare_models(
    chosen: argparse.Namespace,
    layers: Sequence[str],
    batches: Sequence[InputBatch],
    sides: tuple[PlacedModel, PlacedModel],
) -> dict[str, Any]:
    result: dict[str, Any] = {"module": None, "system": None, "settings": []}
    sums = ModuleSums(chosen.cosine, chosen.bound) if "module" in layers else None
    scores = OutputScores() if "system" in layers else None
    run_both(sides, batches, modules=sums, outputs=scores, seed=chosen.seed)
    if sums is not None:
        samples = sum(batch.rows for batch in batches)
        result["module"] = _module_fields(sums.judge(samples))
    if scores is not None:
        report = scores.judge(chosen.significance, chosen.agreement, chosen.seed)
        result["system"] = {"passed": report.passed, "judged": report.is_judged} | asdict(report)
    return result


def _check_samples(batches: Sequence[InputBatch], significance: float) -> None:
    samples, least = sum(batch.rows for batch in batches), least_samples(significance)
    if samples < least:
        raise UsageError(
            f"{samples} inputs are too few: at significance {significance} "
            f"no test can fail with fewer than {least}",
            hint="give more inputs, or compare modules only",
        )


def _module_fields(report: ModuleReport) -> dict[str, Any]:
    first = None if report.first is None else report.first.name
    return {"passed": report.passed, **asdict(report), "first": first}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
