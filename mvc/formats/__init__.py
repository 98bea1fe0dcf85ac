"""Pure functions between bytes and values; no I/O.

docs/format.md specifies the layouts. What reads stored bytes does not trust them: it raises
FormatError if they break a rule, and UnsupportedError if a newer mvc wrote them.
"""
