"""How the data pipelines of two commits differ, as text and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.cli.output import Output, pick, printable
from mvc.cli.render.text import change_lines, count_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mvc.operations.pipeline_diff import NodeDiff

_LETTERS = {"added": ("A", "green"), "removed": ("D", "red"), "modified": ("M", "yellow")}


def node_fields(node: NodeDiff) -> dict[str, object]:
    """Return a node that differs for ``--json``."""
    changes = {
        name: [{"name": of, "old": old, "new": new} for of, old, new in getattr(node, name)]
        for name in ("params", "libraries", "inputs")
    }
    code = [{"name": name, "lines": list(lines)} for name, lines in node.code]
    facts = pick(node, "name status old_version new_version is_own is_declared")
    return {**facts, **changes, "code": code}


def node_rows(
    out: Output, nodes: Sequence[NodeDiff], most: int | None, see_all: str
) -> Iterator[str]:
    """Yield what differs in each node; ``most`` lines of code of one function, None for all."""
    yield out.style(f"pipeline: {count_text(len(nodes), 'node')} changed", "bold")
    for node in nodes:
        letter, colour = _LETTERS[node.status]
        versions = [one[:8] for one in (node.old_version, node.new_version) if one is not None]
        text = f"{printable(node.name)}  {out.style(printable(' -> '.join(versions)), 'dim')}"
        yield f"  {out.style(letter, colour)} {text}{_reason(node)}"
        for what, changes in (
            ("", node.params),
            ("library ", node.libraries),
            ("input ", node.inputs),
        ):
            for name, old, new in changes:
                yield f"      {what}{printable(_change_text(name, old, new))}"
        for name, lines in node.code:
            yield f"      {printable(name)}"
            for line in change_lines(out, lines, most, see_all):
                yield f"      {line}"


def _reason(node: NodeDiff) -> str:
    """Return why a node differs, where nothing of its own is shown."""
    if node.status != "modified" or node.params or node.libraries or node.inputs or node.code:
        return ""
    return "  (a value of its own differs)" if node.is_own else "  (a node before it changed)"


def _change_text(name: str, old: str | None, new: str | None) -> str:
    if name in (old, new):  # an input
        return f"{name} {'added' if old is None else 'removed'}"
    return f"{name}: {'(none)' if old is None else old} -> {'(none)' if new is None else new}"
