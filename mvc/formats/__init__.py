"""Pure functions between bytes and values; no I/O."""
