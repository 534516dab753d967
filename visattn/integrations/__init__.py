"""visattn inside other libraries: a callback for the Trainer of Hugging Face."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
