"""Merges models: three ways over a common base, by a method, or by a recipe.

A *row* of the three-way table says what each side did to one tensor and what follows. What has to be
computed becomes a ``ByteSource`` that the store reads like any other file.
"""

from mvc.lazy import lazy_modules

__getattr__ = lazy_modules(__name__)
