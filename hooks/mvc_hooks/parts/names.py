"""Names of modules and parameters, without what wraps them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from mvc_hooks.parts.tree import format_path, walk_leaves

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


_COMPILED, RECOMPUTED = "_orig_mod", "_checkpoint_wrapped_module"
_WRAPPED = frozenset({_COMPILED, RECOMPUTED})


def unwrap_module(module: nn.Module) -> nn.Module:
    """Return the model inside DistributedDataParallel, DataParallel, torch.compile and Fabric."""
    while True:
        inner = getattr(module, _COMPILED, None)
        is_parallel = isinstance(module, (nn.DataParallel, nn.parallel.DistributedDataParallel))
        if inner is None and (is_parallel or type(module).__name__ == "_FabricModule"):
            inner = module.module
        if not isinstance(inner, nn.Module):
            return module
        module = inner


def clean_name(name: str) -> str:
    """Return a name without the steps that torch.compile and activation checkpointing add."""
    if not is_wrapped(name):
        return name
    return ".".join(step for step in name.split(".") if step not in _WRAPPED)


def is_wrapped(name: str) -> bool:
    """Return whether a name has such steps."""
    return _COMPILED in name or RECOMPUTED in name


def name_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters of a model by name, tied ones once."""
    return {clean_name(name): param for name, param in unwrap_module(module).named_parameters()}


class ParameterNames(dict[int, str]):
    """``id`` of parameter → name (``model.0.weight``), for all models among some objects."""

    def __init__(self, objects: Mapping[str, object]) -> None:
        super().__init__()
        self._objects = objects
        self.look()

    def look(self) -> None:
        """Take in parameters that were made since the last time."""
        self.clear()
        self.update((id(param), name) for name, param in self._walk())

    def by_name(self) -> dict[str, torch.Tensor]:
        """Return the parameters as they are now, by name."""
        return dict(reversed(list(self._walk())))

    def list_modules(self) -> list[nn.Module]:
        """Return the models."""
        return [value for _, value in walk_leaves(self._objects) if isinstance(value, nn.Module)]

    def _walk(self) -> Iterator[tuple[str, torch.Tensor]]:
        for path, module in walk_leaves(self._objects):
            if isinstance(module, nn.Module):
                for name, param in name_parameters(module).items():
                    yield f"{format_path(path)}.{name}", param
