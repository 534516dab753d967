"""From a model and pictures to words and placed maps: where the rooms below come together."""

from visattn.seeing.captions import Caption, Fit, PictureLike, caption
from visattn.seeing.drawings import overlay, panel
from visattn.seeing.files import load, save
from visattn.seeing.pages import animation, judged_phrases, page

__all__ = [
    "Caption",
    "Fit",
    "PictureLike",
    "animation",
    "caption",
    "judged_phrases",
    "load",
    "overlay",
    "page",
    "panel",
    "save",
]
