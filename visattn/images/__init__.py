"""Photos and videos: found, read as RGB, resized with their geometry, and written."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
