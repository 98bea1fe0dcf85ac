"""The loops that the libraries document: each trained through, killed, and rolled back.

A loop is a function (folder of the repository or None, folder for its files, options) → run, and
what its library reports of a run. ``docs/loops.md`` says what is found; this writes it:

    python tests/support/loops.py docs/loops.md

The functions at the end are verbs of ``support.zygote``.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import tempfile
import warnings
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from torch import nn

from support.fits import fit_accelerate, fit_lightning, fit_transformers

KILLED_AT = 17
NAN_AT = 19


@dataclass(frozen=True)
class Loop:
    """A documented loop.

    Attributes:
        fit: as in ``support.fits``, with ``files`` besides: a folder for the library's files.
        report: run → what the library reports of it, which JSON can hold.
    """

    library: str
    name: str
    fit: Any
    report: Any


class Lora(nn.Module):
    """A frozen layer and a trained difference of rank 2 beside it."""

    def __init__(self, base):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, 2, bias=False)
        self.up = nn.Linear(2, base.out_features, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


def add_lora(net):
    net.layers[0], net.layers[3] = Lora(net.layers[0]), Lora(net.layers[3])


# Lightning.


def _lightning(folder, files, make_callbacks=lambda files: [], resumes_its_own=False, **options):
    callbacks = make_callbacks(files)
    if resumes_its_own:
        options["ckpt_path"] = f"{files}.ckpt"
        fit_lightning(None, total=3).trainer.save_checkpoint(options["ckpt_path"])
    run = fit_lightning(folder, callbacks=callbacks, **options)
    run.others = callbacks
    return run


def _report_lightning(run):
    told = {
        "step": run.trainer.global_step,
        "epoch": run.trainer.current_epoch,
        "metrics": {name: one.item() for name, one in run.trainer.callback_metrics.items()},
    }
    for one in run.others:
        if hasattr(one, "best_k_models"):
            # The same name in the same folder a second time has a version.
            paths = {re.sub(r"-v\d+", "", Path(path).name): score.item()
                     for path, score in one.best_k_models.items()}  # fmt: skip
            told["best"] = [paths, one.best_model_score.item()]
            assert all(os.path.exists(path) for path in (*one.best_k_models, one.last_model_path))
            assert run.checkpointer is None or Path(one.best_model_path).exists()
        elif hasattr(one, "wait_count"):
            told["early"] = [one.wait_count, one.stopped_epoch, one.best_score.item()]
    return told


def _save_best(files, monitor="held_out", **options):
    from lightning.pytorch.callbacks import ModelCheckpoint

    return [ModelCheckpoint(files, monitor=monitor, save_top_k=2, save_last=True, **options)]


def _watch_epochs(files):
    from lightning.pytorch.callbacks import EarlyStopping

    stopping = EarlyStopping(
        "loss_epoch", patience=50, min_delta=1e9, check_on_train_epoch_end=True
    )
    return [stopping, *_save_best(files, "loss_epoch", save_on_train_epoch_end=True)]


def _average(files):
    from lightning.pytorch.callbacks import EMAWeightAveraging

    return [EMAWeightAveraging(decay=0.8)]


def _average_late(files):
    from lightning.pytorch.callbacks import WeightAveraging

    class Late(WeightAveraging):
        def should_update(self, step_idx=None, epoch_idx=None):
            return step_idx is not None and step_idx >= 15

    return [Late()]


def _average_stochastically(files):
    from lightning.pytorch.callbacks import StochasticWeightAveraging

    return [StochasticWeightAveraging(1e-2, swa_epoch_start=1)]


# Hugging Face Trainer.


def _transformers(folder, files, make_callbacks=list, settings=(), **options):
    return fit_transformers(
        folder, callbacks=make_callbacks(), settings={**dict(settings), "output_dir": str(files)},
        **options,
    )  # fmt: skip


def _report_transformers(run):
    state = run.trainer.state
    best = state.best_model_checkpoint
    return {
        "train_loss": run.train_loss,
        "log": run.log,
        "best": [state.best_metric, best and Path(best).name],
        "epoch": state.epoch,
        "flos": state.total_flos,
    }


def _stop_early():
    import transformers

    return [transformers.EarlyStoppingCallback(early_stopping_patience=9)]


_BEST = {
    "eval_steps": 4, "save_steps": 4, "save_strategy": "steps", "load_best_model_at_end": True,
    "metric_for_best_model": "eval_loss", "save_total_limit": 2,
}  # fmt: skip


def _accelerate(folder, files, **options):
    return fit_accelerate(folder, **options)


def _report_nothing(run):
    return {"last_loss": run.losses[-1]}


def _make(library, fit, report, loops):
    return {
        f"{library}: {name}": Loop(library, name, partial(fit, **options), report)
        for name, options in loops.items()
    }


LOOPS = {
    **_make(
        "Lightning", _lightning, _report_lightning, {
        "automatic optimization": {},
        "accumulation": {"accumulate": 3, "total": 22},
        "manual optimization": {"steps_itself": True},
        "frozen layers with adapters": {"adapt": add_lora},
        "best checkpoints by validation": {"make_callbacks": _save_best, "settings": {"enable_checkpointing": True}},
        "best checkpoints and early stopping by training loss": {
            "make_callbacks": _watch_epochs, "settings": {"enable_checkpointing": True, "check_val_every_n_epoch": 1},
        },
        "scheduler that watches validation": {"plateau": True},
        "EMAWeightAveraging": {"make_callbacks": _average},
        "WeightAveraging from a later step": {"make_callbacks": _average_late},
        "StochasticWeightAveraging": {"make_callbacks": _average_stochastically},
        "ckpt_path of its own checkpoint": {"resumes_its_own": True},
    }),
    **_make(
        "Trainer", _transformers, _report_transformers, {
        "logging and evaluation": {},
        "accumulation": {"accumulate": 3, "total": 22},
        "frozen layers with adapters": {"adapt": add_lora},
        "best model at end and early stopping": {"make_callbacks": _stop_early, "settings": _BEST},
        "resume_from_checkpoint of its own": {"train": {"resume_from_checkpoint": True}},
    }),
    **_make(
        "Accelerate", _accelerate, _report_nothing, {
        "an ordinary loop": {},
        "accumulation": {"accumulate": 3, "total": 22},
        "frozen layers with adapters": {"adapt": add_lora},
    }),
}  # fmt: skip


# Verbs of the zygote.


def warm_up():
    """Import everything once, for all children."""
    import accelerate  # noqa: F401
    import lightning.pytorch  # noqa: F401
    import transformers  # noqa: F401

    import mvc_hooks.checkpointer  # noqa: F401

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what the libraries advise


def train(root, name, files, keep=True, **options):
    """Train a loop; return what it ends with: a hash of the bits, and what the library reports."""
    from mvc_hooks import rollback, stop

    loop = LOOPS[name]
    if keep:
        ladder = [rollback(to="last", min_steps_back=2, skip_batches=0), stop(after=2)]
        options = {"every": 6, "ladder": ladder, "signals": False, **options}
    run = loop.fit(root if keep else None, files, **options)
    hasher = hashlib.sha256()
    for key, value in sorted(run.state.items()):
        hasher.update(key.encode() + value.numpy().tobytes())
    rollbacks = [] if run.checkpointer is None else run.checkpointer.rollbacks
    return {
        "bits": hasher.hexdigest(), "report": loop.report(run), "rollbacks": len(rollbacks),
        "resumed": run.checkpointer is not None and run.checkpointer.resumed_from is not None,
    }  # fmt: skip


# What is found, and the table of it.


def examine(zygote, folder, name):
    """Return what is found of a loop: (killed, rolled back), each exact, refused: why, or what differs."""

    def go(case, **options):
        files = str(folder / f"{case}-files")
        return "train", folder / case, {"name": name, "files": files, **options}

    killed, plain, back = zygote.run_all([
        go("killed", kill_at=_scale(name, KILLED_AT)),
        go("plain", keep=False),
        go("back", spike=[_scale(name, NAN_AT)]),
    ])  # fmt: skip
    if killed.kind in ("UsageError", "UnsupportedError"):
        return [f"refused: {one.error.partition(': ')[2]}" for one in (killed, back)]
    assert killed.killed, killed.error
    assert plain.error is None, plain.error
    resumed = zygote.run_all([go("killed")])[0]
    assert not back.error, back.error
    assert not resumed.error, resumed.error
    assert resumed.result["resumed"], "a run that begins anew proves nothing"
    assert back.result["rollbacks"] == 1, "a run that did not go back proves nothing"
    return [_compare(plain.result, one.result) for one in (resumed, back)]


def _scale(name, batch):
    return batch * LOOPS[name].fit.keywords.get("accumulate", 1)


def _compare(plain, found):
    if plain["bits"] != found["bits"]:
        return "not exact"
    differing = [key for key, value in plain["report"].items() if value != found["report"].get(key)]
    return f"exact, except the reported {', '.join(differing)}" if differing else "exact"


def format_row(name, found):
    loop = LOOPS[name]
    return f"| {loop.library} | {loop.name} | {found[0]} | {found[1]} |"


def rewrite(path):
    """Examine all loops and write the table of a page anew."""
    from support.zygote import Zygote

    text = Path(path).read_text()
    head = text[: text.index("| --- |")].rpartition("\n")[0].rstrip()
    rows = []
    with Zygote("support.loops") as zygote:
        for name in LOOPS:
            with tempfile.TemporaryDirectory() as folder:
                rows.append(format_row(name, examine(zygote, Path(folder), name)))
                print(rows[-1], flush=True)
    table = ["| library | loop | killed | rolled back |", "| --- | --- | --- | --- |", *rows]
    Path(path).write_text("\n".join([head, "", *table, ""]))


if __name__ == "__main__":
    rewrite(sys.argv[1])
