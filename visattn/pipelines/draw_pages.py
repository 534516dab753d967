"""HTML pages and animated GIFs of captions with one attention map per word."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from visattn.geometry.placement import Box
from visattn.images.reader import ImageLike, read_image
from visattn.pipelines.draw_captions import DrawnImage, check_one_image, drawn_images
from visattn.pipelines.draw_word_statistics import statistics_figures
from visattn.results.captions import Caption
from visattn.results.map_boxes import MapBoxes
from visattn.viz.captions.animation import animation_frame_size, caption_animation
from visattn.viz.html.caption_page import PageCaption, PageFigure, caption_page
from visattn.viz.html.photo_page import PageImage

_STRONGEST = 6  # words of the text that the page names for each word


def caption_html(
    image: ImageLike | Sequence[ImageLike],
    caption: Caption,
    *,
    boxes: MapBoxes | None = None,
    name: str | None = None,
    **options: Any,
) -> str:
    """Return a self-contained HTML page with the attention map of each word of a caption.

    Several photos of a prompt, or the frames of a video, stand side by side, each with its share of
    the map that is shown.

    Args:
        image: The original image; a list of the photos of a prompt; or a video file or its frames.
        caption: Its caption; the `alternatives` can be selected on the page. The boxes and scores
            of its `phrases` are shown.
        boxes: Boxes of the maps of the first caption, from `caption.maps.boxes()`, which are
            outlined.
        name: Name on the page; by default the file name of the image.
        options: Arguments of `visattn.viz.html.caption_page.caption_page`.

    Raises:
        ValueError: If a caption belongs to images of other sizes or number, or boxes are given for
            several.

    Example:
        >>> from visattn.geometry import Geometry
        >>> from visattn.results import AttentionMap
        >>> maps = AttentionMap(torch.full((1, 2, 2), 0.25), "look", "words")
        >>> maps = maps.with_geometry(Geometry.identity((30, 40)))
        >>> result = Caption(("dog",), (-0.1,), (0.9,), maps, -0.1, True)
        >>> caption_html(np.zeros((30, 40, 3), np.uint8), result)[:15]
        '<!doctype html>'
    """
    geometry = caption.maps.geometry
    if geometry is None:
        raise ValueError(
            "the maps of the caption have no geometry; `visattn.caption` returns placed maps"
        )
    images = drawn_images(image, caption)
    several = not caption.is_of_single_photo
    if several and caption.phrases:
        raise ValueError("phrases are those of one photo; the caption has several images")
    if several and boxes is not None:
        raise ValueError("boxes are those of one photo; the caption has several images")
    options.setdefault("vmax", caption.display_range()[1])
    return caption_page(
        images[0].pixels,
        [
            _page_caption(caption.drawable(), boxes),
            *(_page_caption(each.drawable(), None) for each in caption.alternatives),
        ],
        geometry.to_dict(),
        name=_page_name(caption, images) if name is None else name,
        images=[_page_image(each) for each in images] if several else (),
        smooth=caption.smooth,
        gate_symbol=caption.gate_symbol,
        notes=caption.notes,
        quantity=caption.quantity,
        even=_even(caption),
        figures=_page_figures(caption),
        **options,
    )


def _even(caption: Caption) -> tuple[float, str] | None:
    """Return the value that the scale marks: that of a map without preference."""
    if (even := caption.maps.metadata.get("even")) is not None:
        return float(even[0]), str(even[1])
    if caption.quantity != "attention":
        return None
    cells = sum(each.values.shape[1:].numel() for each in caption.image_maps)
    return 1 / cells, "uniform attention"


def _page_figures(caption: Caption) -> list[PageFigure]:
    titles = {"text": "Attention to the prompt and to earlier words",
              "heads": "Layers and heads that read the photo"}  # fmt: skip
    return [PageFigure(titles[kind], pixels)
            for kind, pixels in statistics_figures(caption).items()]  # fmt: skip


def caption_gif(image: ImageLike, caption: Caption, *, width: int = 480, **options: Any) -> bytes:
    """Return an animated GIF with the attention map of one word per frame.

    Args:
        image: The original image.
        caption: Its caption.
        width: Width in pixels.
        options: Arguments of `visattn.viz.captions.animation.caption_animation`.

    Raises:
        ValueError: If the width is too small.

    Example:
        >>> from visattn.geometry import Geometry
        >>> from visattn.results import AttentionMap
        >>> maps = AttentionMap(torch.full((1, 2, 2), 0.25), "look", "words")
        >>> maps = maps.with_geometry(Geometry.identity((30, 40)))
        >>> result = Caption(("dog",), (-0.1,), (0.9,), maps, -0.1, True)
        >>> caption_gif(np.zeros((30, 40, 3), np.uint8), result)[:6]
        b'GIF89a'
    """
    check_one_image(caption, "a GIF")
    pixels, caption = read_image(image).pixels, caption.drawable()
    options.setdefault("vmax", caption.maps.display_range()[1])
    shown = animation_frame_size(pixels.shape[:2], width)
    maps = caption.maps.resize_to_image(shown, smooth=caption.smooth).numpy()
    return caption_animation(pixels, caption.words, maps, width=width, **options)


def _page_name(caption: Caption, images: Sequence[DrawnImage]) -> str:
    """Return the name of the photo or of the video, or the names of the photos."""
    if caption.is_video:
        return Path(caption.image).name
    return ", ".join(image.label for image in images)


def _page_image(image: DrawnImage) -> PageImage:
    geometry, (rows, columns) = image.maps.geometry, image.maps.values.shape[1:]
    return PageImage(image.pixels, image.label, (rows, columns),
                       {} if geometry is None else geometry.to_dict())  # fmt: skip


def _page_caption(caption: Caption, boxes: MapBoxes | None) -> PageCaption:
    maps = caption.maps.values
    if not caption.is_of_single_photo:
        maps = torch.cat([each.values.flatten(1) for each in caption.image_maps], 1)[:, None]
    return PageCaption(
        words=caption.words,
        maps=maps.numpy(),
        log_probs=caption.log_probs,
        gates=caption.gates if caption.has_gates else (),
        score=caption.score,
        finished=caption.finished,
        phrases=caption.phrases,
        boxes=relative_boxes(boxes),
        texts=() if caption.text_attention is None else tuple(
            tuple(caption.text_attention.strongest(word, _STRONGEST))
            for word in range(len(caption.words))
        ),
    )  # fmt: skip


def relative_boxes(boxes: MapBoxes | None) -> tuple[tuple[Box, ...], ...]:
    """Return the boxes of each map as fractions of the image size; () without boxes.

    Args:
        boxes: Boxes of maps.
    """
    if boxes is None:
        return ()
    height, width = boxes.image_size
    return tuple(
        tuple((x0 / width, y0 / height, x1 / width, y1 / height) for x0, y0, x1, y1 in each)
        for each in boxes.per_map()
    )
