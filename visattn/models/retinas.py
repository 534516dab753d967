"""A retina for pictures of any size: it is shown pictures once, then looks at places of them."""

from typing import Literal

from jaxtyping import Float, Int
from torch import Tensor, nn

from visattn.functional.glimpses import (
    GlimpsePyramid,
    cropped_glimpses,
    glimpse_pyramid,
    sampled_glimpses,
)

Backend = Literal["crop", "bilinear"]


class Retina(nn.Module):
    """Look at places of pictures, sharp in the middle and coarser around.

    Args:
        glimpse: Cells along a side of a glimpse.
        scales: Windows of a glimpse, each twice as wide as the one before.
        background: What lies around a picture, one number for each channel, in the units of the
            pictures.
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

    def show(self, pictures: Float[Tensor, "b c y x"]) -> GlimpsePyramid:
        """Return pictures ready to be looked at; it serves all their glimpses."""
        return glimpse_pyramid(pictures, scales=self.scales, background=self.background)

    def forward(
        self,
        shown: GlimpsePyramid,
        places: Float[Tensor, "r 2"],
        which: Int[Tensor, " r"] | None = None,
    ) -> Float[Tensor, "r s c g g"]:
        """Return what is seen at places.

        Args:
            shown: The pictures.
            places: x and y of each glimpse, in [-1, 1].
            which: The picture of each glimpse; the n-th looks at the n-th picture if left out.
        """
        see = cropped_glimpses if self.backend == "crop" else sampled_glimpses
        return see(shown, places, glimpse=self.glimpse, which=which)
