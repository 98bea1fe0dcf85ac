"""Which commits have a release record."""

from __future__ import annotations

from mvc.history.notes import read_notes
from mvc.workspace.releases import RELEASED_REF


def released_commits(context):
    """Return them, from the names of the notes alone."""
    return set(read_notes(context.history, RELEASED_REF))
