"""A retina for images of any size: it is shown images once, then looks at places of them."""

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from visattn.functional.glimpses.retina import (
    GlimpsePyramid,
    cropped_glimpses,
    glimpse_pyramid,
    sampled_glimpses,
)

Backend = Literal["crop", "bilinear"]


class Retina(nn.Module):
    """Look at places of images, sharp in the middle and coarser around.

    Args:
        glimpse: Cells along a side of a glimpse.
        scales: Windows of a glimpse, each twice as wide as the one before.
        background: What lies around an image, one number for each channel, in the units of the
            images.
        backend: `crop` snaps windows to pixels; `bilinear` looks between them, and lets gradients
            into the places.

    Example:
        >>> retina = Retina(8, 2, torch.zeros(1))
        >>> shown = retina.show(torch.rand(3, 1, 28, 60))
        >>> retina(shown, torch.zeros(3, 2)).shape
        torch.Size([3, 2, 1, 8, 8])
    """

    background: Tensor

    def __init__(
        self,
        glimpse: int,
        scales: int,
        background: Float[Tensor, " c"],
        backend: Backend = "crop",
    ) -> None:
        super().__init__()
        self.glimpse, self.scales = glimpse, scales
        self.backend: Backend = backend
        self.register_buffer("background", background, persistent=False)

    def show(self, images: Float[Tensor, "b c y x"]) -> GlimpsePyramid:
        """Return images ready to be looked at; it serves all their glimpses."""
        return glimpse_pyramid(images, scales=self.scales, background=self.background)

    def forward(
        self,
        shown: GlimpsePyramid,
        places: Float[Tensor, "r 2"],
        which: Int[Tensor, " r"] | None = None,
    ) -> Float[Tensor, "r s c g g"]:
        """Return what is seen at places.

        Args:
            shown: The images.
            places: x and y of each glimpse, in [-1, 1].
            which: The image of each glimpse; the n-th looks at the n-th image if left out.
        """
        see = cropped_glimpses if self.backend == "crop" else sampled_glimpses
        return see(shown, places, glimpse=self.glimpse, which=which)


Core = Literal["rnn", "lstm", "gru"]
Sight = Literal["linear", "conv"]
Memory = tuple[Tensor, ...]


class GlimpseNet(nn.Module):
    """What was seen and where, as one vector.

    Args:
        planes: Channels of the images times windows of a glimpse.
        glimpse: Cells along a side of a glimpse.
        sight: How a glimpse is read: by a `linear` layer, as the paper does, or by two
            convolutions with all scales as channels.
        what: Numbers for what was seen.
        where: Numbers for the place.
        width: Numbers for both together.
        dropout: Share of the numbers for what was seen that training leaves out.

    Example:
        >>> net = GlimpseNet(3, 8, width=7)
        >>> net(torch.zeros(5, 1, 3, 8, 8), torch.zeros(5, 2)).shape
        torch.Size([5, 7])

    Source:
        Mnih et al. 2014, arXiv:1406.6247, section 4: 128, 128 and 256.
    """

    def __init__(
        self,
        planes: int,
        glimpse: int,
        *,
        sight: Sight = "linear",
        what: int = 128,
        where: int = 128,
        width: int = 256,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.sight = (
            nn.Sequential(nn.Flatten(), nn.Linear(planes * glimpse**2, what))
            if sight == "linear"
            else _convolutions(planes, glimpse, what)
        )
        self.place = nn.Linear(2, where)
        self.from_sight = nn.Linear(what, width)
        self.from_place = nn.Linear(where, width)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, glimpses: Float[Tensor, "r s c g g"], places: Float[Tensor, "r 2"]
    ) -> Float[Tensor, "r d"]:
        """Return a vector for each glimpse; places are constants to it."""
        what = self.dropout(self.sight(glimpses.flatten(1, 2)).relu())
        where = self.place(places.detach()).relu()
        return (self.from_sight(what) + self.from_place(where)).relu()


class GlimpseRNN(nn.Module):
    """What is remembered from glimpse to glimpse: a recurrent cell under one signature.

    Args:
        core: `rnn` with a ReLU, as the paper has it, `lstm`, or `gru`.
        inputs: Numbers that tell a glimpse.
        width: Numbers of the state.

    Example:
        >>> memory = GlimpseRNN("lstm", 5, 7)
        >>> nothing = memory.start(3, torch.zeros(3, 5))
        >>> state, cell = memory(torch.ones(3, 5), nothing)
        >>> state.shape
        torch.Size([3, 7])
    """

    def __init__(self, core: Core, inputs: int, width: int) -> None:
        super().__init__()
        self.width = width
        cells = {"lstm": nn.LSTMCell, "gru": nn.GRUCell}
        self.cell = cells[core](inputs, width) if core in cells else _plain_cell(inputs, width)

    def start(self, rows: int, like: Tensor) -> Memory:
        """Return the memory of nothing.

        Args:
            rows: Of how many glimpses at once.
            like: A tensor of the kind and in the place that the memory is to have.
        """
        state = like.new_zeros(rows, self.width)
        return (state, state) if isinstance(self.cell, nn.LSTMCell) else (state,)

    def forward(self, seen: Float[Tensor, "r d"], memory: Memory) -> Memory:
        """Return the memory after a glimpse; its first part is the state that is read."""
        if isinstance(self.cell, nn.LSTMCell):
            return self.cell(seen, (memory[0], memory[1]))
        return (self.cell(seen, memory[0]),)


def _plain_cell(inputs: int, width: int) -> nn.RNNCell:
    """Return the paper's core, which starts by keeping what it has.

    The paper does not say how it starts; from noise, a ReLU core forgets or blows up.
    """
    cell = nn.RNNCell(inputs, width, nonlinearity="relu")
    nn.init.eye_(cell.weight_hh)
    with torch.no_grad():
        cell.weight_hh *= 0.9
    return cell


def _convolutions(planes: int, glimpse: int, what: int) -> nn.Sequential:
    side = (glimpse + 1) // 2
    return nn.Sequential(
        nn.Conv2d(planes, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * side**2, what),
    )
