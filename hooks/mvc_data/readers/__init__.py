"""Readers of shards by format: the records of one file, by number."""
