"""The pipeline of a run as records: what each node was made of, and how two pipelines differ.

A version is a hash of the node's own part (code, parameters), of the libraries that it uses, and of the
versions before it. So a change shows in the node that was changed and in all after it; a comparison names
the first alone. Two pipelines are the same if all versions are.

What a run's loaders use and is not a node (a dataset, ``collate_fn``, a sampler of the user's own) is
recorded as well, by its code and the constants in it. It was not declared, so a change of it is told
and not refused.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mvc import UsageError
from mvc_hooks.data.code import digest_parts
from mvc_hooks.data.kinds import KINDS
from mvc_hooks.data.nodes import FunctionNode, find_node, get_function
from mvc_hooks.data.objects import list_attributes
from mvc_hooks.data.reading import BY_HAND, Reading

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_MOST_TEXT = 64 * 2**10
_VERSION_CHARS = 16
_FUNCTION_KINDS = tuple(
    one for one in vars(__import__("types")).values() if isinstance(one, type)
)


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """A node as a commit records it.

    Attributes:
        version: changes with anything that the node depends on.
        own: the version of its own part alone: code and parameters.
        inputs: names of the nodes before it.
        params: parameters, and the values that its code reads: name → short text.
        code: name → source of functions and classes.
        libraries: name → version.
        is_declared: whether it was made by ``node``.
    """

    version: str
    own: str
    inputs: tuple[str, ...] = ()
    params: Mapping[str, str] = field(default_factory=dict)
    code: Mapping[str, str] = field(default_factory=dict)
    libraries: Mapping[str, str] = field(default_factory=dict)
    is_declared: bool = True
