"""Commits, trees, refs and the index: a real Git repository."""
