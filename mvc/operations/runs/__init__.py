"""The feed of a training run: what the hooks append while it runs, and what ``watch`` reads."""
