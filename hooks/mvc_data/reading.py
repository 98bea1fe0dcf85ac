"""The reading of one node: digests of values, and what is found on the way.

A digest is of content alone, so any process of any machine finds it again. How a value of some kind is
read stands in a table (``kinds.py``), which this module goes through; it remembers what was read, marks
circles, and gives up at limits.
"""

from __future__ import annotations

import importlib.metadata
import re
import sys
from functools import lru_cache
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from mvc import UsageError
from mvc_data.source import digest_parts
from mvc_hooks.installed import OWN_PACKAGES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Read: TypeAlias = "Callable[[NodeReading, Any, str], bytes]"

MOST_VALUES, MOST_BYTES = 1_000_000, 256 * 2**20
MOST_DEPTH = 60
BY_HAND = 'name its version yourself: version="1"'
PLAIN = frozenset({type(None), bool, int, str, bytes, bytearray, range, type(...)})
"""Types whose values ``ascii`` spells, whatever the process."""
CONSTANTS = (bool, int, float, complex, str, bytes, type(None), re.Pattern)
_SHOWN = 80
_CODE = (FunctionType, type, BuiltinFunctionType)


class File(str):
    """The path of a file that counts by its content, wherever it lies; otherwise an ordinary string."""

    __slots__ = ()


class NodeReading:
    """What one node depends on, found while its value is read."""

    def __init__(
        self,
        name: str,
        kinds: Sequence[tuple[Callable[[Any], bool], Read]],
        find_node: Callable[[object], Any],
        *,
        by_code: bool = False,
    ) -> None:
        """Read for a node; ``by_code``: of values only constants count, of objects their classes."""
        self._name, self._kinds = name, kinds
        self.find_node, self.by_code = find_node, by_code
        self.code: dict[str, str] = {}  # name → text of functions and classes of the user's
        # Name → version of the distributions whose code it uses.
        self.libraries: dict[str, str] = {}
        self.values: dict[str, str] = {}  # name → text of values that its code reads from outside
        # Values that are other nodes, in the order in which they were met.
        self.inputs: list[Any] = []
        self._known: dict[int, tuple[object, bytes]] = {}  # held, or an id could come back
        self._above: list[int] = []
        self._values_read = self._bytes_read = 0

    @property
    def is_outermost(self) -> bool:
        """Whether the value that is being read is the node's own."""
        return len(self._above) <= 1

    def digest(self, value: object, path: str = "") -> bytes:
        """Return the digest of a value; ``path`` says in messages where it is."""
        if type(value) in PLAIN:  # most are, and many there may be
            self._count(path)
            return digest_plain(value)
        if id(value) in self._known:
            return self._known[id(value)][1]
        if id(value) in self._above:
            return digest_parts("above", str(len(self._above) - self._above.index(id(value))))
        node = self.find_node(value)
        if node is None:
            return self.read(value, path)
        if node.name == self._name:
            return digest_parts("itself")
        if all(value is not known for known in self.inputs):
            self.inputs.append(value)
        return digest_parts("node", node.name)  # what it is itself, its version says

    def read(self, value: object, path: str = "") -> bytes:
        """Return the digest of a value, be it a node itself."""
        self._count(path)
        self._above.append(id(value))
        try:
            read = next(read for is_kind, read in self._kinds if is_kind(value))
            digest = read(self, value, path)
        finally:
            self._above.pop()
        self._known[id(value)] = (value, digest)
        return digest

    def _count(self, path: str) -> None:
        self._values_read += 1
        if self._values_read > MOST_VALUES or len(self._above) > MOST_DEPTH:
            self.refuse(path, "is too large, or too deep, to be read")

    def digest_named(self, name: str, value: object, place: str) -> bytes:
        """Return the digest of a value that code reads by a name, and note its text."""
        is_code, node = isinstance(value, _CODE), self.find_node(value)
        if self.by_code and not (is_code or node is not None or is_constant(value)):
            # The functions in a short container count, and otherwise the class of an object.
            items = list(value.values()) if isinstance(value, dict) else value
            parts: list[object] = [type(value)]
            if isinstance(items, (list, tuple)) and len(items) <= _SHOWN:
                parts = [item for item in items if isinstance(item, _CODE)]
            return digest_parts(name, *(self.digest(part, place) for part in parts))
        digest = self.digest(value, place)
        if not is_code and node is None:
            self.values.setdefault(place, self.show(value, place))
        return digest_parts(name, digest)

    def show(self, value: object, path: str = "") -> str:
        """Return a value as one short text, another one for another value."""
        digest = self.digest(value, path).hex()[:12]
        node = self.find_node(value)
        if node is not None:
            return f"node {node.name}"
        if isinstance(value, (File, PurePath)):
            return f"{PurePath(value).name} ({digest})"
        text = _spell(value)
        if text is not None:
            return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({digest})"
        if isinstance(value, FunctionType):
            return value.__name__  # what it does, its code says
        kind = value if isinstance(value, type) else type(value)
        return f"{kind.__name__} ({digest})"

    def note_code(self, name: str, text: str) -> None:
        """Note the text of a function or class; names of lambdas, for one, may come twice."""
        numbered, count = name, 1
        while self.code.get(numbered, text) != text:
            count += 1
            numbered = f"{name} ({count})"
        self.code[numbered] = text

    def note_library(self, module: str) -> None:
        """Note that code of a module's distribution is used, unless it comes with Python or mvc."""
        top = module.partition(".")[0]
        if top not in sys.stdlib_module_names and top not in OWN_PACKAGES:
            name, version = _find_distribution(top)
            self.libraries[name] = version

    def count_bytes(self, size: int, path: str) -> None:
        """Count bytes of an array before they are read."""
        self._bytes_read += size
        if self._bytes_read > MOST_BYTES:
            self.refuse(path, f"holds more than {MOST_BYTES >> 20} MiB of arrays")

    def refuse(self, path: str, why: str) -> NoReturn:
        """Refuse a value that has no lasting identity."""
        place = f"{path} " if path else "what it wraps "
        raise UsageError(f"node {self._name!r}: {place}{why}", hint=BY_HAND)


def digest_plain(value: object) -> bytes:
    """Return the digest of a value whose text says all of it."""
    return digest_parts(type(value).__name__, ascii(value))


def is_constant(value: object) -> bool:
    """Return whether a value is plain and cannot change."""
    if isinstance(value, (tuple, frozenset)) and type(value) in (tuple, frozenset):
        return len(value) <= _SHOWN and all(map(is_constant, value))
    return type(value) in CONSTANTS


def _spell(value: object) -> str | None:
    """Return the text of a plain value, the same for equal ones; None if it is not plain."""
    if is_constant(value) and type(value) is not frozenset:
        return repr(value)
    items = list(value.items()) if type(value) is dict else value
    if type(items) not in (list, set, frozenset) or len(items) > _SHOWN:  # type: ignore[arg-type]  # they have a length
        return None
    texts = [_spell(item) for item in items]  # type: ignore[attr-defined]  # and items
    if None in texts:
        return None
    if type(value) is dict:
        texts = [f"{_spell(key)}: {_spell(item)}" for key, item in value.items()]
    left, right = "[]" if type(value) is list else "{}"
    return f"{left}{', '.join(texts if type(value) is list else sorted(map(str, texts)))}{right}"  # type: ignore[arg-type]  # no None


@lru_cache(maxsize=256)
def _find_distribution(top: str) -> tuple[str, str]:
    """Return name and version of the distribution that a top-level module comes from."""
    try:
        return top, importlib.metadata.version(top)
    except importlib.metadata.PackageNotFoundError:
        names = importlib.metadata.packages_distributions().get(top)
    if not names:
        return top, "unknown"
    name = min(names)
    return name, importlib.metadata.version(name)
