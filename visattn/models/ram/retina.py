"""Glimpse extraction: a multi-scale retina of concentric windows with decreasing resolution.

A location is (x, y) in [-1, 1]: (-1, -1) is the top left corner of the image, (0, 0) its center; x
goes along the width, y along the height. A glimpse of g x g cells has a window
for each scale: the first is g pixels wide, each next one twice as wide, all of them averaged down
to g x g cells. In pixels from the edge, the window of scale i begins at

    floor((location + 1) / 2 * side - g * 2^i / 2 + 1/2)

Outside the image pixels have the value `pad_value`.

Source:
    Mnih et al. 2014, arXiv:1406.6247, section 3.1. The paper does not say how a window is placed
    between pixels nor how it is reduced: here it snaps to the nearest pixel and averages boxes.
"""

from functools import partial
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import pad

Backend = Literal["crop", "bilinear"]
Size = tuple[int, int]


class GlimpsePyramid(NamedTuple):
    """Box-filtered images from which glimpses are extracted.

    Args:
        levels: Level i holds the means of boxes of `2^i` pixels at every pixel, from one widest box
            before the image to its end.
        middle: x and y of the image center, in pixels.
        last: Last column and last row that all levels have.
        margin: Number of padding pixels before the image.
    """

    levels: tuple[Float[Tensor, "b c _ _"], ...]
    middle: Float[Tensor, "2"]
    last: Int[Tensor, "2 1"]
    margin: int


def glimpse_boxes(
    locations: Float[Tensor, "*n 2"], image_size: Size, *, glimpse_size: int, num_scales: int
) -> Float[Tensor, "*n s 4"]:
    """Return the windows of glimpses as boxes: left, top, right and bottom, in pixels.

    Args:
        locations: x and y of each glimpse, in [-1, 1].
        image_size: Height and width of the image.
        glimpse_size: Cells along a side, g.
        num_scales: Number of windows, each twice as wide as the one before.

    Example:
        >>> glimpse_boxes(torch.zeros(2), (28, 60), glimpse_size=8, num_scales=2)
        tensor([[26., 10., 34., 18.],
                [22.,  6., 38., 22.]])
    """
    wide = [glimpse_size * 2**scale for scale in range(num_scales)]
    middles = _pixel_centers(
        locations, locations.new_tensor([image_size[1] / 2, image_size[0] / 2])
    )
    starts = [_top_left(middles, side) for side in wide]
    ends = [start + side for start, side in zip(starts, wide, strict=True)]
    return torch.stack([torch.cat(box, -1) for box in zip(starts, ends, strict=True)], -2)


def glimpse_pyramid(
    images: Float[Tensor, "b c y x"],
    *,
    num_scales: int,
    pad_value: float | Float[Tensor, " c"] = 0.0,
) -> GlimpsePyramid:
    """Return box-filtered images for glimpse extraction, computed once for all glimpses.

    The mean of a box is the mean of four boxes of half its side, so that a scale costs four
    additions per pixel. The outermost boxes contain only padding and stand for all beyond.

    Args:
        images: Images.
        num_scales: Number of scales.
        pad_value: Value outside the images, one number or one per channel.

    Raises:
        ValueError: If there are no scales, or no pixels.

    Example:
        >>> pixels, boxes = glimpse_pyramid(torch.ones(1, 1, 3, 5), num_scales=2).levels
        >>> pixels.shape, boxes.shape
        (torch.Size([1, 1, 7, 9]), torch.Size([1, 1, 6, 8]))
        >>> pixels.sum(), boxes[0, 0, 0].sum(), boxes.amax()
        (tensor(15.), tensor(0.), tensor(1.))
    """
    if num_scales < 1 or 0 in images.shape[1:]:
        raise ValueError(
            "a pyramid needs at least 1 scale, and images with pixels; got "
            f"num_scales={num_scales} and images {list(images.shape)}"
        )
    margin = 2 ** (num_scales - 1)
    levels = [_pad_images(images, pad_value, margin)]
    for scale in range(num_scales - 1):
        half, level = 2**scale, levels[-1]
        wide = level[..., :-half] + level[..., half:]
        levels.append((wide[..., :-half, :] + wide[..., half:, :]) / 4)
    # A copy from the host would wait for the device.
    sides = (images.shape[3], images.shape[2])
    width_height = torch.stack([torch.full((), side, device=images.device) for side in sides])
    last = (width_height + margin).unsqueeze(1)
    return GlimpsePyramid(tuple(levels), width_height / 2, last, margin)


def crop_glimpses(
    pyramid: GlimpsePyramid,
    locations: Float[Tensor, "r 2"],
    *,
    glimpse_size: int,
    image_indices: Int[Tensor, " r"] | None = None,
) -> Float[Tensor, "r s c g g"]:
    """Extract glimpses with windows rounded to whole pixels.

    Args:
        pyramid: Pyramid of the images, from `glimpse_pyramid`.
        locations: x and y of each glimpse, in [-1, 1]; no gradient flows into them.
        glimpse_size: Cells along a side.
        image_indices: Image of each glimpse; glimpse n belongs to image n if None.

    Raises:
        ValueError: If a glimpse has no cells, or locations and images do not match.

    Example:
        >>> image = torch.arange(12.0).view(1, 1, 3, 4)
        >>> pyramid = glimpse_pyramid(image, num_scales=1)
        >>> crop_glimpses(pyramid, torch.zeros(1, 2), glimpse_size=2)[0, 0, 0]
        tensor([[ 5.,  6.],
                [ 9., 10.]])
    """
    image_indices = _check_image_indices(pyramid, locations, image_indices, glimpse_size)
    middles = _pixel_centers(locations, pyramid.middle)
    glimpses: list[Tensor] = []
    for scale, level in enumerate(pyramid.levels):
        first = _top_left(middles, glimpse_size * 2**scale).long()
        glimpses.append(
            _gather_cells(
                level, image_indices, *_cell_indices(pyramid, first, glimpse_size, 2**scale)
            )
        )
    return torch.stack(glimpses, 1) if len(glimpses) > 1 else glimpses[0].unsqueeze(1)


def sample_glimpses(
    pyramid: GlimpsePyramid,
    locations: Float[Tensor, "r 2"],
    *,
    glimpse_size: int,
    image_indices: Int[Tensor, " r"] | None = None,
) -> Float[Tensor, "r s c g g"]:
    """Extract glimpses with bilinear interpolation between pixels.

    The result interpolates the four nearest windows of `crop_glimpses`, equals it where a window
    begins at a whole pixel, and passes gradients to the locations.

    Args:
        pyramid: Pyramid of the images, from `glimpse_pyramid`.
        locations: x and y of each glimpse, in [-1, 1].
        glimpse_size: Cells along a side.
        image_indices: Image of each glimpse; glimpse n belongs to image n if None.

    Raises:
        ValueError: If a glimpse has no cells, or locations and images do not match.

    Example:
        >>> image = torch.arange(12.0).view(1, 1, 3, 4)
        >>> pyramid = glimpse_pyramid(image, num_scales=1)
        >>> sample_glimpses(pyramid, torch.zeros(1, 2), glimpse_size=2)[0, 0, 0]
        tensor([[3., 4.],
                [7., 8.]])
    """
    image_indices = _check_image_indices(pyramid, locations, image_indices, glimpse_size)
    middles = _pixel_centers(locations, pyramid.middle)
    glimpses: list[Tensor] = []
    for scale, level in enumerate(pyramid.levels):
        start = middles - glimpse_size * 2**scale / 2
        whole = start.detach().floor()
        first = whole.long()
        columns, rows = _cell_indices(pyramid, first, glimpse_size, 2**scale)
        right, below = _cell_indices(pyramid, first + 1, glimpse_size, 2**scale)
        see = partial(_gather_cells, level, image_indices)
        across, down = (start - whole).view(-1, 2, 1, 1, 1).unbind(1)
        upper = torch.lerp(see(columns, rows), see(right, rows), across)
        lower = torch.lerp(see(columns, below), see(right, below), across)
        glimpses.append(torch.lerp(upper, lower, down))
    return torch.stack(glimpses, 1)


def _pad_images(
    images: Float[Tensor, "b c y x"], background: float | Tensor, margin: int
) -> Float[Tensor, "b c v u"]:
    """Pad images on all sides."""
    if not isinstance(background, Tensor):
        return pad(images, (margin,) * 4, value=background)
    height, width = images.shape[2:]
    around = background.to(images).view(-1, 1, 1)  # padding takes one number only
    framed = around.repeat(images.shape[0], 1, height + 2 * margin, width + 2 * margin)
    framed[..., margin:-margin, margin:-margin] = images
    return framed


def _pixel_centers(
    places: Float[Tensor, "*n 2"], middle: Float[Tensor, "2"]
) -> Float[Tensor, "*n 2"]:
    """Return locations in pixels."""
    return (places + 1) * middle


def _top_left(middles: Float[Tensor, "*n 2"], wide: int) -> Float[Tensor, "*n 2"]:
    """Return left and top of windows, rounded to whole pixels."""
    return (middles + (0.5 - wide / 2)).floor()


def _cell_indices(
    pyramid: GlimpsePyramid, first: Int[Tensor, "r 2"], glimpse: int, step: int
) -> tuple[Int[Tensor, "r g"], Int[Tensor, "r g"]]:
    """Return column and row indices of the cells of windows in a level."""
    begin = pyramid.margin
    offsets = torch.arange(begin, begin + glimpse * step, step, device=first.device)
    cells = (first.unsqueeze(2) + offsets).clamp_(min=0).minimum(pyramid.last)
    columns, rows = cells.unbind(1)
    return columns, rows


def _gather_cells(
    level: Float[Tensor, "b c y x"],
    which: Int[Tensor, " r"],
    columns: Int[Tensor, "r g"],
    rows: Int[Tensor, "r g"],
) -> Float[Tensor, "r c g g"]:
    """Gather cells by flat indices, which is much faster than indexing by four tensors."""
    _, channels, height, width = level.shape
    lines = torch.add((which * (channels * height * width)).unsqueeze(1), rows, alpha=width)
    numbers = columns.unsqueeze(1) + lines.unsqueeze(2)
    if channels > 1:
        planes = torch.arange(channels, device=level.device) * (height * width)
        numbers = numbers.unsqueeze(1) + planes.view(-1, 1, 1)
    cells = level.flatten().index_select(0, numbers.flatten())
    return cells.view(-1, channels, *numbers.shape[-2:])


def _check_image_indices(
    pyramid: GlimpsePyramid, places: Tensor, which: Tensor | None, glimpse: int
) -> Int[Tensor, " r"]:
    if glimpse < 1:
        raise ValueError(f"a glimpse needs at least 1 cell along a side, got {glimpse}")
    if which is None:
        which = torch.arange(pyramid.levels[0].shape[0], device=places.device)
    if which.shape != places.shape[:1]:
        raise ValueError(
            "each location needs an image: pass image_indices, or one location per image; got "
            f"{len(places)} locations for {len(which)} images"
        )
    return which


class Retina(nn.Module):
    """Extracts multi-resolution glimpses: sharp in the center and coarser around it.

    Args:
        glimpse_size: Side of a glimpse, in cells.
        num_scales: Number of windows per glimpse, each twice as wide as the one before.
        pad_value: Value outside the image, one per channel, in the units of the images.
        backend: `crop` snaps windows to pixels; `bilinear` interpolates, and is differentiable in
            the locations.

    Example:
        >>> retina = Retina(8, 2, torch.zeros(1))
        >>> pyramid = retina.build_pyramid(torch.rand(3, 1, 28, 60))
        >>> retina(pyramid, torch.zeros(3, 2)).shape
        torch.Size([3, 2, 1, 8, 8])
    """

    pad_value: Tensor

    def __init__(
        self,
        glimpse_size: int,
        num_scales: int,
        pad_value: Float[Tensor, " c"],
        backend: Backend = "crop",
    ) -> None:
        super().__init__()
        self.glimpse_size, self.num_scales = glimpse_size, num_scales
        self.backend: Backend = backend
        self.register_buffer("pad_value", pad_value, persistent=False)

    def build_pyramid(self, images: Float[Tensor, "b c y x"]) -> GlimpsePyramid:
        """Return the image pyramid from which all glimpses of the images are taken."""
        return glimpse_pyramid(images, num_scales=self.num_scales, pad_value=self.pad_value)

    def forward(
        self,
        pyramid: GlimpsePyramid,
        locations: Float[Tensor, "r 2"],
        image_indices: Int[Tensor, " r"] | None = None,
    ) -> Float[Tensor, "r s c g g"]:
        """Return the glimpses at some locations.

        Args:
            pyramid: Image pyramid.
            locations: x and y of each glimpse, in [-1, 1].
            image_indices: Index of the image of each glimpse; by default glimpse n is of image n.
        """
        extract = crop_glimpses if self.backend == "crop" else sample_glimpses
        return extract(
            pyramid, locations, glimpse_size=self.glimpse_size, image_indices=image_indices
        )
