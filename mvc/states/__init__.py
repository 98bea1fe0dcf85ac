"""Live training states ⇄ tensors and ``state.json``."""
