"""The data of a run: what of it each commit records."""
