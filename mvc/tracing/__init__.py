"""What a profiler recorded of a training run: events → spans of time → overlap → advice. Pure, but for reading files.

A step is computation and communication. Communication that runs while something is computed is hidden:
it costs nothing. What is left makes the step longer, and is what ``mvc profile`` is about.
"""
