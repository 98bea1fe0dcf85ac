"""Training libraries that own the loop: Lightning, Hugging Face Trainer, Accelerate.

Nothing else imports these modules: each needs its library.
"""
