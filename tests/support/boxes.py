"""How torch cuts a matrix into the boxes of ranks."""

from mvc.numbers.boxes import Box
from mvc.states.keepers import list_holders


def cut(dim, parts):
    """Cut a dimension as torch does: equal parts, and less or nothing for the last ones."""
    step = -(-dim // parts) if dim else 0
    return [(min(n * step, dim), min((n + 1) * step, dim)) for n in range(parts)]


def grid(shape, rows, columns, copies):
    """Return the holders of a matrix on ranks (copy, row, column)."""
    boxes = [
        Box((r0, c0), (r1 - r0, c1 - c0))
        for _ in range(copies)
        for r0, r1 in cut(shape[0], rows)
        for c0, c1 in cut(shape[1], columns)
    ]
    return list_holders(range(len(boxes)), boxes)
