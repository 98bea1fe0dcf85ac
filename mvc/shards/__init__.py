"""Shard maps: which files a data set is made of, what is in them, and whether they still are so."""

from mvc.lazy import lazy_modules

__getattr__ = lazy_modules(__name__)
