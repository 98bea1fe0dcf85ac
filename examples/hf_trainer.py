"""A Hugging Face Trainer run that meets bad data, rolls back automatically, is stopped, and resumes.

A small GPT-2 learns the source text of Python's standard library, byte by byte; nothing is
downloaded. All that versioning, resuming and rolling back add is a callback, whose `train` is called
instead of the Trainer's own.

    python examples/hf_trainer.py
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import sysconfig
import tempfile
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from torch import Tensor, nn
from torch.utils.data import Dataset

from mvc_hooks import rollback, stop
from mvc_hooks.adapters.transformers import MvcCallback

CONTEXT = 32


class Text(Dataset[dict[str, Tensor]]):
    """Windows of the text of some standard-library modules, as byte values."""

    def __init__(self) -> None:
        folder = Path(sysconfig.get_paths()["stdlib"])
        text = b"".join(path.read_bytes() for path in sorted(folder.glob("json/*.py")))
        self.codes = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()

    def __len__(self) -> int:
        return len(self.codes) // CONTEXT

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        window = self.codes[index * CONTEXT : (index + 1) * CONTEXT]
        return {"input_ids": window, "labels": window}


class StopAt(transformers.TrainerCallback):
    """Ends training early, as a cluster scheduler does that wants its machine back."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(
        self,
        args: transformers.TrainingArguments,
        state: transformers.TrainerState,
        control: transformers.TrainerControl,
        **_: object,
    ) -> None:
        """Stop after that step."""
        control.should_training_stop |= state.global_step == self.step


class BadBatch:
    """Spoils the loss of one batch, once; the model is not to blame."""

    def __init__(self, model: nn.Module, batch: int) -> None:
        self.left = batch
        model.register_forward_hook(self.spoil)

    def spoil(self, model: nn.Module, _inputs: object, output: dict[str, Tensor]) -> None:
        """Count batches, and spoil the chosen one."""
        if model.training:
            self.left -= 1
        if self.left == 0:
            output["loss"] = output["loss"] * float("nan")


def make_trainer(steps: int, stop_at: int = 0, bad_batch: int = 0) -> transformers.Trainer:
    """Make everything from scratch, as a new process would."""
    transformers.set_seed(0)
    config = transformers.GPT2Config(
        vocab_size=256, n_positions=CONTEXT, n_embd=48, n_layer=2, n_head=4,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config)
    if bad_batch:
        BadBatch(model, bad_batch)
    trainer = transformers.Trainer(
        model=model,
        args=transformers.TrainingArguments(
            output_dir=tempfile.gettempdir(),
            max_steps=steps,
            per_device_train_batch_size=16,
            learning_rate=3e-3,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            dataloader_pin_memory=False,
            logging_steps=20,
        ),
        train_dataset=Text(),
        callbacks=[StopAt(stop_at)],
    )
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer


def digest(trainer: transformers.Trainer) -> str:
    """Return the SHA-256 of all weights."""
    model = trainer.model
    assert isinstance(model, nn.Module)
    weights = [value.detach().numpy().tobytes() for value in model.state_dict().values()]
    return hashlib.sha256(b"".join(weights)).hexdigest()


def main() -> None:
    """Train twice: in one go without mvc, and with it, through a NaN, a stop and a resume."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("trainer-run"))
    parser.add_argument("--steps", type=int, default=120)
    options = parser.parse_args()
    shutil.rmtree(options.folder, ignore_errors=True)
    torch.set_num_threads(1)  # the matrices are small, and threads would only wait for each other
    steps = options.steps
    every, bad, middle = steps // 6, steps // 2 + 3, steps * 3 // 4 + 1
    # No batches are skipped, so that the run can be compared with one that never rolled back.
    ladder = [rollback(min_steps_back=2, skip_batches=0), stop(after=3)]

    trainer = make_trainer(steps)
    trainer.train()
    through = digest(trainer)
    print(f"in one go, without mvc:    step {steps}  {through[:16]}")

    callback = MvcCallback(options.folder, every=every, healthy_after=every // 2, ladder=ladder)
    callback.train(make_trainer(steps, stop_at=middle, bad_batch=bad))
    assert callback.checkpointer is not None
    for report in callback.checkpointer.rollbacks:
        print(report)
    print(f"with mvc, stopped:         step {middle}")

    callback = MvcCallback(options.folder, every=every, healthy_after=every // 2, ladder=ladder)
    trainer = make_trainer(steps)
    callback.train(trainer)
    print(f"new trainer, continued to: step {steps}  {digest(trainer)[:16]}")

    assert callback.checkpointer is not None
    repo = callback.checkpointer.repo
    for branch in repo.branches.list():
        found = [entry.step for entry in repo.log(branch.name)]
        print(f"  {branch.name:20} steps {found[::-1]}")
    assert digest(trainer) == through, "the run that went back is another one"
    print(f"bit-exact: {through}")


if __name__ == "__main__":
    main()
