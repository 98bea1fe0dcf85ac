"""The feed of a training run: written by the hooks, followed by ``watch``."""
