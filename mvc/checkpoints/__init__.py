"""Users' files as tensors and gaps, one module per format.

No file is trusted: what breaks a rule of its format, or passes a limit, raises FormatError.
"""
