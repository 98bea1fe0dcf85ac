"""The base of all compressing hooks: attached to a DDP, a part of the run, and what it sends is counted.

Error feedback adds to each gradient what compression took from the last one, so that nothing is lost,
only late (Seide et al. 2014; Karimireddy et al. 2019, "Error Feedback Fixes SignSGD"). The errors differ
from rank to rank and are kept by the name of the parameter. Where a bucket comes back with NaN or
infinity, a scaler skips the step: then the errors stay as they were, or NaN would stay in them.

Hooks want one tensor per bucket. But DDP makes new buckets after its first backward pass, and another
process may have others, so what lasts is known by the name of the parameter (``BucketMemory``). When a bucket
comes with other parameters than before, the memory of all that had some of them is taken apart by name, and put
together as buckets come.

Bytes are counted as an all-reduce would send them. A ring sends 2(N-1)/N times the size of the buffer from
each of N ranks, and an all-gather N-1 times what one rank has, so that counts N/2 times.
"""

from __future__ import annotations

import weakref
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch.nn.parallel import DistributedDataParallel

from mvc import UsageError
from mvc_hooks.checks import Requirement
from mvc_hooks.parts.names import name_parameters
from mvc_hooks.parts.part import Part
from mvc_hooks.parts.tree import Difference, Steps, compare_arrays, compare_keys, find_at, outline
from mvc_hooks.ranks.syncing import TimedHook

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    Future = torch.futures.Future[torch.Tensor]


@dataclass(frozen=True, slots=True)
class BucketPiece:
    """The share of one parameter in the flat tensor of a bucket."""

    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return torch.Size(self.shape).numel()


Layout = tuple[BucketPiece, ...]


class BucketMemory:
    """One tensor per parameter, in flat tensors of buckets."""

    def __init__(self, flats: dict[int, torch.Tensor] | None = None) -> None:
        """Keep the flat tensors in this dict, or in a new one."""
        # Bucket → its flat tensor; hooks may replace them by others of the same size.
        self.flats = {} if flats is None else flats
        self._layouts: dict[int, Layout] = {}
        self._loose: dict[str, torch.Tensor] = {}

    def fit(self, bucket: int, layout: Layout, make: Callable[[BucketPiece], torch.Tensor]) -> bool:
        """Bring the flat tensor of a bucket into this layout; ``make`` returns what is not remembered.

        Returns:
            Whether it was so already.
        """
        if self._layouts.get(bucket) == layout:
            return True
        names = {piece.name for piece in layout}
        for other, pieces in list(self._layouts.items()):
            if other == bucket or not names.isdisjoint(piece.name for piece in pieces):
                del self._layouts[other]
                self._loose.update(split(self.flats.pop(other), pieces))
        parts = []
        for piece in layout:
            tensor = self._loose.pop(piece.name, None)
            parts.append((make(piece) if tensor is None else tensor).reshape(-1))
        self.flats[bucket] = torch.cat(parts) if parts else torch.empty(0)
        self._layouts[bucket] = layout
        return False

    def by_name(self) -> dict[str, torch.Tensor]:
        """Return the tensor of each parameter, a view where it is in a bucket; sorted by name."""
        tensors = dict(self._loose)
        for bucket, layout in self._layouts.items():
            tensors.update(split(self.flats[bucket], layout))
        return dict(sorted(tensors.items()))

    def put(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Remember these tensors and no others."""
        self._loose = dict(tensors)
        self._layouts.clear()
        self.flats.clear()


def split(flat: torch.Tensor, layout: Layout) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the view of each piece in a flat tensor, with its name."""
    at = 0
    for piece in layout:
        yield piece.name, flat[at : at + piece.size].view(piece.shape)
        at += piece.size


_SWITCH = Requirement(lambda value: isinstance(value, bool), "not True or False")
_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


class Compression(Part):
    """A communication hook of DDP with its state; make one of ``Fp16``, ``Bf16``, ``PowerSgd``, ``SignSgd``.

    Attributes:
        error_feedback: whether what compression takes from a gradient is added to the next one.
        extend: whether ``Checkpointer.steps`` and the schedules take 10 % more steps, if gradients are
            compressed by more than 32.
        is_extended: whether they do.
        sent_bytes: what was sent so far, as an all-reduce of so many bytes would.
        gradient_bytes: size of the gradients that were summed so far.
    """

    extension = "mvc_lab.compression.run"
    _SETTINGS: ClassVar[tuple[str, ...]] = ("error_feedback",)

    def __init__(self, *, error_feedback: bool, extend: bool = False) -> None:
        for name, value in (("error_feedback", error_feedback), ("extend", extend)):
            _SWITCH.check(f"{name} of {type(self).__name__}", value)
        self.error_feedback, self.extend, self.is_extended = error_feedback, extend, False
        self.sent_bytes = self.gradient_bytes = 0
        self._last = (0, 0)
        self._step = (0, 0)
        self._errors = BucketMemory()
        self._params: dict[str, torch.nn.Parameter] = {}
        self._names: dict[int, str] = {}
        self._group: Any = None
        self._ddp: weakref.ref[DistributedDataParallel] | None = None

    # Attaching.

    def attach(self, ddp: DistributedDataParallel) -> None:
        """Have a DDP send its gradients through this, from its first backward pass on.

        Raises:
            UsageError: it is not a DDP, has another hook, or has trained; or this has a DDP already, or
                cannot compress one of its parameters.
        """
        kind = type(self).__name__
        if not isinstance(ddp, DistributedDataParallel):
            raise UsageError(
                f"{kind} compresses the gradients of a DistributedDataParallel, not of a {type(ddp).__name__}",
                hint="wrap the model first: ddp = DistributedDataParallel(model)",
            )
        if self._ddp is not None:
            raise UsageError(f"this {kind} is already attached", hint="make one for each model")
        wrapper: Any = ddp  # torch's documentation calls both
        wrapper.logger.set_runtime_stats_and_log()
        stats = wrapper._get_ddp_logging_data()  # noqa: SLF001
        if stats.get("comm_hook"):
            raise UsageError(
                f"the DistributedDataParallel already has a communication hook, {stats['comm_hook']}",
                hint="it can have one: wrap the model again, or leave the other hook out",
            )
        if stats.get("iteration"):
            raise UsageError(
                f"{kind} is attached after training began: its steps so far were not compressed",
                hint="call attach() right after DistributedDataParallel(...)",
            )
        reduced = {
            name: param
            for name, param in name_parameters(ddp.module).items()
            if param.requires_grad
        }
        for name, param in reduced.items():
            self.check(name, param)
        ddp.register_comm_hook(self, TimedHook(_compress))  # a monitor may be there
        self._ddp, self._group = weakref.ref(ddp), ddp.process_group
        self._params, self._names = reduced, {id(param): name for name, param in reduced.items()}

    def check(self, name: str, param: torch.nn.Parameter) -> None:
        """Refuse a parameter whose gradient cannot be compressed."""
        if param.dtype not in _DTYPES:
            raise UsageError(
                f"{type(self).__name__} cannot compress the gradient of {name}, which is {param.dtype}",
                hint="it takes float32, float64, float16 and bfloat16",
            )

    @property
    def is_attached(self) -> bool:
        """Whether ``attach`` was called."""
        return self._ddp is not None

    @property
    def size(self) -> int:
        """Number of ranks."""
        return 1 if self._group is None else int(self._group.size())

    @property
    def settings(self) -> dict[str, object]:
        """What must be the same on all ranks, and in a commit."""
        return {"kind": type(self).__name__} | {
            name: getattr(self, name) for name in self._SETTINGS
        }

    # What is sent.

    @property
    def ratio(self) -> float | None:
        """Bytes of gradients over bytes sent, in the last backward pass; None before the first."""
        sent, plain = self._last
        return plain / sent if sent else None

    @property
    def expected_ratio(self) -> float:
        """The same as computed from the shapes of the parameters, once compression has begun."""
        params = list(self._params.values())
        plain = sum(param.numel() * param.element_size() for param in params)
        sent = self._expect(params)
        return plain / sent if sent else 1.0

    @abstractmethod
    def _expect(self, params: Sequence[torch.Tensor]) -> float:
        """Return the bytes sent for the gradients of these parameters."""

    def _count(self, bucket: Any, sent_bytes: float) -> None:
        buffer = bucket.buffer()
        plain = buffer.numel() * buffer.element_size()
        self._step = (self._step[0] + round(sent_bytes), self._step[1] + plain)
        if bucket.is_last():
            self._last, self._step = self._step, (0, 0)
            self.sent_bytes += self._last[0]
            self.gradient_bytes += self._last[1]

    # The hook.

    @abstractmethod
    def reduce(self, bucket: Any) -> Future:
        """Return the mean over the ranks of the gradients in a bucket, as a future."""

    def _fit_errors(self, bucket: Any) -> Layout:
        """Bring the errors into the layout of a bucket, and return that."""
        layout = tuple(
            BucketPiece(self._names[id(param)], tuple(param.shape)) for param in bucket.parameters()
        )
        if self.error_feedback:
            zeros = bucket.buffer().new_zeros
            self._errors.fit(bucket.index(), layout, lambda piece: zeros(piece.size))
        return layout

    def _add_errors(self, bucket: Any) -> torch.Tensor:
        """Add the errors to a bucket, and return them."""
        self._fit_errors(bucket)
        errors = self._errors.flats[bucket.index()]
        bucket.buffer().add_(errors)
        return errors

    # The part.

    def capture(self) -> dict[str, Any]:
        """Return settings, counts, and errors by the name of the parameter."""
        return {
            "settings": self.settings,
            "is_extended": self.is_extended,
            "sent_bytes": self.sent_bytes,
            "gradient_bytes": self.gradient_bytes,
            "errors": self._errors.by_name(),
        }

    def compare(self, live: Any, stored: Any, path: Steps) -> Iterator[Difference]:
        """Compare settings, and the names and shapes of what is stored with the model's."""
        theirs = find_at(stored, ("settings",))
        if not isinstance(theirs, dict):
            yield Difference(path, type(self).__name__, "something else")
            return
        for name, value in self.settings.items():
            if theirs.get(name) != value:
                yield Difference((*path, name), str(value), str(theirs.get(name)))
        if theirs == self.settings:
            yield from compare_keys(live, stored, path)
        wanted = {name: param.detach() for name, param in self._params.items()}
        yield from compare_memory(wanted, find_at(stored, ("errors",)), (*path, "errors"))

    def restore(self, stored: Any) -> None:
        """Take all of it; tensors go where the parameters are."""
        self.is_extended = stored["is_extended"]
        self.sent_bytes, self.gradient_bytes = stored["sent_bytes"], stored["gradient_bytes"]
        self._step = (0, 0)
        self._errors.put(self._place(stored["errors"]))

    def _place(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: tensor.to(self._params[name].device) for name, tensor in tensors.items()}


def compare_memory(wanted: Mapping[str, Any], stored: Any, path: Steps) -> Iterator[Difference]:
    """Yield what is stored of parameters that are not there, or have another form."""
    for name, tensor in stored.items() if isinstance(stored, dict) else ():
        if name not in wanted:
            yield Difference((*path, name), None, "an error")
        else:
            yield from compare_arrays(outline(wanted[name]), tensor, (*path, name))


def _compress(compression: Compression, bucket):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202  torch wants no texts as annotations
    return compression.reduce(bucket)


def keep_if_finite(errors: torch.Tensor, fresh: torch.Tensor, result: torch.Tensor) -> None:
    """Set errors to fresh ones, unless the result has NaN or infinity; the host does not wait."""
    errors.copy_(torch.where(torch.isfinite(result).all(), fresh, errors))


def then(future: Future, finish: Callable[[torch.Tensor], None]) -> Future:
    """Return a future that has the same value, after something was done with it."""

    def run(done: Future) -> torch.Tensor:
        value = done.value()
        finish(value)
        return value

    return future.then(run)
