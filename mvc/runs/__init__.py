"""The feed of a training run: written by the hooks, followed by ``watch``."""

from mvc.lazy import lazy_modules

__getattr__ = lazy_modules(__name__)
