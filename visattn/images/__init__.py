"""Photos and videos: finding, reading as RGB, resizing with geometry, and writing."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
