"""Chunks in packs on a storage."""
