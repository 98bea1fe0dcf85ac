"""What feeds a run: loaders whose order is computed, and what a run records of its data."""
