"""Equations of attention: tensors in, tensors out, the weights returned beside the values."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
