"""What a ConsistentDataLoader is told, checked."""

from __future__ import annotations

import inspect
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal

from torch.utils.data import DataLoader

from mvc import UsageError
from mvc.sampling import Skips

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mvc.sampling import SamplePlan

_REPLACED = {
    "batch_size": "pass global_batch_size=..., the samples of all ranks together",
    "sampler": "the order comes from seed=...; to leave samples out, pass skip=...",
    "batch_sampler": "the order comes from seed=...; to leave samples out, pass skip=...",
}
_Tail = Literal["short", "drop", "wrap"]
_TAILS: Mapping[object, _Tail] = {False: "short", True: "drop", "wrap": "wrap"}


def check_batch_size(samples: int | None) -> int:
    """Return the size of a global batch; UsageError if there is none."""
    if samples is None:
        raise UsageError("no global_batch_size", hint=_REPLACED["batch_size"])
    return samples


def find_tail(drop_last: object) -> _Tail:
    """Return what becomes of samples that fill no batch; UsageError if ``drop_last`` does not say."""
    if drop_last not in _TAILS:
        raise UsageError(f"drop_last is {drop_last!r}, not True, False or 'wrap'")
    return _TAILS[drop_last]


def check_options(options: Mapping[str, Any]) -> None:
    """Check that torch's DataLoader has these, and none contradicts a fixed order; UsageError if not."""
    for name, hint in _REPLACED.items():
        if name in options:
            raise UsageError(f"{name} contradicts the order of a ConsistentDataLoader", hint=hint)
    known = inspect.signature(DataLoader.__init__).parameters
    for name in options.keys() - known.keys():
        near = get_close_matches(name, known, 1)
        raise UsageError(
            f"a ConsistentDataLoader has no option {name!r}",
            hint=f"did you mean {near[0]}?" if near else "it has those of torch's DataLoader",
        )
    if not options.get("in_order", True):
        raise UsageError("in_order=False contradicts a fixed order", hint="leave it out")


def check_skips(plan: SamplePlan, skips: object) -> Skips:
    """Return what is to be skipped; UsageError if there are no such samples."""
    if not isinstance(skips, Skips):
        raise UsageError(
            f"{skips!r} is not of class Skips",
            hint="mvc.sampling.Skips().add_samples(name, first, last, reason=...)",
        )
    sizes = {one.name: one.size for one in plan.sources}
    for one in skips.ranges:
        if one.source not in sizes:
            raise UsageError(
                f"{one.source!r}, of which samples are to be skipped, is not a dataset",
                hint=f"the datasets are {', '.join(sizes)}",
            )
        if one.last >= sizes[one.source]:
            raise UsageError(
                f"sample {one.last} of {one.source!r} is to be skipped, and it has {sizes[one.source]}",
                hint="their numbers begin at 0",
            )
    return skips
