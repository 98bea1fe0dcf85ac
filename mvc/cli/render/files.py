"""How files and their tensors differ, as text and as JSON."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc.cli.output import Output, pick, printable
from mvc.cli.render.data import changes_fields, changes_text
from mvc.cli.render.rollup import full_name, roll_up
from mvc.cli.render.text import (
    CHANGES,
    change_lines,
    columns,
    count_text,
    quote_path,
    shape_text,
    size_text,
)
from mvc.tensor_names import in_layer_order

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mvc.comparison.checks import TensorCheck
    from mvc.operations.file_diff import FileDiff
    from mvc.operations.pipeline_diff import NodeDiff
    from mvc.operations.tensor_diff import TensorDiff


LETTERS = {"added": "A", "removed": "D", "modified": "M", "renamed": "R"}
_COLOURS = {"added": "green", "removed": "red", "modified": "yellow", "renamed": "cyan"}
WITH_TENSORS = ("rows", "stat")
"""The forms that show more than paths."""
_LINES_ON_TERMINAL = 40
_LEAST_ROWS = 6


def diff_fields(files: Sequence[FileDiff]) -> dict[str, object]:
    """Return differences for ``--json``."""
    found: dict[str, object] = {"files": [_file_fields(file) for file in files]}
    nodes = [node for file in files for node in file.nodes]
    if nodes:
        found["pipeline"] = [node_fields(one) for one in nodes]
    return found


def _file_fields(file: FileDiff) -> dict[str, object]:
    old_path = "" if file.old_path is None else "old_path"
    facts = "format size_bytes tensors_total other_changed mode_changed lines"
    tensors = [_tensor_fields(tensor) for tensor in in_layer_order(file.tensors)]
    moved = {"moved_from": dict(file.moved_from), "moved_to": dict(file.moved_to)}
    shards = {} if file.shards is None else {"shards": changes_fields(file.shards)}
    return {**pick(file, f"path status {old_path} {facts}"), **moved, "tensors": tensors, **shards}


def _tensor_fields(tensor: TensorDiff) -> dict[str, object]:
    before = pick(tensor, "old_path old_name old_dtype old_shape").items()
    return {
        **pick(tensor, "name status dtype shape"),
        **{key: value for key, value in before if value is not None},
        "size_bytes": tensor.size_bytes,
        "chunks": {"changed": tensor.chunks_changed, "total": tensor.chunks_total},
    }


@dataclass(frozen=True, slots=True)
class _Room:
    """How many rows of tensors and lines of text a file may take; None is all of them."""

    rows: int | None = None
    lines: int | None = None
    see_all: str = ""


def write_diff(
    out: Output,
    files: Sequence[FileDiff],
    form: str,
    *,
    everything: bool,
    see_all: str = "--all",
) -> None:
    """Write what differs in the chosen form; ``everything``, or a pipe, lists every tensor."""
    if form == "name-only":
        out.lines(quote_path(file.path) for file in files)
    elif form == "name-status":
        for file in files:
            names = [quote_path(name) for name in (file.old_path, file.path) if name is not None]
            score = "100" if file.old_path is not None else ""
            out.line("\t".join([LETTERS[file.status] + score, *names]))
    elif form == "stat":
        _write_stat(out, files)
    else:
        _write_rows(out, files, everything=everything, see_all=see_all)


def _write_rows(out: Output, files: Sequence[FileDiff], *, everything: bool, see_all: str) -> None:
    room = _Room()
    if out.width is not None and not everything:
        lists = sum(1 for file in files if file.tensors) or 1
        most = (out.height - 1 - len(files) - lists) // lists
        room = _Room(max(most, _LEAST_ROWS), _LINES_ON_TERMINAL, see_all)
    blocks = [(file, list(_rows(out, file, room, everything=everything))) for file in files]
    for number, (file, rows) in enumerate(blocks):
        if number and (rows or blocks[number - 1][1]):
            out.line()
        out.line(_title(out, file))
        out.lines(rows)
    if moved := moved_text(files):
        out.lines(["", moved])
    nodes = [node for file in files for node in file.nodes]
    if nodes:
        out.lines(["", *node_rows(out, nodes, room.lines, see_all)])


def _names(file: FileDiff) -> str:
    return " -> ".join(printable(name) for name in (file.old_path, file.path) if name is not None)


def moved_text(files: Sequence[FileDiff]) -> str:
    """Return ``the same 290 tensors are in other files``, or nothing if none do."""
    moved = sum(count for file in files for _, count in file.moved_from)
    verb = "is" if moved == 1 else "are"
    return f"the same {count_text(moved, 'tensor')} {verb} in other files" if moved else ""


def _moved_count(file: FileDiff) -> int:
    moved = file.moved_from if file.status == "added" else file.moved_to
    return sum(count for _, count in moved)


def _is_known(file: FileDiff) -> bool:
    """Return whether tensors of a file are compared with those of another one."""
    return len(file.tensors) < file.tensors_total or any(tensor.old_path for tensor in file.tensors)


def _title(out: Output, file: FileDiff) -> str:
    facts = [] if file.format is None else [file.format]
    if file.status == "modified" and file.format is not None:
        facts.append(f"{len(file.tensors):,} of {_count_both(file)}")
        facts[-1] += " differ" if len(file.tensors) != 1 else " differs"
    elif file.tensors_total:
        moved = _moved_count(file)
        where = "from other files" if file.status == "added" else "now in other files"
        text = count_text(file.tensors_total, "tensor")
        facts.append(f"{moved:,} of {text} {where}" if moved else text)
    if file.shards is not None:
        facts = [changes_text(file.shards)]
    else:
        facts.append(size_text(file.size_bytes))
    title = out.style(f"{CHANGES[file.status]}: {_names(file)}", "bold")
    return f"{title}  {out.style(', '.join(facts), 'dim')}"


def _rows(out: Output, file: FileDiff, room: _Room, *, everything: bool) -> Iterator[str]:
    is_whole = file.status in ("added", "removed")
    if file.tensors and (everything or not is_whole or _is_known(file)):
        yield from _tensor_rows(out, file.tensors, room)
    if not is_whole:
        # What an index of shards says, file by file, the tensors' own rows say better.
        is_index = file.path.endswith(".index.json") and room.lines is not None
        yield from change_lines(out, file.lines, 0 if is_index else room.lines, room.see_all)
    if not is_whole and file.mode_changed:
        yield "  the file mode differs"
    if not is_whole and file.other_changed and file.format is not None and _is_in_place(file):
        yield "  bytes outside of tensors differ (header, metadata)"


def _is_in_place(file: FileDiff) -> bool:
    """Return whether all tensors kept name, dtype and shape: then the header should not differ."""
    return not (file.moved_from or file.moved_to) and all(
        tensor.status == "modified" and tensor.old_dtype is None and tensor.old_shape is None
        for tensor in file.tensors
    )


def _tensor_rows(out: Output, tensors: Sequence[TensorDiff], room: _Room) -> Iterator[str]:
    """Yield a line per tensor, or what many of them have in common."""
    tensors = in_layer_order(tensors)
    groups = [(full_name(tensor), [tensor]) for tensor in tensors]
    if room.rows is not None and len(groups) > room.rows:
        groups = roll_up(tensors, room.rows - 1)
    shown = groups[: room.rows - 1] if room.rows is not None and len(groups) > room.rows else groups
    kinds = [(group[0].status, _cells(group, name)) for name, group in shown]
    changes = [(LETTERS[status], _COLOURS[status], cells) for status, cells in kinds]
    yield from change_rows(out, changes, "<<>>", spare=2)
    if len(shown) < len(groups):
        rest = Counter(one.status for _, group in groups[len(shown) :] for one in group)
        counts = ", ".join(f"{count:,} {status}" for status, count in sorted(rest.items()))
        yield out.style(
            f"  … and {sum(rest.values()):,} more ({counts}; {room.see_all} lists each)", "dim"
        )
    elif len(groups) < len(tensors):
        text = f"{count_text(len(tensors), 'tensor')} in {count_text(len(groups), 'row')}"
        yield out.style(f"  ({text}; {room.see_all} lists each)", "dim")


def _cells(tensors: Sequence[TensorDiff], name: str) -> tuple[str, str, str, str]:
    """Return name, shape and how often, chunks and size of one or several tensors."""
    shapes, chunks = {shape_change(tensor) for tensor in tensors}, ""
    if tensors[0].status == "modified":
        changed = sum(one.chunks_changed for one in tensors)
        total = sum(one.chunks_total for one in tensors)
        chunks = f"{changed:,}/{count_text(total, 'chunk')}"
    kind = [
        *(shapes if len(shapes) == 1 else ()),
        *([f"x {len(tensors):,}"] if tensors[1:] else ()),
    ]
    size_bytes = sum(one.size_bytes for one in tensors)
    return printable(name), " ".join(kind), chunks, size_text(size_bytes)


def _write_stat(out: Output, files: Sequence[FileDiff]) -> None:
    rows = [(_names(file), _stat_text(file)) for file in files]
    width = None if out.width is None else out.width - len("  | ")
    for name, text in columns(rows, "<<", width=width):
        out.line(f" {name} | {text}".rstrip())
    if files:
        out.line(" " + _stat_summary(files))


def _stat_text(file: FileDiff) -> str:
    """Return a file's line; ``=3`` are tensors that a new or deleted file shares with others."""
    counts = Counter(tensor.status for tensor in file.tensors)
    signs = [("+", "added"), ("-", "removed"), ("~", "modified"), (">", "renamed")]
    changes = [f"{sign}{counts[status]:,}" for sign, status in signs if counts[status]]
    total = count_text(file.tensors_total, "tensor")
    if file.shards is not None and file.status != "modified":
        return f"{CHANGES[file.status]}, {changes_text(file.shards)}"
    if file.status in ("added", "removed"):
        text = f"{CHANGES[file.status]}, {size_text(file.size_bytes)}"
        moved = _moved_count(file)
        changes = [*([f"={moved:,}"] if moved else []), *changes]
        known = f" ({' '.join(changes)})" if changes and _is_known(file) else ""
        return f"{text}, {total}{known}" if file.tensors_total else text
    if file.shards:
        return changes_text(file.shards)
    if file.format is None or not file.tensors:
        return f"{CHANGES[file.status]}, {size_text(file.size_bytes)}"
    chunks = sum(tensor.chunks_changed for tensor in file.tensors)
    new = count_text(chunks, "new chunk")
    return f"{len(file.tensors):,} of {_count_both(file)} ({' '.join(changes)}), {new}"


def _count_both(file: FileDiff) -> str:
    """Return how many tensors either side has."""
    gone = sum(tensor.status == "removed" for tensor in file.tensors)
    return count_text(file.tensors_total + gone, "tensor")


def _stat_summary(files: Sequence[FileDiff]) -> str:
    counts = Counter(tensor.status for file in files for tensor in file.tensors)
    text, moved = f"{count_text(len(files), 'file')} changed", moved_text(files)
    total = sum(counts.values())
    if not total:
        return f"{text}, {moved}" if moved else text
    parts = ", ".join(f"{counts[status]:,} {status}" for status in LETTERS if counts[status])
    text = f"{text}, {count_text(total, 'tensor')} ({parts})"
    return f"{text}; {moved}" if moved else text


def change_rows(
    out: Output, changes: Sequence[tuple[str, str, Sequence[str]]], aligns: str, *, spare: int
) -> Iterator[str]:
    """Yield one line per (letter, colour, cells), aligned and cut to the terminal."""
    width = None if out.width is None else out.width - len("  M ") - (len(aligns) - 1) * len("  ")
    rows = columns([cells for _, _, cells in changes], aligns, width=width, spare=spare)
    for (letter, colour, _), row in zip(changes, rows, strict=True):
        yield f"  {out.style(letter, colour)} {'  '.join(row)}".rstrip()


def shape_change(one: TensorDiff | TensorCheck) -> str:
    """Return dtype and shape, and what they were before if that differs."""
    shape = shape_text(one.dtype, one.shape)
    if one.old_shape is None:
        return shape if one.old_dtype is None else f"{one.old_dtype} -> {shape}"
    return f"{shape_text(one.old_dtype or one.dtype, one.old_shape)} -> {shape}"


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
        letter, colour = LETTERS[node.status], _COLOURS[node.status]
        versions = [one[:8] for one in (node.old_version, node.new_version) if one is not None]
        text = f"{printable(node.name)}  {out.style(printable(' -> '.join(versions)), 'dim')}"
        yield f"  {out.style(letter, colour)} {text}{_reason(node)}"
        for what, changes in (
            ("", node.params),
            ("library ", node.libraries),
            ("input ", node.inputs),
        ):
            for name, old, new in changes:
                before, after = ("(none)" if value is None else value for value in (old, new))
                text = f"{name}: {before} -> {after}"
                if name in (old, new):  # an input
                    text = f"{name} {'added' if old is None else 'removed'}"
                yield f"      {what}{printable(text)}"
        for name, lines in node.code:
            yield f"      {printable(name)}"
            for line in change_lines(out, lines, most, see_all):
                yield f"      {line}"


def _reason(node: NodeDiff) -> str:
    """Return why a node differs, where nothing of its own is shown."""
    if node.status != "modified" or node.params or node.libraries or node.inputs or node.code:
        return ""
    return "  (a value of its own differs)" if node.is_own else "  (a node before it changed)"
