"""What is kept, what shares it and what it costs: the ground of gc, repack, prune and du."""

from mvc.lazy import lazy_modules

__getattr__ = lazy_modules(__name__)
