"""From a model and images to captions and attention maps on the originals."""

import lazy_loader

from visattn.results.display import show

show |= {
    "Caption": "visattn.viz.html.notebook:notebook_caption",
    "ScanPath": "visattn.viz.scanpaths.panel:notebook_scanpath",
}

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
