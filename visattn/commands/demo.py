"""`visattn demo`: caption the sample photos, show where a classifier looks, and open the page."""

import sys
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from tyro.conf import arg

from visattn.commands.arguments import Flag, Photos
from visattn.commands.caption import caption
from visattn.commands.loop import INDEX, MADE, LoopOptions, finished_records
from visattn.commands.overlay import overlay
from visattn.commands.streams import print_where
from visattn.io.atomic import atomic_write
from visattn.results.kinds import Card


def demo(
    photos: Annotated[Photos, arg(metavar="[PHOTO ...]")] = (),
    *,
    out: Path = Path("visattn-demo"),
    no_browser: Flag = False,
) -> int:
    """Caption photos and show where a classifier looks on them; open the page.

    The models, photo-captioner and imagenet-classifier, come with visattn: nothing is downloaded or
    trained. The folder gets captions/ and overlays/, as visattn caption and visattn overlay write
    them, and index.html, a page with both.

    Args:
        photos: your own photos: files, folders, quoted patterns, URLs (default: six photos that
            come with visattn)
        out: output folder
        no_browser: do not open the page in a browser (without this option it opens if run in a
            terminal)
    """
    if not photos:
        from visattn.images.sources import sample_photos

        photos = tuple(map(str, sample_photos()))
    codes = [caption(photos, loop=LoopOptions(out / "captions"))]
    codes.append(overlay(photos, loop=LoopOptions(out / "overlays")))
    page = (out / INDEX).resolve()
    atomic_write(page, _index(out, [Path(photo).stem for photo in photos]))
    print_where(page)
    if not no_browser and sys.stdout.isatty():
        webbrowser.open(page.as_uri())
    return max(codes)


def _index(out: Path, names: Sequence[str]) -> str:
    """Return a page with the caption and the overlay of each photo, in the order of the photos."""
    from visattn.viz.html.index_page import index_page

    cards: list[Card] = []
    for folder, command in (("captions", "caption"), ("overlays", "overlay")):
        for record in finished_records(out / folder, command):
            made = record[MADE]
            page = f"{folder}/{made['files'][0]}"
            cards.append(Card(made["name"], page, **made["card"]))
    about = ["photo-captioner and imagenet-classifier are small models: expect mistakes"]
    return index_page(cards, title="visattn demo", about=about, first=names)
