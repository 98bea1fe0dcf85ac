"""Storing less and keeping what matters: gc, repack, prune."""
