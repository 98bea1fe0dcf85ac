"""What a command that ended may leave, and what it may not."""

STANDING_LOCKS = frozenset({"mvc.lock", "sweep.lock", "upkeep.lock"})
"""Files that are only ever locked: they stay, and mean nothing by themselves."""


def find_locks(root):
    """Return the lock files that somebody who ended should have removed."""
    return [path for path in root.rglob("*.lock") if path.name not in STANDING_LOCKS]
