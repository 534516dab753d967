"""`visattn segment`: segment photos, and draw classes and attention gates on them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from visattn.commands.arguments import Figures, Photos, ResizeModeOrNone
from visattn.commands.loop import (
    Command,
    LoopOptions,
    Made,
    encode_figure,
    run,
)
from visattn.commands.model import ModelOptions
from visattn.images.formats import encode_overlay, encode_png

if TYPE_CHECKING:  # imported when the command runs, so that --help is fast
    from visattn.images.reader import LoadedImage
    from visattn.results.values import Segmentation


def segment(
    photos: Photos,
    *,
    model: ModelOptions = ModelOptions(),  # noqa: B008 (frozen)
    resize_mode: ResizeModeOrNone = None,
    figures: Figures = "png",
    loop: LoopOptions = LoopOptions(Path("visattn-out/segment")),  # noqa: B008 (frozen)
) -> int:
    """Segment photos with a trained model, and show its attention gates.

    Prints the share of each class in percent. Writes NAME.png, a figure of the prediction and the
    attention gates; masks/NAME.png, the class number of each pixel, 255 outside of a crop;
    overlays/NAME.png, the classes over the photo; and NAME.json with shares and geometry.

    Args:
        photos: files, folders, quoted patterns, zip and tar archives, URLs
        resize_mode: fit a photo to the input size: center crop, change of aspect ratio, or padding
            (default: as in the training of the model)
        figures: format of the figures
    """
    from visattn.models.unet import UNet
    from visattn.pipelines.segmentation import segment as segment_images

    network, made = model.load(UNet, "a segmentation model", "segment")

    def infer(images: "Sequence[LoadedImage]") -> "Sequence[Segmentation]":
        return [*segment_images(network, images, resize_mode=resize_mode)]

    settings = {**made, "resize_mode": resize_mode}
    endings = (f"{{}}.{figures}", "masks/{}.png", "overlays/{}.png")
    command = Command("segment", "Segmentation", settings, infer, _draw, endings)
    return run(command, photos, loop, batch_size=1)


def _draw(image: "LoadedImage", result: "Segmentation", files: Sequence[str]) -> Made:
    """Return shares and geometry, and mask, overlay and figure."""
    from visattn.results.kinds import IGNORE_CLASS
    from visattn.results.records import to_dict
    from visattn.viz.html.index_page import thumbnail
    from visattn.viz.segmentation import class_palette, draw_labels, segmentation_figure

    palette = class_palette(background=result.has_background).tobytes()
    drawn = draw_labels(image.pixels, result.labels, background=result.has_background)
    figure = encode_figure(segmentation_figure(image, result), files[0])
    contents = (figure, encode_png(result.labels, palette), encode_overlay(drawn))
    shares = result.shares()
    record = {
        "image": image.name,
        "class_names": result.class_names,
        "shares": shares,
        "ignored": IGNORE_CLASS,
        "geometry": to_dict(result.geometry),
    }
    return Made(
        record,
        dict(zip(files, contents, strict=True)),
        rows=[(_percent(shares),)],
        table=[shares],
        caption=_percent(shares),
        thumbnail=thumbnail(drawn),
    )


def _percent(shares: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {100 * share:.1f} %" for name, share in shares.items())
