"""Training from a commit once more, and comparing what comes out with the commits that followed."""
