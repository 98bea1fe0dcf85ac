"""Training libraries that own the loop: Lightning, Hugging Face Trainer, Accelerate.

Each module is imported only by who uses it, and needs its library.
"""
