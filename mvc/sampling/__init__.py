"""Which samples a run sees, in which order, and what a commit says of those that it saw."""
