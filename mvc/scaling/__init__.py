"""Growing a run: what an AllReduce costs on more ranks, and the gates between two sizes."""

from mvc.lazy import lazy_modules

__getattr__ = lazy_modules(__name__)
