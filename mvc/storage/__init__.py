"""Where objects live: dumb keys and bytes."""
