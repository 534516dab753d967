"""The retina: a sharp small window and wider, coarser ones around it, anywhere on a picture.

A place is (x, y) in [-1, 1]: (-1, -1) is the corner where the picture's top and left edges meet,
(0, 0) its middle; x goes with the width, y with the height. A glimpse of g x g cells has a window
for each scale: the first is g pixels wide, each next one twice as wide, all of them averaged down
to g x g cells. In pixels from the edge, the window of scale i begins at the whole number

    floor((place + 1) / 2 * side - g * 2^i / 2 + 1/2)

What lies outside the picture is a background.

Source:
    Mnih et al. 2014, arXiv:1406.6247, section 3.1. The paper does not say how a window is placed
    between pixels nor how it is reduced: here it snaps to the nearest pixel and averages boxes.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

Size = tuple[int, int]


def glimpse_boxes(
    places: Float[Tensor, "*n 2"], size: Size, *, glimpse: int, scales: int
) -> Float[Tensor, "*n s 4"]:
    """Return where the windows of glimpses lie: left, top, right and bottom, in pixels.

    Args:
        places: x and y of each glimpse, in [-1, 1].
        size: Height and width of the picture.
        glimpse: Cells along a side, g.
        scales: How many windows, each twice as wide as the one before.

    Example:
        >>> glimpse_boxes(torch.zeros(2), (28, 60), glimpse=8, scales=2)
        tensor([[26., 10., 34., 18.],
                [22.,  6., 38., 22.]])
    """
    wide = [glimpse * 2**scale for scale in range(scales)]
    starts = [_corner(places, size, side) for side in wide]
    ends = [start + side for start, side in zip(starts, wide, strict=True)]
    return torch.stack([torch.cat(box, -1) for box in zip(starts, ends, strict=True)], -2)


def glimpse_pyramid(
    pictures: Float[Tensor, "b c y x"],
    *,
    glimpse: int,
    scales: int,
    background: float | Float[Tensor, " c"] = 0.0,
) -> tuple[Tensor, ...]:
    """Return pictures ready to be looked at: for each scale, the mean of the box at every pixel.

    Made once for pictures, it serves all their glimpses. The mean over a box is the mean of the
    four boxes of half its side, so that a scale costs four additions a pixel.

    Args:
        pictures: In any units.
        glimpse: Cells along a side of a glimpse.
        scales: How many.
        background: What lies around the pictures, in their units, one number or one per channel.

    Returns:
        For scale i, `[b, c, y + margins, x + margins]`: boxes of `2^i` pixels.

    Raises:
        ValueError: If there are no cells, no scales, or no pixels.

    Example:
        >>> pixels, boxes = glimpse_pyramid(torch.ones(1, 1, 3, 5), glimpse=2, scales=2)
        >>> pixels[0, 0].sum(), boxes[0, 0].amax()
        (tensor(15.), tensor(1.))
    """
    if glimpse < 1 or scales < 1 or 0 in pictures.shape[1:]:
        raise ValueError(
            "a glimpse needs at least 1 cell and 1 scale, and a picture with pixels; got "
            f"glimpse={glimpse}, scales={scales} and pictures {list(pictures.shape)}"
        )
    before, after = _margins(glimpse, scales)
    margins = (before, after, before, after)
    if isinstance(background, Tensor):  # padding takes one number only
        around = background.to(pictures).view(-1, 1, 1)
        level = pad(pictures - around, margins) + around
    else:
        level = pad(pictures, margins, value=background)
    levels = [level]
    for scale in range(scales - 1):
        half = 2**scale
        wide = level[..., :-half] + level[..., half:]
        level = (wide[..., :-half, :] + wide[..., half:, :]) / 4
        levels.append(level)
    return tuple(levels)


def cropped_glimpses(
    pyramid: tuple[Tensor, ...],
    places: Float[Tensor, "r 2"],
    size: Size,
    *,
    glimpse: int,
    which: Int[Tensor, " r"] | None = None,
) -> Float[Tensor, "r s c g g"]:
    """Return what is seen at places, windows snapped to whole pixels.

    Args:
        pyramid: Of the pictures, as `glimpse_pyramid` gives it.
        places: x and y of each glimpse, in [-1, 1]; no gradient flows into them.
        size: Height and width of the pictures.
        glimpse: Cells along a side, as for the pyramid.
        which: The picture of each glimpse; the n-th looks at the n-th picture if left out.

    Raises:
        ValueError: If places and pictures do not fit together.

    Example:
        >>> picture = torch.arange(12.0).view(1, 1, 3, 4)
        >>> pyramid = glimpse_pyramid(picture, glimpse=2, scales=1)
        >>> cropped_glimpses(pyramid, torch.zeros(1, 2), (3, 4), glimpse=2)[0, 0, 0]
        tensor([[ 5.,  6.],
                [ 9., 10.]])
    """
    which = _pictures_of(pyramid, places, which)
    margin = _margins(glimpse, len(pyramid))[0]
    seen = [
        _taken(level, _corner(places, size, glimpse * 2**scale) + margin, which, glimpse, 2**scale)
        for scale, level in enumerate(pyramid)
    ]
    return torch.stack(seen, 1)


def sampled_glimpses(
    pyramid: tuple[Tensor, ...],
    places: Float[Tensor, "r 2"],
    size: Size,
    *,
    glimpse: int,
    which: Int[Tensor, " r"] | None = None,
) -> Float[Tensor, "r s c g g"]:
    """Return what is seen at places, windows anywhere between pixels.

    Bilinear between the four nearest windows of `cropped_glimpses`: the same where a window begins
    at a whole pixel, and gradients flow into the places.

    Args:
        pyramid: Of the pictures, as `glimpse_pyramid` gives it.
        places: x and y of each glimpse, in [-1, 1].
        size: Height and width of the pictures.
        glimpse: Cells along a side, as for the pyramid.
        which: The picture of each glimpse; the n-th looks at the n-th picture if left out.

    Raises:
        ValueError: If places and pictures do not fit together.

    Example:
        >>> picture = torch.arange(12.0).view(1, 1, 3, 4)
        >>> pyramid = glimpse_pyramid(picture, glimpse=2, scales=1)
        >>> sampled_glimpses(pyramid, torch.zeros(1, 2), (3, 4), glimpse=2)[0, 0, 0]
        tensor([[3., 4.],
                [7., 8.]])
    """
    which = _pictures_of(pyramid, places, which)
    before, _ = _margins(glimpse, len(pyramid))
    middle = _middles(places, size) + before
    seen: list[Tensor] = []
    for scale, level in enumerate(pyramid):
        start = middle - glimpse * 2**scale / 2
        whole = start.detach().floor()
        x, y = whole.long().clamp(min=0).unbind(-1)
        right, down = (start - whole).view(-1, 2, 1, 1, 1).unbind(1)
        windows = _windows(level, glimpse, 2**scale)
        upper = torch.lerp(windows[which, y, x], windows[which, y, x + 1], right)
        lower = torch.lerp(windows[which, y + 1, x], windows[which, y + 1, x + 1], right)
        seen.append(torch.lerp(upper, lower, down))
    return torch.stack(seen, 1)


def _corner(places: Float[Tensor, "*n 2"], size: Size, wide: int) -> Float[Tensor, "*n 2"]:
    """Return the left and the top of a window, whole numbers of pixels."""
    half = places.new_tensor([size[1] / 2, size[0] / 2])
    return ((places + 1) * half + (0.5 - wide / 2)).floor()


def _middles(places: Float[Tensor, "*n 2"], size: Size) -> Float[Tensor, "*n 2"]:
    """Return x and y of places in pixels."""
    return (places + 1) / 2 * places.new_tensor([size[1], size[0]])


def _margins(glimpse: int, scales: int) -> Size:
    """Return how far the widest window reaches out of a picture: before it, and after it.

    The pixel more lets a window between pixels take the next one's share.
    """
    wide = glimpse * 2 ** (scales - 1)
    return wide // 2 + glimpse % 2, (wide + 1) // 2 + glimpse % 2 + 1


def _windows(level: Tensor, glimpse: int, step: int) -> Float[Tensor, "b y x c g g"]:
    """Return a view of a level: at each pixel the window that begins there."""
    span = step * (glimpse - 1) + 1
    windows = level.unfold(2, span, 1).unfold(3, span, 1)[..., ::step, ::step]
    return windows.permute(0, 2, 3, 1, 4, 5)


def _taken(
    level: Float[Tensor, "b c y x"],
    starts: Float[Tensor, "r 2"],
    which: Int[Tensor, " r"],
    glimpse: int,
    step: int,
) -> Float[Tensor, "r c g g"]:
    """Return the windows of a level that begin at pixels, by the number of each of their cells.

    Indexing `_windows` gives the same, and takes several times as long for small windows.
    """
    _, channels, height, width = level.shape
    left, top = starts.long().unbind(1)
    first = (which * (channels * height) + top) * width + left
    cells = torch.arange(0, glimpse * step, step, device=level.device)
    inside = cells.unsqueeze(1) * width + cells
    if channels > 1:
        area = height * width
        inside = torch.arange(0, channels * area, area, device=level.device).view(-1, 1, 1) + inside
    numbers = first.unsqueeze(1) + inside.flatten()
    seen = level.flatten().index_select(0, numbers.flatten())
    return seen.view(-1, channels, glimpse, glimpse)


def _pictures_of(
    pyramid: tuple[Tensor, ...], places: Tensor, which: Tensor | None
) -> Int[Tensor, " r"]:
    if which is None:
        which = torch.arange(len(pyramid[0]), device=places.device)
    if len(which) != len(places):
        raise ValueError(
            "each place needs its picture: say `which`, or one place for each picture; got "
            f"{len(places)} places for {len(which)} pictures"
        )
    return which
