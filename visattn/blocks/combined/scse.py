"""Concurrent spatial and channel squeeze and excitation."""

from typing import ClassVar, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.base import Block, BlockInfo, check_choice, hidden_width
from visattn.blocks.tap import Tap
from visattn.functional.gates.channel import squeeze_excitation_gate
from visattn.functional.gates.spatial import projected_gate
from visattn.functional.pooling import channel_means

Combination = Literal["add", "max", "mul", "concat"]


class SCSE(Block):
    """Scale the features by a gate per channel, and by a gate per place, and combine both (scSE).

    Args:
        channels: Width of a feature.
        reduction: By which the hidden layer of the channel gate is narrower; it keeps at least one
            unit.
        combine: Whether the two are added, or their maximum or product is taken, element by
            element, or both are concatenated and brought back to the width by a linear map.

    Raises:
        ValueError: If there is no such combination.

    Example:
        >>> import torch
        >>> SCSE(64)(torch.zeros(1, 64, 5, 7)).shape
        torch.Size([1, 64, 5, 7])

    Source:
        Roy et al. 2018, arXiv:1803.02579, section 2; other combinations Roy et al. 2019,
        arXiv:1808.08127.
    """

    card: ClassVar = BlockInfo(
        name="scse",
        kind="both",
        title="Concurrent spatial and channel squeeze-and-excitation (scSE)",
        paper="Roy et al. 2018, arXiv:1803.02579",
        equation="y = x * s(W2 relu(W1 mean(x) + b1) + b2) + x * s(w . x)",
        parameters="2 C h + h + 2 C, with h = max(1, C // reduction); 2 C C more to concatenate",
        deviations=(
            "combine='max' is what the authors' code does",
            "combine='mul' multiplies the two scaled features, and so squares x",
            "combine='concat' needs a linear map back to C channels, which the paper leaves to the "
            "layer that follows",
        ),
        aliases=("concurrent SE", "concurrent spatial and channel squeeze-and-excitation"),
    )

    def __init__(self, channels: int, *, reduction: int = 2, combine: Combination = "add") -> None:
        super().__init__(channels)
        check_choice("combine", combine, get_args(Combination))
        hidden = hidden_width(channels, reduction)
        self.combine: Combination = combine
        self.squeeze = nn.Linear(channels, hidden)
        self.excite = nn.Linear(hidden, channels)
        self.channel_tap = Tap("channel")
        self.project = nn.Conv2d(channels, 1, 1, bias=False)
        self.spatial_tap = Tap("gate")
        self.merge = (
            nn.Conv2d(2 * channels, channels, 1, bias=False) if combine == "concat" else None
        )

    def attend(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return both scaled features, combined."""
        channel = squeeze_excitation_gate(
            channel_means(x),
            self.squeeze.weight,
            self.excite.weight,
            self.squeeze.bias,
            self.excite.bias,
        )
        place = projected_gate(x, self.project.weight.flatten())
        by_channel = self.channel_tap(channel)[:, :, None, None]
        return self._combined(x, by_channel, self.spatial_tap(place)[:, None])

    def _combined(
        self,
        x: Float[Tensor, "b c y x"],
        channel: Float[Tensor, "b c 1 1"],
        place: Float[Tensor, "b 1 y x"],
    ) -> Float[Tensor, "b c y x"]:
        if self.merge is not None:
            return self.merge(torch.cat((x * channel, x * place), 1))
        if self.combine == "max":
            return torch.maximum(x * channel, x * place)
        if self.combine == "mul":
            return (x * channel) * (x * place)
        return x * (channel + place)
