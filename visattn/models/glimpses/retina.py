"""Retina: windows of several scales around a location, fine in the center, coarser around it.

A location is (x, y) in [-1, 1]: (-1, -1) is the top left corner of the image, (0, 0) its center; x
goes along the width, y along the height. A glimpse of g x g cells has a window for each scale: the
first is g pixels wide, each next one twice as wide, all of them averaged down to g x g cells. In
pixels from the edge, the window of scale i begins at

    floor((location + 1) / 2 * side - g * 2^i / 2 + 1/2)

Outside the image pixels have the value `pad_value`.

Source:
    Mnih et al. 2014, arXiv:1406.6247, section 3.1. The paper does not specify how a window is
    aligned to pixels or downsampled: here it is aligned to the nearest pixel and averaged over
    boxes.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn


class Retina(nn.Module):
    """Extracts glimpses.

    Args:
        glimpse_size: Cells along a side, g.
        num_scales: Number of windows, each twice as wide as the one before.
        pad_value: Value outside the image, one per channel, in the units of the images.

    Example:
        >>> retina = Retina(2, 1, torch.zeros(1))
        >>> levels = retina.pyramid(torch.arange(12.0).view(1, 1, 3, 4))
        >>> retina(levels, torch.zeros(1, 2), torch.tensor([0]))[0, 0, 0]
        tensor([[ 5.,  6.],
                [ 9., 10.]])
        >>> Retina(8, 2, torch.zeros(1)).boxes(torch.zeros(2), (28, 60))
        tensor([[26., 10., 34., 18.],
                [22.,  6., 38., 22.]])
    """

    pad_value: Tensor

    def __init__(self, glimpse_size: int, num_scales: int, pad_value: Float[Tensor, " c"]) -> None:
        super().__init__()
        self.glimpse_size = glimpse_size
        self.num_scales = num_scales
        self.margin = 2 ** (num_scales - 1)  # side of the widest box
        self.register_buffer("pad_value", pad_value, persistent=False)

    def pyramid(self, images: Float[Tensor, "b c y x"]) -> list[Float[Tensor, "b c _ _"]]:
        """Return the means of boxes of 1, 2, 4, ... pixels at each pixel, for all glimpses."""
        # A row of pixels 1 2 3 4 with two scales. A box is stored at its first pixel, and a window
        # reads every box of level 0, every second one of level 1, and so on. The mean of a box is
        # the mean of four boxes of half its side. The outermost boxes are all padding, and
        # represent all boxes beyond.
        #
        #     level 0   0   0   1   2   3   4   0   0        2 pixels of padding to each side
        #     level 1   0  .5 1.5 2.5 3.5   2   0            means of two
        margin = self.margin
        height, width = images.shape[2:]
        padded = self.pad_value.to(images).view(-1, 1, 1)
        padded = padded.repeat(len(images), 1, height + 2 * margin, width + 2 * margin)
        padded[..., margin : margin + height, margin : margin + width] = images
        levels = [padded]
        for scale in range(self.num_scales - 1):
            half, level = 2**scale, levels[-1]
            pairs = level[..., :-half] + level[..., half:]
            levels.append((pairs[..., :-half, :] + pairs[..., half:, :]) / 4)
        return levels

    def forward(
        self,
        pyramid: list[Float[Tensor, "b c _ _"]],
        locations: Float[Tensor, "r 2"],
        image_indices: Int[Tensor, " r"],
    ) -> Float[Tensor, "r s c g g"]:
        """Return the glimpses at some locations; no gradient flows into them."""
        bottom, right = (side - self.margin for side in pyramid[0].shape[2:])  # in all levels
        size = (bottom - self.margin, right - self.margin)
        starts = self.boxes(locations, size)[..., :2].long() + self.margin
        glimpses: list[Tensor] = []
        for scale, level in enumerate(pyramid):
            _, channels, height, width = level.shape
            cells = 2**scale * torch.arange(self.glimpse_size, device=level.device)
            columns = (starts[:, scale, :1] + cells).clamp(0, right)[:, None, None]
            rows = (starts[:, scale, 1:] + cells).clamp(0, bottom)[:, None, :, None]
            # Flat indices are much faster than four index tensors.
            planes = image_indices[:, None] * channels + torch.arange(channels, device=level.device)
            index = (planes[..., None, None] * height + rows) * width + columns
            glimpses.append(level.flatten().index_select(0, index.flatten()).view(index.shape))
        return torch.stack(glimpses, 1)

    def boxes(
        self, locations: Float[Tensor, "*n 2"], image_size: tuple[int, int]
    ) -> Float[Tensor, "*n s 4"]:
        """Return left, top, right and bottom of the windows, in pixels of images of this size."""
        # Without a tensor for the size, whose copy would synchronize with the GPU.
        x, y = ((locations + 1) / 2).unbind(-1)
        centers = torch.stack((x * image_size[1], y * image_size[0]), -1).unsqueeze(-2)
        widths = self.glimpse_size * 2 ** torch.arange(self.num_scales, device=locations.device)
        starts = (centers + (0.5 - widths.unsqueeze(-1) / 2)).floor()
        return torch.cat((starts, starts + widths.unsqueeze(-1)), -1)
