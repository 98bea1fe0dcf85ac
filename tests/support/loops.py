"""The loops that the libraries document: each trained through, killed, and rolled back.

A loop is a function (folder of the repository or None, folder for its files, options) → run, and
what its library reports of a run. ``docs/loops.md`` says what is found; this writes it:

    python tests/support/loops.py docs/loops.md

The functions at the end are verbs of ``support.zygote``.
"""

from __future__ import annotations

import contextlib
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
from torch.utils.data import _utils

from support import loop_parts as parts
from support.fits import FITS, fit_accelerate, fit_fabric, fit_lightning, fit_transformers

KILLED_AT = 17
NAN_AT = 19


@dataclass(frozen=True)
class Loop:
    """A documented loop.

    Attributes:
        fit: as in ``support.fits``, with ``files`` besides: a folder for the library's files.
        report: run → what the library reports of it, which JSON can hold.
        needs: a package that it needs besides.
    """

    library: str
    name: str
    fit: Any
    report: Any
    needs: str | None = None


def _hash(state):
    hasher = hashlib.sha256()
    for key, value in sorted(state.items()):
        hasher.update(key.encode() + value.numpy().tobytes())
    return hasher.hexdigest()


def _report_average(owners):
    return {"average": [_hash(one.ema.state_dict()) for one in owners if hasattr(one, "ema")]}


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
    return {**told, **_report_average(run.others)}


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
        **_report_average(run.trainer.callback_handler.callbacks),
    }


_BEST = {
    "eval_steps": 4, "save_steps": 4, "save_strategy": "steps", "load_best_model_at_end": True,
    "metric_for_best_model": "eval_loss", "save_total_limit": 2,
}  # fmt: skip


def _accelerate(folder, files, begins_with_its_own=False, **options):
    if begins_with_its_own:
        options["begins_with"] = f"{files}/own"
        fit_accelerate(None, total=3).accelerator.save_state(options["begins_with"])
    return fit_accelerate(folder, files=files, **options)


def _report_accelerate(run):
    average = {} if run.ema is None else _report_average([run])
    return {"last_loss": run.losses[-1], "step": run.accelerator.step, **average}


def _fabric(folder, files, **options):
    return fit_fabric(folder, **options)


def _report_losses(run):
    return {"last_loss": run.losses[-1]}


def _make(library, fit, report, loops):
    return {
        f"{library}: {name}": Loop(library, name, partial(fit, **options), report, needs)
        for name, options in loops.items()
        for needs in [options.pop("needs", None)]
    }


_LIMITS = {
    "limit_train_batches": 7, "limit_val_batches": 2, "val_check_interval": 0.5, "max_time": "00:01:00:00",
    "gradient_clip_val": 0.1, "reload_dataloaders_every_n_epochs": 1,
}  # fmt: skip
_FROM_START = {
    "num_train_epochs": 3, "max_steps": -1, "eval_on_start": True, "ignore_data_skip": True, "max_grad_norm": 0.1,
    "neftune_noise_alpha": 5.0,
}  # fmt: skip

LOOPS = {
    **_make(
        "Lightning", _lightning, _report_lightning, {
        "automatic optimization": {},
        "accumulation": {"accumulate": 3, "total": 22},
        "manual optimization": {"steps_itself": True},
        "frozen layers with adapters": {"adapt": parts.add_lora},
        "best checkpoints by validation": {"make_callbacks": parts.save_best, "settings": {"enable_checkpointing": True}},
        "best checkpoints and early stopping by training loss": {
            "make_callbacks": parts.watch_epochs, "settings": {"enable_checkpointing": True, "check_val_every_n_epoch": 1},
        },
        "early stopping that finds the NaN first": {
            "make_callbacks": parts.stop_at_nan, "settings": {"val_check_interval": 1},
        },
        "scheduler that watches validation": {"plateau": True},
        "EMAWeightAveraging": {"make_callbacks": parts.average},
        "WeightAveraging from a later step": {"make_callbacks": parts.average_late},
        "two optimizers in manual optimization (GAN)": {"mixins": [parts.Adversaries], "adapt": parts.add_critic, "total": 39},
        "iterable data in persistent workers": {"data": "iterable-persistent"},
        "a dict of two loaders": {"data": "two"},
        "average in a callback, limits of batches and time, clipped gradients, reloaded loaders": {
            "make_callbacks": parts.average_by_hand, "settings": _LIMITS,
        },
        "torchmetrics, a scheduler stepped by hand, settings that change at the start of an epoch": {
            "mixins": [parts.Measured], "total": 22,
        },
        "StochasticWeightAveraging": {"make_callbacks": parts.average_stochastically},
        "ModelPruning": {"make_callbacks": parts.prune},
        "ckpt_path of its own checkpoint": {"resumes_its_own": True},
    }),
    **_make(
        "Trainer", _transformers, _report_transformers, {
        "logging and evaluation": {},
        "accumulation": {"accumulate": 3, "total": 22},
        "average in a callback, iterable data in persistent workers": {
            "make_callbacks": parts.average_in_trainer, "data": "iterable-persistent",
        },
        "epochs, noise in embeddings, evaluation at the start, ignore_data_skip, settings that change with epochs": {
            "settings": _FROM_START, "adapt": parts.add_embeddings, "make_callbacks": parts.decay_more,
        },
        "PEFT (LoRA)": {"adapt": parts.add_peft, "needs": "peft"},
        "best model at end, early stopping, model_init and a custom create_optimizer": {
            "make_callbacks": parts.stop_early, "settings": _BEST, "makes_own": True,
        },
        "resume_from_checkpoint of its own": {"train": {"resume_from_checkpoint": True}},
    }),
    **_make(
        "Accelerate", _accelerate, _report_accelerate, {
        "an ordinary loop": {},
        "accumulation": {"accumulate": 3, "total": 22},
        "frozen layers with adapters": {"adapt": parts.add_lora},
        "AveragedModel, iterable data in persistent workers": {"average": True, "data": "iterable-persistent"},
        "load_state at the start, save_state with automatic names": {
            "saves_itself": True, "begins_with_its_own": True,
        },
    }),
    **_make("Fabric", _fabric, _report_losses, {"an ordinary loop in bf16-mixed": {}}),
}  # fmt: skip


# Verbs of the zygote.


def warm_up():
    """Import everything once, for all children."""
    import accelerate  # noqa: F401
    import lightning.pytorch  # noqa: F401
    import transformers  # noqa: F401

    with contextlib.suppress(ImportError):
        import peft  # noqa: F401

    import mvc_hooks.checkpointer  # noqa: F401
    from support.writers import use_forked

    use_forked()
    torch.set_num_threads(1)
    # Loader workers of a killed child look that often whether it is still there.
    _utils.worker.MP_STATUS_CHECK_INTERVAL = 0.1
    warnings.simplefilter("ignore")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what the libraries advise
    with tempfile.TemporaryDirectory() as folder:
        train(Path(folder, "run"), "Accelerate: an ordinary loop", folder, spike=[9])


def fit(root, kind, **options):
    """Train one of ``support.fits``, to be killed."""
    FITS[kind](root, **options)


def train(root, name, files, keep=True, **options):
    """Train a loop; return what it ends with: a hash of the bits, and what the library reports."""
    from mvc_hooks import rollback, stop

    loop = LOOPS[name]
    if keep:
        ladder = [rollback(to="last", min_steps_back=2, skip_batches=0), stop(after=2)]
        options = {"every": 6, "ladder": ladder, "signals": False, **options}
    run = loop.fit(root if keep else None, files, **options)
    rollbacks = [] if run.checkpointer is None else run.checkpointer.rollbacks
    return {
        "bits": _hash(run.state), "report": loop.report(run), "rollbacks": len(rollbacks),
        "resumed": run.checkpointer is not None and run.checkpointer.resumed_from is not None,
    }  # fmt: skip


# What is found, and the table of it.


def examine(zygote, folder, name):
    """Return what is found of a loop, killed and rolled back: exact, refused: why, a limit, or what differs."""

    def go(case, **options):
        files = str(folder / f"{case}-files")
        return "train", folder / case, {"name": name, "files": files, **options}

    killed, plain, back = zygote.run_all([
        go("killed", kill_at=_scale(name, KILLED_AT)),
        go("plain", keep=False),
        go("back", spike=[_scale(name, NAN_AT)]),
    ])  # fmt: skip
    if killed.kind in ("UsageError", "UnsupportedError"):
        return [f"refused: {run.error.partition(': ')[2]}" for run in (killed, back)]
    assert killed.killed, killed.error
    assert plain.error is None, plain.error
    has_ended = back.kind == "DivergedError"
    resumed, *again = zygote.run_all([go("killed"), *([go("back")] if has_ended else [])])
    back = again[0] if again else back
    assert not back.error, back.error
    assert not resumed.error, resumed.error
    assert resumed.result["resumed"], "a run that begins anew proves nothing"
    went_back = back.result["resumed"] if has_ended else back.result["rollbacks"] == 1
    assert went_back, "a run that did not go back proves nothing"
    found = [_compare(plain.result, one.result) for one in (resumed, back)]
    if has_ended:
        found[1] = (
            f"known limit: it ends with an error that says so, and started again it is {found[1]}"
        )
    return found


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
    head = text[: text.index("| library |")].rstrip()
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
