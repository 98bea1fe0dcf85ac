"""Sharded runs: what a commit of several processes costs, beside torch's own checkpoints."""
