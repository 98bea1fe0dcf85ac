"""Git for model parameters."""
