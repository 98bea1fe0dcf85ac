"""One module per verb: values in, values out, no printing."""

from mvc.lazy import lazy_modules

__getattr__ = lazy_modules(__name__)
