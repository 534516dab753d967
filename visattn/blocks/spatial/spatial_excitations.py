"""Channel squeeze and spatial excitation."""

from typing import ClassVar

from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.bases import Block
from visattn.blocks.cards import Card
from visattn.blocks.taps import Tap
from visattn.functional.spatial_gates import projected_gate


class SpatialExcitation(Block):
    """Scale each place by a gate that is a linear map of its own channels.

    Args:
        channels: Width of a feature.
        bias: Whether the linear map has a bias.

    Example:
        >>> import torch
        >>> SpatialExcitation(64)(torch.zeros(1, 64, 5, 7)).shape
        torch.Size([1, 64, 5, 7])

    Source:
        Roy et al. 2018, arXiv:1803.02579, section 2.2 (sSE).
    """

    card: ClassVar = Card(
        name="sse",
        kind="spatial",
        title="Channel squeeze, spatial excitation (sSE)",
        paper="Roy et al. 2018, arXiv:1803.02579",
        equation="y = x * s(w . x)",
        parameters="C",
        deviations=("bias=True adds the bias that several ports have: C + 1",),
        aliases=("spatial SE", "spatial squeeze-and-excitation"),
    )

    def __init__(self, channels: int, *, bias: bool = False) -> None:
        super().__init__(channels)
        self.squeeze = nn.Conv2d(channels, 1, 1, bias=bias)
        self.tap = Tap("gate")

    def attend(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return the features, each place scaled by its gate."""
        gate = projected_gate(x, self.squeeze.weight.flatten(), self.squeeze.bias)
        return x * self.tap(gate)[:, None]
