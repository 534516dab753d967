"""Figures and animations of captions: the photo with the map of each word."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image, ImageDraw

from visattn.geometry.affine import Geometry
from visattn.images.reader import ImageLike, read_image
from visattn.results.captions import Caption
from visattn.results.map_boxes import MapBoxes
from visattn.results.scale import format_end
from visattn.viz.canvas import ACCENT, BACKGROUND, MUTED, TEXT, TRACK, Canvas
from visattn.viz.caption_images import DrawnImage, check_one_image, drawn_images, image_shares
from visattn.viz.gif import encode_gif
from visattn.viz.heatmap import DrawOptions, resize_image, resize_map
from visattn.viz.photo_part import PhotoPart
from visattn.viz.rendering import Figure
from visattn.viz.text import (
    ELLIPSIS,
    format_probability,
    join_notes,
    load_font,
    truncate_text,
)
from visattn.viz.text_attention import head_overview_figure, text_attention_figure
from visattn.viz.tiles import (
    MARGIN,
    SMALL,
    WORDS,
    WORDS_AND_GATES,
    Gate,
    Legend,
    TextBelow,
    Tile,
    TileGrid,
    compute_tile_grid,
    draw_gate,
    scaled_size,
    size_text,
    tile_figure,
    write_name,
)

_LABELS, _GAP, _LINE = 0.15, 8, 24  # of the width; pixels
_BARS, _WORD_HEIGHT = 30, 90
_NO_TEXT = TextBelow(0, 15, 0, 0)
_MAX_COLUMNS, _MAX_HEIGHT = 12, 260


WordScale = Literal["shared", "own", "greatest"]
WORD_SCALES: tuple[WordScale, ...] = ("shared", "own", "greatest")


class _Colors:
    """How the maps of words are drawn: upper end of the scale of each, and the legend.

    Args:
        caption: The caption.
        drawing: Options, with `vmax` for the shared scale.
        scales: See `caption_figure`.
    """

    def __init__(self, caption: Caption, drawing: DrawOptions, scales: WordScale) -> None:
        if scales not in WORD_SCALES:
            raise ValueError(f"scales must be one of {', '.join(WORD_SCALES)}, got {scales!r}")
        per_image = [each.values.flatten(1).nan_to_num(0.0).amax(1) for each in caption.image_maps]
        peaks = torch.stack(per_image).amax(0).tolist()
        self.peak = max(peaks)
        shared = self.peak if scales == "greatest" else drawing.vmax or 1.0
        ends = peaks if scales == "own" else [shared] * len(peaks)
        self.ends = [end if end > drawing.vmin else drawing.vmin + 1.0 for end in ends]
        self.caption, self.drawing, self.scales = caption, drawing, scales

    def draw(self, image: np.ndarray, maps: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return an image with the map of each word on it."""
        return self.drawing.draw_each(image, maps, self.ends)

    def aside(self, word: int) -> str:
        """Return the probability of a word, and the end of its scale if each has its own."""
        log_probs = self.caption.log_probs
        chance = format_probability(log_probs[word]) if log_probs else ""
        end = f"to {format_end(self.ends[word])}" if self.scales == "own" else ""
        return join_notes(end, chance)

    def legend(self, *, has_nan: bool) -> Legend:
        """Return the color bar, with swatches for what else the figure shows."""
        caption, vmin, end = self.caption, self.drawing.vmin, self.ends[0]
        own = self.scales == "own"
        return Legend(
            replace(self.drawing, vmax=end).draw,
            (vmin, end),
            caption.quantity,
            clipped=self.peak > end * (1 + 1e-5) and not own,
            has_nan=has_nan,
            gate_symbol=caption.gate_symbol if caption.has_gates else None,
            end_labels=(format_end(vmin), "peak of each word") if own else None,
        )


def caption_legend(caption: Caption, *, has_nan: bool) -> Legend:
    """Return the color bar of the words of a caption on one scale.

    Args:
        caption: A caption with words.
        has_nan: Whether the model did not see all of the photo.
    """
    drawing = DrawOptions(vmax=caption.display_range()[1])
    return replace(_Colors(caption, drawing, "shared").legend(has_nan=has_nan), gate_symbol=None)


def image_panel(
    images: Sequence[DrawnImage],
    caption: Caption,
    drawing: DrawOptions,
    detail: float = 1.0,
    *,
    scales: WordScale = "shared",
    note: str = "",
) -> Canvas:
    """Return a figure with a row per word: its maps on all images, on one color scale.

    Below each word bars show its share in every image, the highest bar that of the whole figure. Of
    more than 12 images, 12 are drawn, evenly spaced; the bars are those of all.

    Args:
        images: The photos of a prompt, or frames of a video, with the maps on each.
        caption: The caption, with at least one word.
        drawing: How maps are drawn, with `vmax`; at least 300 pixels wide.
        detail: Pixels of images per pixel of the drawing.
        scales: See `caption_figure`.
        note: See `caption_figure`.

    Raises:
        ValueError: If the figure is too narrow.

    Example:
        >>> from visattn.geometry import Geometry
        >>> from visattn.results import AttentionMap
        >>> maps = AttentionMap(torch.ones(1, 1, 2), "attend", "words", Geometry.identity((30, 40)))
        >>> caption = Caption(("7",), (-0.1,), (1.0,), maps, -0.1, True, further_maps=(maps,))
        >>> photo = DrawnImage(np.zeros((30, 40, 3), np.uint8), "a.jpg", maps)
        >>> image_panel([photo, photo], caption, DrawOptions(vmax=1.0)).width
        1200
    """
    shares = image_shares(caption)
    shares = shares / max(float(shares.max()), 1e-12)
    count = min(len(images), _MAX_COLUMNS)
    chosen = [images[number * len(images) // count] for number in range(count)]
    width = max(1, drawing.page_width - 2 * MARGIN)
    row = _Row([each.pixels.shape[:2] for each in chosen], width, detail)
    sizes = row.pixels
    small = [resize_image(each.pixels, size) for each, size in zip(chosen, sizes, strict=True)]
    maps = [
        each.maps.resize_to_image(size, smooth=bool(drawing.smooth)).numpy()
        for each, size in zip(chosen, sizes, strict=True)
    ]
    tiles = [Tile(row.with_labels(small, [each.label for each in chosen]))]
    colors = _Colors(caption, drawing, scales)
    per_image = [colors.draw(photo, list(each)) for photo, each in zip(small, maps, strict=True)]
    for word in range(len(caption.words)):
        drawn = [each[word] for each in per_image]
        tiles.append(Tile(row.with_word(drawn, caption, word, colors.aside(word), shares[word])))
    legend = colors.legend(has_nan=any(bool(np.isnan(each).any()) for each in maps))
    return tile_figure(
        tiles,
        TileGrid(1, len(tiles), row.width, (row.height, row.width), detail),
        title=caption.text,
        subtitle=join_notes(
            note, "" if count == len(images) else f"{count} of {len(images)} frames are drawn"
        ),
        legends=[legend],
        text=_NO_TEXT,
        width=drawing.page_width,
    )


class _Row:
    """A row of images of one height, with room for a word at the left."""

    def __init__(self, sizes: Sequence[tuple[int, int]], width: int, detail: float) -> None:
        self.width = width
        self.detail = detail
        self.left = max(130, round(_LABELS * width))
        aspects = [size[1] / size[0] for size in sizes]
        space = width - self.left - _GAP * (len(sizes) - 1)
        height = max(1, min(_MAX_HEIGHT, int(space / sum(aspects))))
        self.sizes = [(height, max(1, round(height * aspect))) for aspect in aspects]
        self.height = max(height + _LINE, _WORD_HEIGHT)

    @property
    def pixels(self) -> list[tuple[int, int]]:
        """Height and width at which the images are drawn."""
        return [scaled_size(size, self.detail) for size in self.sizes]

    def _draw(self, images: Sequence[UInt8[np.ndarray, "y _x 3"]]) -> tuple[Canvas, list[int]]:
        """Return the images side by side, and the left of each."""
        row = Canvas(self.width, self.height, detail=self.detail)
        lefts = [self.left]
        for image, size in zip(images, self.sizes, strict=True):
            row.paste(image, (lefts[-1], 0), size)
            lefts.append(lefts[-1] + size[1] + _GAP)
        return row, lefts

    def with_labels(
        self, images: Sequence[UInt8[np.ndarray, "y _x 3"]], labels: Sequence[str]
    ) -> Canvas:
        """Return photos with their names below."""
        row, lefts = self._draw(images)
        font = load_font(SMALL)
        for size, left, label in zip(self.sizes, lefts, labels, strict=False):
            row.text((left, size[0] + 6), truncate_text(label, font, size[1]), MUTED, font)
        return row

    def with_word(
        self,
        images: Sequence[UInt8[np.ndarray, "y _x 3"]],
        caption: Caption,
        word: int,
        aside: str,
        shares: Float[np.ndarray, " p"],
    ) -> Canvas:
        """Return the maps of a word, with its name, aside, gate and shares at the left."""
        row, _ = self._draw(images)
        width = self.left - 16
        top = 36
        write_name(row, Tile("", caption.words[word], aside=aside), (0, 0), width, WORDS)
        if caption.has_gates:
            draw_gate(row, (0, 0), width, Gate(caption.gates[word], caption.gate_symbol))
            top = 56
        bottom = top + _BARS
        row.rectangle((0, bottom, width, bottom), TRACK)
        step = width / len(shares)
        wide = min(max(1.0, 0.7 * step), 24.0)
        for number, share in enumerate(shares):
            left = (number + 0.5) * step - wide / 2
            high = _BARS * min(max(float(share), 0.0), 1.0)
            row.rectangle((left, min(bottom - high, bottom - 1), left + wide, bottom), ACCENT)
        return row


def caption_figure(
    image: ImageLike | Sequence[ImageLike],
    caption: Caption,
    *,
    boxes: MapBoxes | None = None,
    scales: WordScale = "shared",
    note: str = "",
    **options: Any,
) -> Figure:
    """Return a figure of the image and one overlay per word.

    The subtitle says which share of the photo the model saw, if it is not all of it. Of several
    photos, or of a video, each word has a row with its maps on all of them.

    Args:
        image: The original image; a list of the photos of a prompt; or a video file or its frames.
        caption: Its caption.
        boxes: Boxes of its maps, from `caption.maps.boxes()`, which are outlined.
        scales: Upper end of the colors: `shared`, `vmax` for all words, by default the median of
            their peaks; `own`, the peak of each word; `greatest`, the greatest of all peaks.
        note: Second line of the title, such as the name of the captioner.
        options: Fields of `DrawOptions`, such as `width`, `scale`, `colormap` and `vmax`.

    Raises:
        ValueError: If the caption belongs to images of other sizes or number, or boxes are given
            for several.

    Example:
        >>> from visattn.models import SPECIAL_TOKENS, ShowAttendTell, SmallEncoder
        >>> from visattn.pipelines.captioning import caption
        >>> words = (*SPECIAL_TOKENS, "red")
        >>> model = ShowAttendTell(words, SmallEncoder((16, 16), channels=4), hidden_size=8)
        >>> photo = np.zeros((30, 90, 3), np.uint8)
        >>> [said] = caption(model, photo, min_length=2, max_length=2)
        >>> caption_figure(photo, said, width=600).image.width
        600
    """
    caption = caption.drawable()
    images = drawn_images(image, caption)
    drawing = DrawOptions(**options).otherwise(
        vmax=caption.display_range()[1], smooth=caption.smooth
    )
    if not caption.is_of_single_photo:
        if boxes is not None:
            raise ValueError("boxes are those of one photo; the caption has several images")
        draw = partial(image_panel, images, caption, drawing, scales=scales, note=note)
        return Figure(draw, drawing.zoom)
    draw = partial(_word_tiles, images[0].pixels, caption, boxes, drawing, scales, note)
    return Figure(draw, drawing.zoom)


def _word_tiles(
    pixels: UInt8[np.ndarray, "y x 3"],
    caption: Caption,
    boxes: MapBoxes | None,
    drawing: DrawOptions,
    scales: WordScale,
    note: str,
    detail: float,
) -> Canvas:
    """Return the drawing of a photo and its overlay for each word."""
    count = len(caption.words)
    geometry = caption.maps.geometry or Geometry.identity((pixels.shape[0], pixels.shape[1]))
    part = PhotoPart.of(geometry, crop=drawing.crop)
    grid = compute_tile_grid(part.size, count + 1, drawing.page_width, detail)
    whole, window = part.whole_size(grid.pixels), part.window(grid.pixels)
    small = resize_image(pixels, whole)[window]
    values = caption.maps.resize_to_image(whole, smooth=bool(drawing.smooth)).numpy()
    values = values[(..., *window)]
    colors = _Colors(caption, drawing, scales)
    drawn = colors.draw(small, list(values))
    if boxes is not None:
        drawn = [part.outline(*pair) for pair in zip(drawn, boxes.per_map(), strict=True)]
    gates: list[Gate | None] = [None] * count
    if caption.has_gates:
        gates = [Gate(each, caption.gate_symbol) for each in caption.gates]
    words = zip(drawn, caption.words, map(colors.aside, range(count)), gates, strict=True)
    return tile_figure(
        [
            Tile(small, note=size_text(pixels)),
            *(Tile(tile, word, aside=aside, gate=gate) for tile, word, aside, gate in words),
        ],
        grid,
        title=caption.text,
        subtitle=join_notes(note, geometry.seen_text),
        legends=[colors.legend(has_nan=bool(np.isnan(values).any()))],
        text=WORDS_AND_GATES if caption.has_gates else WORDS,
        width=drawing.page_width,
    )


def statistics_figures(caption: Caption, **options: Any) -> dict[str, Figure]:
    """Return the figures of the statistics that a caption has, by the ending of their files.

    Args:
        caption: A caption with words.
        options: `width` and `scale`, see `DrawOptions`.
    """
    figures: dict[str, Figure] = {}
    if caption.text_attention is not None and caption.words:
        figures["text"] = text_attention_figure(caption, **options)
    if caption.head_overview is not None:
        figures["heads"] = head_overview_figure(caption, **options)
    return figures


FIRST_DURATION, WORD_DURATION, LAST_DURATION = 1200, 750, 2600  # of frames, in milliseconds
_MARGIN = 12
_FONT_SIZE = 17
_LINE_HEIGHT = 28
_MAX_LINES = 4
_WIDTH, _MIN_WIDTH = 480, 160  # in pixels
_MAX_ASPECT = 2.0  # height of the image / width of the frame


def caption_gif(
    image: ImageLike, caption: Caption, *, max_bytes: int = 1_500_000, **options: Any
) -> bytes:
    """Return an animated GIF: the image, a frame for each word, and the mean map over words.

    All frames share one value range and one palette. The caption is below the image, with the
    current word highlighted. If the file would exceed `max_bytes`, the frames are made smaller.

    Args:
        image: The original image.
        caption: Its caption.
        max_bytes: Maximum size of the file.
        options: Fields of `DrawOptions`, such as `width`, 480 by default and at least 160.

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
    drawing = DrawOptions(**{"width": _WIDTH, **options}).otherwise(
        vmax=caption.display_range()[1], smooth=caption.smooth
    )
    words, width = caption.words, drawing.width or _WIDTH
    if width < _MIN_WIDTH:
        raise ValueError(f"an animation must be at least {_MIN_WIDTH} pixels wide, got {width}")
    shown = animation_frame_size(pixels.shape[:2], width)
    maps = caption.maps.resize_to_image(shown, smooth=bool(drawing.smooth)).numpy()
    durations = [FIRST_DURATION, *[WORD_DURATION] * len(words), LAST_DURATION]
    while True:
        size = animation_frame_size(pixels.shape[:2], width)
        small = resize_image(pixels, size)
        resized = [resize_map(values, size) for values in (*maps, np.mean(maps, axis=0))]
        images = [small, *drawing.draw_each(small, resized)]
        gif = encode_gif(_frames_with_caption(images, words, width), durations, size[0])
        if len(gif) <= max_bytes or width == _MIN_WIDTH:
            return gif
        # Files grow about with their pixels; a little less, so that one more round is enough.
        width = max(_MIN_WIDTH, int(width * 0.95 * (max_bytes / len(gif)) ** 0.5))


def animation_frame_size(image_size: tuple[int, int], width: int) -> tuple[int, int]:
    """Return the height and width of the image in an animation.

    Args:
        image_size: Height and width of the image.
        width: Width of the animation in pixels. A very tall image is narrower.

    Example:
        >>> animation_frame_size((480, 640), 480)
        (360, 480)
    """
    image_height, image_width = image_size
    scale = min(width / image_width, _MAX_ASPECT * width / image_height)
    return max(1, round(image_height * scale)), max(1, round(image_width * scale))


def _frames_with_caption(
    images: Sequence[UInt8[np.ndarray, "y x 3"]], words: Sequence[str], width: int
) -> list[Image.Image]:
    """Return frames: each image above the caption, with its word highlighted."""
    positions, text_height = _word_positions(words, width)
    frames = []
    for index, image in enumerate(images):
        frame = Image.new("RGB", (width, image.shape[0] + text_height), BACKGROUND)
        frame.paste(Image.fromarray(image), ((width - image.shape[1]) // 2, 0))
        pen = ImageDraw.Draw(frame)
        for number, (word, x, y, end) in enumerate(positions, start=1):
            top = image.shape[0] + y
            current = number == index
            if current:
                pen.rounded_rectangle((x - 5, top - 4, end + 5, top + _FONT_SIZE + 6), 5, TEXT)
            first_or_last = index in (0, len(images) - 1)
            color = BACKGROUND if current else TEXT if first_or_last else MUTED
            pen.text((x, top), word, color, load_font(_FONT_SIZE))
        frames.append(frame)
    return frames


def _word_positions(
    words: Sequence[str], width: int
) -> tuple[list[tuple[str, float, int, float]], int]:
    """Return each word with its left, top and right, and the height of the text.

    A caption with more than the maximum number of lines ends in an ellipsis.
    """
    font = load_font(_FONT_SIZE)
    space = font.getlength(" ") + 6
    line_width = width - 2 * _MARGIN
    lines: list[list[tuple[str, float]]] = [[]]
    for word in words:
        text = truncate_text(word, font, line_width)
        text_width = font.getlength(text)
        if lines[-1] and sum(w + space for _, w in lines[-1]) + text_width > line_width:
            lines.append([])
        lines[-1].append((text, text_width))
    if len(lines) > _MAX_LINES:
        lines[_MAX_LINES - 1][-1] = (ELLIPSIS, font.getlength(ELLIPSIS))
    positions = []
    for number, line in enumerate(lines[:_MAX_LINES]):
        x = (width - sum(w for _, w in line) - space * (len(line) - 1)) / 2
        for text, text_width in line:
            positions.append((text, x, _MARGIN + number * _LINE_HEIGHT, x + text_width))
            x += text_width + space
    return positions, 2 * _MARGIN + min(len(lines), _MAX_LINES) * _LINE_HEIGHT - 6
