"""Live training states ⇄ tensors and ``state.json``."""

from mvc.lazy import lazy_modules

__getattr__ = lazy_modules(__name__)
