"""Retina: patches of several scales at a location, and the networks that read them.

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

import math
from functools import partial
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import pad


def random_scanpaths(
    num_images: int, num_glimpses: int, generator: torch.Generator | None = None
) -> Float[Tensor, "b t 2"]:
    """Return scanpaths of uniformly distributed locations.

    Example:
        >>> random_scanpaths(3, 5, torch.Generator().manual_seed(0)).shape
        torch.Size([3, 5, 2])
    """
    return torch.rand(num_images, num_glimpses, 2, generator=generator) * 2 - 1


def raster_scanpaths(num_images: int, num_glimpses: int) -> Float[Tensor, "b t 2"]:
    """Return the same raster scanpath for every image: over a grid, row by row.

    There are about as many rows as columns. If the number is not divisible, the upper rows have one
    location more; each row spans the whole width.

    Example:
        >>> raster_scanpaths(1, 5)[0]
        tensor([[-0.6667, -0.5000],
                [ 0.0000, -0.5000],
                [ 0.6667, -0.5000],
                [-0.5000,  0.5000],
                [ 0.5000,  0.5000]])
    """
    rows = max(1, round(math.sqrt(num_glimpses)))
    counts = [num_glimpses // rows + (row < num_glimpses % rows) for row in range(rows)]
    locations = [
        (2 * (column + 0.5) / count - 1, 2 * (row + 0.5) / rows - 1)
        for row, count in enumerate(counts)
        for column in range(count)
    ]
    return torch.tensor(locations).reshape(1, num_glimpses, 2).expand(num_images, -1, -1)


def object_scanpaths(
    centers: Float[Tensor, "b n 2"],
    num_objects: Int[Tensor, " b"],
    num_glimpses: int,
    *,
    has_end: bool = False,
) -> Float[Tensor, "b t 2"]:
    """Return scanpaths over the objects of each image, with equally many glimpses at each of them.

    After the last object of an image the path stays there.

    Args:
        centers: x and y of the centers of the objects in order, in [-1, 1], padded.
        num_objects: Number of objects of each image.
        num_glimpses: Locations per scanpath.
        has_end: Whether as many glimpses as for an object follow at the end.

    Example:
        >>> centers = torch.tensor([[[0.1, 0.2], [0.3, 0.4]]])
        >>> object_scanpaths(centers, torch.tensor([2]), 4)[0, :, 0]
        tensor([0.1000, 0.1000, 0.3000, 0.3000])
    """
    step = max(1, num_glimpses // (centers.shape[1] + has_end))
    objects = torch.arange(num_glimpses, device=centers.device) // step
    objects = objects.minimum(num_objects.unsqueeze(1) - 1)
    return centers.gather(1, objects.unsqueeze(-1).expand(-1, -1, 2))


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
    middles = _pixel_centers(
        locations, locations.new_tensor([image_size[1] / 2, image_size[0] / 2])
    )
    boxes: list[Tensor] = []
    for scale in range(num_scales):
        side = glimpse_size * 2**scale
        start = _top_left(middles, side)
        boxes.append(torch.cat((start, start + side), -1))
    return torch.stack(boxes, -2)


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
    # A row of pixels 1 2 3 4 with two scales. A box of level i stands at its first pixel, and a
    # window reads every box of level 0, every second one of level 1, and so on:
    #
    #     level 0   0   0   1   2   3   4   0   0        2 pixels of padding to each side
    #     level 1   0  .5 1.5 2.5 3.5   2   0            means of two
    margin = 2 ** (num_scales - 1)
    levels = [_pad_images(images, pad_value, margin)]
    for scale in range(num_scales - 1):
        half = 2**scale
        level = levels[-1]
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
    """Extract glimpses with bilinear interpolation between pixels, as `crop_glimpses` does without.

    The result interpolates the four nearest windows of `crop_glimpses`, equals it where a window
    begins at a whole pixel, and passes gradients to the locations.

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
    # The first and the last index that all levels have are boxes of padding only: windows beyond
    # read these, so that no window needs a wider margin.
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
        glimpse_size: For this and the other options see `RecurrentAttentionModel`.
        num_scales: As there.
        pad_value: Value outside the image, one per channel, in the units of the images.
        backend: As there; `bilinear` is differentiable in the locations.

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
        self.glimpse_size = glimpse_size
        self.num_scales = num_scales
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
        """Return the glimpses at some locations; see `crop_glimpses`."""
        extract = crop_glimpses if self.backend == "crop" else sample_glimpses
        return extract(
            pyramid, locations, glimpse_size=self.glimpse_size, image_indices=image_indices
        )


RNNType = Literal["rnn", "lstm", "gru"]
GlimpseEncoderType = Literal["linear", "conv"]
GlimpseFusion = Literal["sum", "product"]
RNNState = tuple[Tensor, ...]


class GlimpseNet(nn.Module):
    """Glimpse network: combines the content of a glimpse and its location into one vector.

    They are combined by their `sum`, as in RAM, or by their `product`, as in DRAM, where the
    location starts as a factor near 1. All scales of a glimpse are channels of its content. For the
    other options see `RecurrentAttentionModel`.

    Example:
        >>> net = GlimpseNet(3, 8, out_dim=7)
        >>> net(torch.zeros(5, 1, 3, 8, 8), torch.zeros(5, 2)).shape
        torch.Size([5, 7])

    Source:
        Mnih et al. 2014, arXiv:1406.6247, section 4: 128, 128 and 256; Ba et al. 2015,
        arXiv:1412.7755, section 3.1, for the product.
    """

    def __init__(
        self,
        in_channels: int,
        glimpse_size: int,
        *,
        encoder_type: GlimpseEncoderType = "linear",
        fusion: GlimpseFusion = "sum",
        what_dim: int = 128,
        where_dim: int = 128,
        out_dim: int = 256,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.glimpse_encoder = (
            nn.Sequential(nn.Flatten(), nn.Linear(in_channels * glimpse_size**2, what_dim))
            if encoder_type == "linear"
            else conv_encoder(in_channels, glimpse_size, what_dim)
        )
        self.fusion: GlimpseFusion = fusion
        self.location_encoder = nn.Linear(2, where_dim)
        self.what_proj = nn.Linear(what_dim, out_dim)
        self.where_proj = nn.Linear(where_dim, out_dim)
        if fusion == "product":
            nn.init.ones_(self.where_proj.bias)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, glimpses: Float[Tensor, "r s c g g"], locations: Float[Tensor, "r 2"]
    ) -> Float[Tensor, "r d"]:
        """Return one vector per glimpse; no gradient flows into the locations."""
        what = self.dropout(self.glimpse_encoder(glimpses.flatten(1, 2)).relu())
        where = self.location_encoder(locations.detach()).relu()
        what = self.what_proj(what)
        where = self.where_proj(where)
        return (what * where if self.fusion == "product" else what + where).relu()


class GlimpseRNN(nn.Module):
    """Recurrent core: an RNN with ReLU, an LSTM or a GRU cell with one interface.

    Example:
        >>> rnn = GlimpseRNN("lstm", 5, 7)
        >>> hidden, cell = rnn(torch.ones(3, 5), rnn.initial_state(3, torch.zeros(3, 5)))
        >>> hidden.shape
        torch.Size([3, 7])
    """

    def __init__(self, rnn_type: RNNType, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        cells = {"lstm": nn.LSTMCell, "gru": nn.GRUCell}
        self.cell = (
            cells[rnn_type](input_size, hidden_size)
            if rnn_type in cells
            else _relu_rnn_cell(input_size, hidden_size)
        )

    def initial_state(self, batch_size: int, like: Tensor) -> RNNState:
        """Return the zero state, with the dtype and device of a tensor."""
        hidden = like.new_zeros(batch_size, self.hidden_size)
        return (hidden, hidden) if isinstance(self.cell, nn.LSTMCell) else (hidden,)

    def forward(self, glimpse: Float[Tensor, "r d"], state: RNNState) -> RNNState:
        """Return the next state; its first entry is the hidden state."""
        if isinstance(self.cell, nn.LSTMCell):
            return self.cell(glimpse, (state[0], state[1]))
        return (self.cell(glimpse, state[0]),)


def _relu_rnn_cell(input_size: int, hidden_size: int) -> nn.RNNCell:
    """Return the paper's core, whose recurrent weights are initialized close to the identity.

    The paper does not specify the initialization; with random weights a ReLU core forgets or
    diverges.
    """
    cell = nn.RNNCell(input_size, hidden_size, nonlinearity="relu")
    nn.init.eye_(cell.weight_hh)
    with torch.no_grad():
        cell.weight_hh *= 0.9
    return cell


def conv_encoder(in_channels: int, size: int, out_dim: int) -> nn.Sequential:
    """Return a network of two convolutions and a linear layer for square images.

    Example:
        >>> conv_encoder(1, 7, 5)(torch.zeros(2, 1, 7, 7)).shape
        torch.Size([2, 5])
    """
    side = (size + 1) // 2
    return nn.Sequential(
        nn.Conv2d(in_channels, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * side**2, out_dim),
    )
