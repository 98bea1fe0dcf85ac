"""The commits of a run: when one is due, the queue to the writer, and what became of each."""
