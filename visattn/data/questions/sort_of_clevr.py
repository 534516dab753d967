"""Sort-of-CLEVR: images of six objects, drawn on the fly; what is in them and where."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from visattn.data.loading.sample_seed import mix_seed, per_sample_uniforms

SORT_OF_CLEVR_COLORS = {
    "red": (255, 0, 0),
    "green": (0, 255, 0),
    "blue": (0, 0, 255),
    "orange": (255, 156, 0),
    "gray": (128, 128, 128),
    "yellow": (255, 255, 0),
}
"""Colors of the objects in the order in which they are drawn; each occurs once per image."""
SORT_OF_CLEVR_SIZE = 75
"""Height and width of the images in pixels, without margins."""
RADIUS = 5
_NUM_OBJECTS = len(SORT_OF_CLEVR_COLORS)
_NUM_ATTEMPTS = 32  # per object; at least 62 % of the places are free, so all fail in 1e-13
_SENTINEL = 999  # squared distance by which the original hides the object itself


class SortOfClevrLayout(NamedTuple):
    """Contents of images: one object of each color."""

    centers: Int[Tensor, "*n 6 2"]
    """Pixel at the center of each object: column and row."""
    rectangles: Bool[Tensor, "*n 6"]
    """Whether the object is a rectangle; otherwise it is a circle."""


def sample_layouts(seed: int, indices: list[int]) -> SortOfClevrLayout:
    """Return random layouts; each depends on the seed and its index alone.

    Centers are integers from 5 to 69 at squared distances of at least 100; each is drawn again
    until it fits the earlier ones. Each object is a rectangle or a circle with probability 1/2.

    Example:
        >>> sample_layouts(0, [3, 5]).centers.shape
        torch.Size([2, 6, 2])

    Source:
        https://github.com/kimhc6028/relational-networks, sort_of_clevr_generator.py.
    """
    uniforms = per_sample_uniforms(
        mix_seed(seed, 0), indices, _NUM_OBJECTS * (2 * _NUM_ATTEMPTS + 1)
    )
    places = uniforms[:, _NUM_OBJECTS:].view(len(indices), _NUM_OBJECTS, _NUM_ATTEMPTS, 2)
    candidates = RADIUS + (places * (SORT_OF_CLEVR_SIZE - 2 * RADIUS)).long()
    centers = candidates[:, :1, 0]
    for attempts in candidates.unbind(1)[1:]:
        distances = (attempts[:, :, None] - centers[:, None]).square().sum(-1)
        first = (distances >= (2 * RADIUS) ** 2).all(-1).int().argmax(1)
        chosen = attempts.gather(1, first[:, None, None].expand(-1, 1, 2))
        centers = torch.cat([centers, chosen], 1)
    return SortOfClevrLayout(centers, uniforms[:, :_NUM_OBJECTS] < 0.5)


def draw_layouts(
    layout: SortOfClevrLayout,
    *,
    size: int = SORT_OF_CLEVR_SIZE,
    visible: Bool[Tensor, "n 6"] | None = None,
) -> UInt8[Tensor, "n 3 {size} {size}"]:
    """Draw images: white, with filled rectangles of 11 x 11 pixels and circles of radius 5.

    Later colors cover earlier ones. There is no antialiasing: pixels are those of OpenCV.

    Args:
        layout: Contents of n images.
        size: Height and width in pixels, at least 75. Larger images have white margins; no object
            changes its size.
        visible: Objects that are drawn; None for all.

    Raises:
        ValueError: If the size is below 75.

    Example:
        >>> image = draw_layouts(sample_layouts(0, [0]))
        >>> image.shape, image[0, :, 0, 0]
        (torch.Size([1, 3, 75, 75]), tensor([255, 255, 255], dtype=torch.uint8))
    """
    offset = left_margin(size)
    images = torch.full((len(layout.centers), 3, size, size), 255, dtype=torch.uint8)
    steps = torch.arange(-RADIUS, RADIUS + 1)
    disc = steps[:, None].square() + steps.square() <= RADIUS**2
    for color, rgb in enumerate(SORT_OF_CLEVR_COLORS.values()):
        covered = disc | layout.rectangles[:, color, None, None]
        if visible is not None:
            covered &= visible[:, color, None, None]
        image, row, column = covered.nonzero().unbind(1)
        x, y = (layout.centers[image, color] + (offset - RADIUS)).unbind(1)
        images[image, :, y + row, x + column] = torch.tensor(rgb, dtype=torch.uint8)
    return images


def layout_boxes(
    layout: SortOfClevrLayout, *, size: int = SORT_OF_CLEVR_SIZE
) -> Float[Tensor, "*n 6 4"]:
    """Return the boxes of objects: left, top, right and bottom in pixels of the drawn image.

    They bound all pixels of an object, including those that a later object covers.

    Args:
        layout: Contents of images.
        size: Height and width of the drawn images in pixels, at least 75.
    """
    low = (layout.centers + (left_margin(size) - RADIUS)).float()
    return torch.cat([low, low + (2 * RADIUS + 1)], -1)


def left_margin(size: int) -> int:
    """Return the width of the white margin on the left and at the top of an image of a size."""
    if size < SORT_OF_CLEVR_SIZE:
        raise ValueError(
            f"size must be at least {SORT_OF_CLEVR_SIZE} pixels, that of Sort-of-CLEVR; larger "
            f"images have white margins; got {size}"
        )
    return (size - SORT_OF_CLEVR_SIZE) // 2


class SortOfClevrFacts(NamedTuple):
    """What the answers to questions depend on, for each object of n images."""

    left: Bool[Tensor, "n 6"]
    """Whether the center is on the left half."""
    top: Bool[Tensor, "n 6"]
    """Whether the center is on the top half."""
    closest: Int[Tensor, "n 6"]
    """The closest other object; of several the first in the order of colors."""
    furthest: Int[Tensor, "n 6"]
    """The furthest object."""
    same_shape: Bool[Tensor, "n 6 6"]
    """Objects of the same shape, the object itself included."""


def layout_facts(layout: SortOfClevrLayout, *, original: bool = False) -> SortOfClevrFacts:
    """Return what the answers to questions about single objects depend on.

    Args:
        layout: Contents of n images.
        original: Whether "closest" has the fault of the original generator. It replaces the zero
            distance of the object to itself by 999, so that an object whose neighbors are further
            than 31.6 pixels away is its own closest object.

    Example:
        >>> centers = torch.tensor([[[5, 5], [69, 5], [69, 69], [5, 69], [69, 30], [30, 69]]])
        >>> layout = SortOfClevrLayout(centers, torch.zeros(1, 6, dtype=torch.bool))
        >>> layout_facts(layout).closest[0], layout_facts(layout, original=True).closest[0]
        (tensor([1, 4, 4, 5, 1, 3]), tensor([0, 4, 2, 5, 1, 3]))
    """
    centers, rectangles = layout
    distances = (centers[:, :, None] - centers[:, None]).square().sum(-1)
    hidden = _SENTINEL if original else 4 * SORT_OF_CLEVR_SIZE**2
    closest = (distances + hidden * torch.eye(_NUM_OBJECTS, dtype=torch.long)).argmin(-1)
    left, top = (2 * centers < SORT_OF_CLEVR_SIZE).unbind(-1)
    same_shape = rectangles[:, :, None] == rectangles[:, None]
    return SortOfClevrFacts(left, top, closest, distances.argmax(-1), same_shape)


class PairFacts(NamedTuple):
    """Objects that stand in a relation to a pair of objects, for p pairs."""

    between: Bool[Tensor, "p 6"]
    """Objects whose center lies in the box between the centers of the pair, its edge included."""
    line: Bool[Tensor, "p 6"]
    """Objects near the line through the centers of the pair."""
    obtuse: Bool[Tensor, "p 6"]
    """Objects that form a triangle with an angle of at least 90 degrees with the pair."""


def pair_facts(
    centers: Int[Tensor, "p 6 2"], pairs: Int[Tensor, "p 2"], *, original: bool = False
) -> PairFacts:
    """Return what the answers to questions about pairs of objects depend on.

    Args:
        centers: Centers of the objects of the image of each pair.
        pairs: Indices of two different objects.
        original: Whether "near the line" means within 12 pixels vertically, as in the original,
            instead of 12 pixels of distance.

    Example:
        >>> centers = torch.tensor([[[5, 5], [65, 65], [30, 30], [5, 60], [69, 69], [60, 30]]])
        >>> facts = pair_facts(centers, torch.tensor([[0, 1]]))
        >>> [objects.nonzero()[:, 1].tolist() for objects in facts]
        [[2, 3, 5], [2, 4], [3, 5]]
    """
    first, second = (
        centers.gather(1, index[:, None, None].expand(-1, 1, 2)) for index in pairs.unbind(1)
    )
    others = torch.ones(centers.shape[:2], dtype=torch.bool).scatter_(1, pairs, value=0)
    low, high = torch.minimum(first, second), torch.maximum(first, second)
    between = ((low <= centers) & (centers <= high)).all(-1)
    along, offset = second - first, centers - first
    cross = along[..., 0] * offset[..., 1] - along[..., 1] * offset[..., 0]
    if original:  # the slope of a vertical line is a huge number there
        level = (along[..., 0] == 0) & (offset[..., 0] == 0) & (offset[..., 1].abs() <= 12)
        near = (cross.abs() <= 12 * along[..., 0].abs()) & (along[..., 0] != 0) | level
    else:
        near = cross.square() <= 144 * along.square().sum(-1)
    sides = torch.stack(
        torch.broadcast_tensors(
            along.square().sum(-1),
            offset.square().sum(-1),
            (centers - second).square().sum(-1),
        )
    )
    obtuse = (2 * sides.amax(0) >= sides.sum(0)) & (cross != 0)
    return PairFacts(between & others, near & others, obtuse & others)
