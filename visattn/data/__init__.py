"""Data sources, samples and batches of each task, phrase boxes and the feature cache."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
