"""From a model and pictures to words and placed maps: where the rooms below come together."""

from visattn.seeing.captions import Caption, Fit, PictureLike, caption
from visattn.seeing.drawings import overlay, panel
from visattn.seeing.explanations import explain, methods_for
from visattn.seeing.explorers import explorer, heads_sheet
from visattn.seeing.files import load, save
from visattn.seeing.layer_readings import seen_layers
from visattn.seeing.map_drawings import comparison, drawn_map
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
    "comparison",
    "drawn_map",
    "explain",
    "explorer",
    "glimpse_animation",
    "glimpse_panel",
    "glimpse_wall",
    "glimpses",
    "heads_sheet",
    "judged_phrases",
    "load",
    "methods_for",
    "overlay",
    "page",
    "panel",
    "save",
    "seen_layers",
]
