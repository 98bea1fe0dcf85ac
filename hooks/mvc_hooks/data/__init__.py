"""The data of a run: which samples it draws, in which order, from which shards."""
