"""Ways of saving a training run, each as its users call it, with its defaults.

A way is asked to ``save`` (what it takes is the stall), to ``finish`` (until all that goes on beside the
training has ended), how many bytes the last save left on the disk, and to ``clear`` them away. Peers
get the run's own optimizer and network; none of them calls fsync unless it does so by itself.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.distributed.checkpoint.stateful import Stateful

from benchmarks.sweep import folder_bytes, fresh_folder
from mvc_hooks import Checkpointer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from benchmarks.hooks.run import Run

MVC = "mvc"
TORCH_SAVE = "torch.save"
DCP = "dcp.save"
DCP_THREAD = "dcp.async_save, thread"
DCP_PROCESS = "dcp.async_save, process"
LIGHTNING = "Lightning, save_checkpoint"
TRANSFORMERS = "HF Trainer, its checkpoint"


class Way(Protocol):
    """Saves a run.

    Attributes:
        is_durable: whether its bytes are on the disk, fsync and all, when it has finished.
    """

    is_durable: bool

    def save(self) -> None:
        """Save the run as it is; the training stands still meanwhile."""

    def finish(self) -> None:
        """Wait until what goes on beside the training has ended."""

    def count_bytes(self) -> int:
        """Return what the last save left on the disk."""

    def clear(self) -> None:
        """Remove what the last save left, where it is a thing of its own."""

    def close(self) -> None:
        """End."""


class _Folder:
    """A way that writes below a folder of its own; everything else is done at once."""

    is_durable = False

    def __init__(self, run: Run, folder: Path) -> None:
        self.run = run
        self.folder = fresh_folder(folder)

    def finish(self) -> None:
        pass

    def count_bytes(self) -> int:
        return folder_bytes(self.folder)

    def clear(self) -> None:
        fresh_folder(self.folder)

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


class MvcWay(_Folder):
    """``Checkpointer.step`` where a commit is due.

    Its commits stay: each is a version of one history.
    """

    is_durable = True

    def __init__(self, run: Run, folder: Path, **settings: Any) -> None:
        super().__init__(run, folder)
        settings = {"every": 1, "detectors": [], "signals": False} | settings
        parts = {"model": run.model, "optimizer": run.optimizer}
        self.checkpointer = Checkpointer(folder, **parts, **settings)

    def save(self) -> None:
        self.checkpointer.step()

    def finish(self) -> None:
        self.checkpointer.wait()

    def count_bytes(self) -> int:
        return self.checkpointer.commits[-1].written_bytes

    def clear(self) -> None:
        pass

    def close(self) -> None:
        self.checkpointer.close()
        super().close()


class TorchWay(_Folder):
    """``torch.save`` of what scripts save."""

    def save(self) -> None:
        torch.save(self.run.state(), self.folder / "state.pt")


class App(Stateful):
    """Network and optimizer as PyTorch's recipe hands them to ``dcp``."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.run.model, self.run.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(
            self.run.model,
            self.run.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )


class DcpWay(_Folder):
    """``dcp.save``."""

    def __init__(self, run: Run, folder: Path) -> None:
        super().__init__(run, folder)
        join_world(folder.parent)

    def save(self) -> None:
        dcp.save({"app": App(self.run)}, checkpoint_id=self.folder / "dcp")


class DcpAsyncWay(DcpWay):
    """``dcp.async_save`` with its default stager."""

    kind = AsyncCheckpointerType.THREAD

    def save(self) -> None:
        self._future = dcp.async_save(
            {"app": App(self.run)},
            checkpoint_id=self.folder / "dcp",
            async_checkpointer_type=self.kind,
        )

    def finish(self) -> None:
        future = self._future
        getattr(future, "upload_completion", future).result()


class DcpProcessWay(DcpAsyncWay):
    """The same with a process that writes."""

    kind = AsyncCheckpointerType.PROCESS


class LightningWay(_Folder):
    """``Trainer.save_checkpoint`` of a fit."""

    def __init__(self, run: Run, folder: Path) -> None:
        super().__init__(run, folder)
        import lightning  # noqa: PLC0415  only where it is installed

        class Module(lightning.LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.network = run.model

            def training_step(self, rows: torch.Tensor) -> torch.Tensor:
                return self.network(rows)["loss"]

            def configure_optimizers(self) -> torch.optim.Optimizer:
                return run.optimizer

        self._trainer = lightning.Trainer(
            max_steps=1,
            accelerator=run.device,
            devices=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
        )
        rows = run.draw()[0].cpu()
        self._trainer.fit(Module(), torch.utils.data.DataLoader([rows] * 2, batch_size=1))
        run.model.to(run.device)  # a fit that ends leaves it on the host

    def save(self) -> None:
        self._trainer.save_checkpoint(self.folder / "last.ckpt")


class TransformersWay(_Folder):
    """What ``save_strategy="steps"`` of a ``Trainer`` writes."""

    def __init__(self, run: Run, folder: Path) -> None:
        super().__init__(run, folder)
        import transformers  # noqa: PLC0415  only where it is installed

        arguments = transformers.TrainingArguments(
            output_dir=str(folder),
            max_steps=1,
            per_device_train_batch_size=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=run.device == "cpu",
        )
        schedule = torch.optim.lr_scheduler.ConstantLR(run.optimizer, 1.0)
        self._trainer = transformers.Trainer(
            run.model,
            arguments,
            train_dataset=[{"rows": run.draw()[0].cpu()}] * 2,
            optimizers=(run.optimizer, schedule),
        )
        self._trainer.train()

    def save(self) -> None:
        self._trainer._save_checkpoint(self._trainer.model, trial=None)  # noqa: SLF001  what a fit calls


WAYS: dict[str, Callable[[Run, Path], Way]] = {
    MVC: MvcWay,
    TORCH_SAVE: TorchWay,
    DCP: DcpWay,
    DCP_THREAD: DcpAsyncWay,
    DCP_PROCESS: DcpProcessWay,
    LIGHTNING: LightningWay,
    TRANSFORMERS: TransformersWay,
}
_NEEDED = {LIGHTNING: "lightning", TRANSFORMERS: "transformers"}


def is_installed(name: str) -> bool:
    """Tell whether what a way needs is there."""
    return name not in _NEEDED or importlib.util.find_spec(_NEEDED[name]) is not None


def open_ways(run: Run, folder: Path, names: list[str]) -> dict[str, Way]:
    """Return name → way, without those that need something that is not installed."""
    # Trainers look whether a world was joined, so the ways that join one come after them.
    order = sorted(filter(is_installed, names), key=lambda name: name.startswith("dcp"))
    made = {name: WAYS[name](run, folder / f"way-{number}") for number, name in enumerate(order)}
    return {name: made[name] for name in names if name in made}


def join_world(folder: Path) -> None:
    """Join a world of one, which ``dcp.async_save`` asks for."""
    if not dist.is_initialized():
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        store = dist.FileStore(str(folder / "world"), 1)
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)


def leave_world() -> None:
    """Leave it."""
    if dist.is_initialized():
        dist.destroy_process_group()
