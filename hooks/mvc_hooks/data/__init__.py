"""Data in an order that does not depend on ranks and workers."""
