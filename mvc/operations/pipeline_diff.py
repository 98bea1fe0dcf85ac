"""How the data pipelines of two training states differ, node by node.

The state of a run says in ``data.pipeline`` what each node of its pipeline was made of, with the source of
its code. What is there is read with suspicion: what is not as a run writes it is no pipeline.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mvc.errors import MvcError
from mvc.operations.text_diff import changed_lines

if TYPE_CHECKING:
    Change = tuple[str, str | None, str | None]

_MAX_NODES = 10_000
_TEXTS = ("params", "code", "libraries")
_PATH = ("data_record", "pipeline")


@dataclass(frozen=True, slots=True)
class NodeDiff:
    """A node that differs.

    Attributes:
        status: ``added``, ``removed`` or ``modified``.
        old_version: its version before; None if it was added.
        new_version: its version now; None if it was removed.
        params: (name, old, new) of parameters and of values that its code reads; None where it has none.
        libraries: (name, old, new) of versions of libraries that it uses.
        inputs: (name, old, new) of nodes before it that came or went: the name where there is one.
        code: (name, changed lines as of ``diff -u``) of each function or class that differs.
        is_own: whether it changed itself, not just a library or a node before it.
        is_declared: whether it is a node, not just something that a loader uses.
    """

    name: str
    status: str
    old_version: str | None
    new_version: str | None
    params: tuple[Change, ...] = ()
    libraries: tuple[Change, ...] = ()
    inputs: tuple[Change, ...] = ()
    code: tuple[tuple[str, tuple[str, ...]], ...] = ()
    is_own: bool = True
    is_declared: bool = True


def compare_pipelines(old: object, new: object) -> tuple[NodeDiff, ...]:
    """Return the nodes that differ between two pipelines as states hold them, each after its inputs."""
    before, after = parse_pipeline(old), parse_pipeline(new)
    found = (_compare(name, before.get(name), after.get(name)) for name in {**after, **before})
    return tuple(one for one in found if one is not None)


def parse_pipeline(value: object) -> dict[str, dict[str, Any]]:
    """Return a pipeline as a state holds it; an empty one if that is none."""
    if not isinstance(value, Mapping) or len(value) > _MAX_NODES:
        return {}
    is_good = all(isinstance(name, str) and _is_node(node) for name, node in value.items())
    return dict(value) if is_good else {}


def _is_node(value: object) -> bool:
    if not isinstance(value, Mapping):
        return False
    inputs = value.get("inputs")
    return (
        isinstance(value.get("version"), str)
        and isinstance(value.get("own"), str)
        and isinstance(value.get("is_declared"), bool)
        and isinstance(inputs, list)
        and all(isinstance(name, str) for name in inputs)
        and all(_is_texts(value.get(name)) for name in _TEXTS)
    )


def _is_texts(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(text, str) for pair in value.items() for text in pair
    )


def _compare(
    name: str, old: Mapping[str, Any] | None, new: Mapping[str, Any] | None
) -> NodeDiff | None:
    shown = new or old or {}
    if old is None or new is None:
        before, after = (None if node is None else str(node["version"]) for node in (old, new))
        status = "added" if old is None else "removed"
        return NodeDiff(name, status, before, after, is_declared=shown["is_declared"])
    if old["version"] == new["version"]:
        return None
    is_own = old["own"] != new["own"]
    inputs = ({name: name for name in side["inputs"]} for side in (old, new))
    code: list[tuple[str, tuple[str, ...]]] = []
    for source, *texts in _list_changes(old["code"], new["code"]) if is_own else ():
        encoded = [(text or "").encode("utf-8", "surrogatepass") for text in texts]
        code.append((source, changed_lines(*encoded)))
    return NodeDiff(
        name,
        "modified",
        old["version"],
        new["version"],
        params=tuple(_list_changes(old["params"], new["params"])) if is_own else (),
        libraries=tuple(_list_changes(old["libraries"], new["libraries"])),
        inputs=tuple(_list_changes(*inputs)),
        code=tuple(code),
        is_own=is_own,
        is_declared=shown["is_declared"],
    )


def _list_changes(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[Change]:
    for name in sorted({**old, **new}):
        if old.get(name) != new.get(name):
            yield name, old.get(name), new.get(name)


def find_pipeline(text: bytes) -> tuple[Mapping[str, Any], bytes]:
    """Return the pipeline in a ``state.json``, and the text without it, for its own lines to be compared.

    Both are as good as empty, or unchanged, if there is none.
    """
    if b'"pipeline"' not in text:
        return {}, text
    from dataclasses import replace  # noqa: PLC0415  few states need it

    from mvc.states.document import encode_document, parse_document  # noqa: PLC0415
    from mvc.states.outline import decode_outline  # noqa: PLC0415

    try:
        document = parse_document(text)
        data = document.state[_PATH[0]]  # type: ignore[index, call-overload]  # or KeyError
        pipeline = parse_pipeline(decode_outline(document, data[_PATH[1]]))  # type: ignore[index, call-overload]
        rest = {key: one for key, one in data.items() if key != _PATH[1]}  # type: ignore[union-attr]
        state = {**document.state, _PATH[0]: rest}  # type: ignore[dict-item]
        return pipeline, encode_document(replace(document, state=state))
    except (MvcError, KeyError, TypeError, AttributeError):
        return {}, text
