"""The retina: a sharp small window and wider, coarser ones around it, anywhere on an image.

A place is (x, y) in [-1, 1]: (-1, -1) is the corner where the image's top and left edges meet,
(0, 0) its middle; x goes with the width, y with the height. A glimpse of g x g cells has a window
for each scale: the first is g pixels wide, each next one twice as wide, all of them averaged down
to g x g cells. In pixels from the edge, the window of scale i begins at the whole number

    floor((place + 1) / 2 * side - g * 2^i / 2 + 1/2)

What lies outside the image is a background.

Source:
    Mnih et al. 2014, arXiv:1406.6247, section 3.1. The paper does not say how a window is placed
    between pixels nor how it is reduced: here it snaps to the nearest pixel and averages boxes.
"""

from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

Size = tuple[int, int]


class GlimpsePyramid(NamedTuple):
    """Images ready to be looked at.

    Args:
        levels: For scale i, the means of boxes of `2^i` pixels: the first begins as far before the
            image as the widest box is wide, the last where the image ends or later.
        middle: x and y of the middle of the images, in pixels.
        last: The last column and the last row that all levels have.
        margin: How many pixels before the images the levels begin.
    """

    levels: tuple[Float[Tensor, "b c _ _"], ...]
    middle: Float[Tensor, "2"]
    last: Int[Tensor, "2 1"]
    margin: int


def glimpse_boxes(
    places: Float[Tensor, "*n 2"], size: Size, *, glimpse: int, scales: int
) -> Float[Tensor, "*n s 4"]:
    """Return where the windows of glimpses lie: left, top, right and bottom, in pixels.

    Args:
        places: x and y of each glimpse, in [-1, 1].
        size: Height and width of the image.
        glimpse: Cells along a side, g.
        scales: How many windows, each twice as wide as the one before.

    Example:
        >>> glimpse_boxes(torch.zeros(2), (28, 60), glimpse=8, scales=2)
        tensor([[26., 10., 34., 18.],
                [22.,  6., 38., 22.]])
    """
    wide = [glimpse * 2**scale for scale in range(scales)]
    middles = _middles(places, places.new_tensor([size[1] / 2, size[0] / 2]))
    starts = [_corners(middles, side) for side in wide]
    ends = [start + side for start, side in zip(starts, wide, strict=True)]
    return torch.stack([torch.cat(box, -1) for box in zip(starts, ends, strict=True)], -2)


def glimpse_pyramid(
    images: Float[Tensor, "b c y x"],
    *,
    scales: int,
    background: float | Float[Tensor, " c"] = 0.0,
) -> GlimpsePyramid:
    """Return images ready to be looked at: for each scale, the mean of the box at every pixel.

    Made once for images, it serves all their glimpses. The mean over a box is the mean of the
    four boxes of half its side, so that a scale costs four additions a pixel. The outermost boxes
    hold nothing but background, and stand for all that lie farther out.

    Args:
        images: In any units.
        scales: How many.
        background: What lies around the images, in their units, one number or one per channel.

    Raises:
        ValueError: If there are no scales, or no pixels.

    Example:
        >>> pixels, boxes = glimpse_pyramid(torch.ones(1, 1, 3, 5), scales=2).levels
        >>> pixels.shape, boxes.shape
        (torch.Size([1, 1, 7, 9]), torch.Size([1, 1, 6, 8]))
        >>> pixels.sum(), boxes[0, 0, 0].sum(), boxes.amax()
        (tensor(15.), tensor(0.), tensor(1.))
    """
    if scales < 1 or 0 in images.shape[1:]:
        raise ValueError(
            "a pyramid needs at least 1 scale, and images with pixels; got "
            f"scales={scales} and images {list(images.shape)}"
        )
    margin = 2 ** (scales - 1)
    levels = [_framed(images, background, margin)]
    for scale in range(scales - 1):
        half, level = 2**scale, levels[-1]
        wide = level[..., :-half] + level[..., half:]
        levels.append((wide[..., :-half, :] + wide[..., half:, :]) / 4)
    width_height = torch.tensor([images.shape[3], images.shape[2]], device=images.device)
    last = (width_height + margin).unsqueeze(1)
    return GlimpsePyramid(tuple(levels), width_height / 2, last, margin)


def cropped_glimpses(
    pyramid: GlimpsePyramid,
    places: Float[Tensor, "r 2"],
    *,
    glimpse: int,
    which: Int[Tensor, " r"] | None = None,
) -> Float[Tensor, "r s c g g"]:
    """Return what is seen at places, windows snapped to whole pixels.

    Args:
        pyramid: Of the images, as `glimpse_pyramid` gives it.
        places: x and y of each glimpse, in [-1, 1]; no gradient flows into them.
        glimpse: Cells along a side.
        which: The image of each glimpse; the n-th looks at the n-th image if left out.

    Raises:
        ValueError: If a glimpse has no cells, or places and images do not fit together.

    Example:
        >>> image = torch.arange(12.0).view(1, 1, 3, 4)
        >>> pyramid = glimpse_pyramid(image, scales=1)
        >>> cropped_glimpses(pyramid, torch.zeros(1, 2), glimpse=2)[0, 0, 0]
        tensor([[ 5.,  6.],
                [ 9., 10.]])
    """
    which = _images_of(pyramid, places, which, glimpse)
    middles = _middles(places, pyramid.middle)
    seen: list[Tensor] = []
    for scale, level in enumerate(pyramid.levels):
        first = _corners(middles, glimpse * 2**scale).long()
        seen.append(_taken(level, which, *_cells(pyramid, first, glimpse, 2**scale)))
    return torch.stack(seen, 1) if len(seen) > 1 else seen[0].unsqueeze(1)


def sampled_glimpses(
    pyramid: GlimpsePyramid,
    places: Float[Tensor, "r 2"],
    *,
    glimpse: int,
    which: Int[Tensor, " r"] | None = None,
) -> Float[Tensor, "r s c g g"]:
    """Return what is seen at places, windows anywhere between pixels.

    Bilinear between the four nearest windows of `cropped_glimpses`: the same where a window begins
    at a whole pixel, and gradients flow into the places.

    Args:
        pyramid: Of the images, as `glimpse_pyramid` gives it.
        places: x and y of each glimpse, in [-1, 1].
        glimpse: Cells along a side.
        which: The image of each glimpse; the n-th looks at the n-th image if left out.

    Raises:
        ValueError: If a glimpse has no cells, or places and images do not fit together.

    Example:
        >>> image = torch.arange(12.0).view(1, 1, 3, 4)
        >>> pyramid = glimpse_pyramid(image, scales=1)
        >>> sampled_glimpses(pyramid, torch.zeros(1, 2), glimpse=2)[0, 0, 0]
        tensor([[3., 4.],
                [7., 8.]])
    """
    which = _images_of(pyramid, places, which, glimpse)
    middles = _middles(places, pyramid.middle)
    seen: list[Tensor] = []
    for scale, level in enumerate(pyramid.levels):
        start = middles - glimpse * 2**scale / 2
        whole = start.detach().floor()
        first = whole.long()
        columns, rows = _cells(pyramid, first, glimpse, 2**scale)
        right, below = _cells(pyramid, first + 1, glimpse, 2**scale)
        see = partial(_taken, level, which)
        across, down = (start - whole).view(-1, 2, 1, 1, 1).unbind(1)
        upper = torch.lerp(see(columns, rows), see(right, rows), across)
        lower = torch.lerp(see(columns, below), see(right, below), across)
        seen.append(torch.lerp(upper, lower, down))
    return torch.stack(seen, 1)


def _framed(
    images: Float[Tensor, "b c y x"], background: float | Tensor, margin: int
) -> Float[Tensor, "b c v u"]:
    """Return images with background around them."""
    if not isinstance(background, Tensor):
        return pad(images, (margin,) * 4, value=background)
    height, width = images.shape[2:]
    around = background.to(images).view(-1, 1, 1)  # padding takes one number only
    framed = around.repeat(len(images), 1, height + 2 * margin, width + 2 * margin)
    framed[..., margin:-margin, margin:-margin] = images
    return framed


def _middles(places: Float[Tensor, "*n 2"], middle: Float[Tensor, "2"]) -> Float[Tensor, "*n 2"]:
    """Return x and y of places in pixels."""
    return (places + 1) * middle


def _corners(middles: Float[Tensor, "*n 2"], wide: int) -> Float[Tensor, "*n 2"]:
    """Return the left and the top of windows, whole numbers of pixels."""
    return (middles + (0.5 - wide / 2)).floor()


def _cells(
    pyramid: GlimpsePyramid, first: Int[Tensor, "r 2"], glimpse: int, step: int
) -> tuple[Int[Tensor, "r g"], Int[Tensor, "r g"]]:
    """Return the columns and the rows of a level that the cells of windows are."""
    begin = pyramid.margin
    offsets = torch.arange(begin, begin + glimpse * step, step, device=first.device)
    cells = (first.unsqueeze(2) + offsets).clamp_(min=0).minimum(pyramid.last)
    columns, rows = cells.unbind(1)
    return columns, rows


def _taken(
    level: Float[Tensor, "b c y x"],
    which: Int[Tensor, " r"],
    columns: Int[Tensor, "r g"],
    rows: Int[Tensor, "r g"],
) -> Float[Tensor, "r c g g"]:
    """Return the cells of a level by their numbers; indexing by all four takes much longer."""
    _, channels, height, width = level.shape
    lines = torch.add((which * (channels * height * width)).unsqueeze(1), rows, alpha=width)
    numbers = columns.unsqueeze(1) + lines.unsqueeze(2)
    if channels > 1:
        planes = torch.arange(channels, device=level.device) * (height * width)
        numbers = numbers.unsqueeze(1) + planes.view(-1, 1, 1)
    seen = level.flatten().index_select(0, numbers.flatten())
    return seen.view(-1, channels, *numbers.shape[-2:])


def _images_of(
    pyramid: GlimpsePyramid, places: Tensor, which: Tensor | None, glimpse: int
) -> Int[Tensor, " r"]:
    if glimpse < 1:
        raise ValueError(f"a glimpse needs at least 1 cell along a side, got {glimpse}")
    if which is None:
        which = torch.arange(pyramid.levels[0].shape[0], device=places.device)
    if which.shape != places.shape[:1]:
        raise ValueError(
            "each place needs its image: say `which`, or one place for each image; got "
            f"{len(places)} places for {len(which)} images"
        )
    return which
