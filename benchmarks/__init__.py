"""What mvc costs, side by side with the tools people use today: ``python -m benchmarks``."""
