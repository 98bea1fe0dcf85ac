"""Named ranges around what mvc does on the training thread, for the profilers that show them.

torch's profiler sees them as ``record_function``, Nsight Systems as NVTX ranges. ``record_function``
costs several microseconds even where no profiler runs, so a range is entered only while one does, or
in a process that uses CUDA, where an NVTX call without a tool returns at once.
"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import torch
from torch.autograd import profiler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_Params = ParamSpec("_Params")
_Result = TypeVar("_Result")


def ranged(name: str) -> Callable[[Callable[_Params, _Result]], Callable[_Params, _Result]]:
    """Return a decorator that gives every call of a function a range of this name."""

    def decorate(function: Callable[_Params, _Result]) -> Callable[_Params, _Result]:
        @functools.wraps(function)
        def call(*args: _Params.args, **kwargs: _Params.kwargs) -> _Result:
            has_cuda = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]  # so in torch
            if not has_cuda and not profiler._is_profiler_enabled:  # noqa: SLF001  there is no public way
                return function(*args, **kwargs)
            with _enter(name, has_cuda=has_cuda):
                return function(*args, **kwargs)

        return call

    return decorate


@contextlib.contextmanager
def _enter(name: str, *, has_cuda: bool) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        if profiler._is_profiler_enabled:  # noqa: SLF001  as above
            stack.enter_context(profiler.record_function(name))
        if has_cuda:
            stack.enter_context(torch.cuda.nvtx.range(name))
        yield
