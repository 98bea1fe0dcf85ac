"""The users files as tensors and gaps, one module per format."""
