"""Images of states in tests: made as a snapshot makes them, in plain memory."""

from __future__ import annotations

from mvc.training import layout_state


def make_image(state, previous=None):
    """Return name → bytes of a state's image; the bytes can be written to."""
    layout = layout_state(state, previous)
    memory = memoryview(bytearray(layout.size_bytes))
    for part in layout.parts:
        part.copy_into(memory)
    return {file.path: memory[file.offset : file.offset + file.size_bytes] for file in layout.files}
