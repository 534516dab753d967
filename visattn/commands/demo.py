"""`visattn demo`: render scenes, caption them, and open the page."""

import sys
import webbrowser
from pathlib import Path

from visattn.commands.caption import caption
from visattn.commands.data import Rendering, scenes
from visattn.commands.loop import INDEX, LoopOptions
from visattn.commands.model import ModelOptions
from visattn.io.safe_text import print_message

_SIDE = 256  # of a scene in pixels: large enough for the eye


def demo(
    *,
    out: Path = Path("visattn-demo"),
    count: int = 6,
    seed: int = 0,
    open_page: bool = True,
) -> int:
    """Render scenes of colored shapes, caption them with the attention of each word, open the page.

    The model, scenes-captioner, comes with visattn: nothing is downloaded or trained. The folder
    gets images/, with the true captions, and captions/, as visattn caption writes them.

    Args:
        out: output folder
        count: number of scenes
        seed: seed of the scenes
        open_page: open the page in a browser, if the output goes to a terminal
    """
    images, captions = out / "images", out / "captions"
    scenes(Rendering(images, count=count, size=_SIDE, seed=seed))
    code = caption(
        (str(images),), model=ModelOptions("scenes-captioner"), loop=LoopOptions(captions)
    )
    page = (captions / INDEX).resolve()
    if open_page and sys.stdout.isatty() and webbrowser.open(page.as_uri()):
        print_message(f"opened {page}")
    return code
