"""From a model and pictures to words and placed maps: where the rooms below come together."""

from visattn.seeing.captions import Caption, Fit, PictureLike, caption
from visattn.seeing.drawings import overlay, panel
from visattn.seeing.files import load, save
from visattn.seeing.pages import animation, judged_phrases, page
from visattn.seeing.scan_drawings import (
    Coverage,
    glimpse_animation,
    glimpse_panel,
    glimpse_wall,
)
from visattn.seeing.scans import Policy, ScanPath, glimpses

__all__ = [
    "Caption",
    "Coverage",
    "Fit",
    "PictureLike",
    "Policy",
    "ScanPath",
    "animation",
    "caption",
    "glimpse_animation",
    "glimpse_panel",
    "glimpse_wall",
    "glimpses",
    "judged_phrases",
    "load",
    "overlay",
    "page",
    "panel",
    "save",
]
