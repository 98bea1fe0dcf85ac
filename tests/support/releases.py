"""Which commits have a release record."""

from __future__ import annotations

from mvc.workspace.releases import RELEASED_REF


def released_commits(context):
    """Return them, from the names of the notes alone."""
    return set(context.history.read_notes(RELEASED_REF))
