"""Concurrent spatial and channel squeeze-and-excitation (scSE)."""

from typing import ClassVar, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.base import Block, BlockInfo, check_choice, reduced_channels
from visattn.blocks.tap import Tap
from visattn.functional.gates import spatial_squeeze_gate, squeeze_excitation_gate
from visattn.functional.numerics import channel_means

Combination = Literal["add", "max", "mul", "concat"]


class SCSE(Block):
    """Concurrent spatial and channel squeeze-and-excitation: both gates in parallel (scSE).

    Args:
        channels: Number of input channels.
        reduction: Reduction ratio of the hidden layer of the channel gate, which keeps at least one
            channel.
        combine: Whether the two gated features are added, multiplied, reduced by an elementwise
            maximum, or concatenated and projected back to `channels`.

    Raises:
        ValueError: If `combine` is unknown.

    Example:
        >>> import torch
        >>> SCSE(64)(torch.zeros(1, 64, 5, 7)).shape
        torch.Size([1, 64, 5, 7])

    Source:
        Roy et al. 2018, arXiv:1803.02579, section 2; other combinations Roy et al. 2019,
        arXiv:1808.08127.
    """

    info: ClassVar = BlockInfo(
        name="scse",
        kind="combined",
        title="Concurrent spatial and channel squeeze-and-excitation (scSE)",
        paper="Roy et al. 2018, arXiv:1803.02579",
        equation="y = x * s(W2 relu(W1 mean(x) + b1) + b2) + x * s(w . x)",
        parameters="2 C h + h + 2 C, with h = max(1, C // reduction); 2 C C more for concat",
        deviations=(
            "combine='max' matches the authors' code",
            "combine='mul' multiplies the two gated features, which squares x",
            "combine='concat' adds a projection back to C channels, which the paper leaves to the "
            "next layer",
        ),
    )

    def __init__(self, channels: int, *, reduction: int = 2, combine: Combination = "add") -> None:
        super().__init__(channels)
        check_choice("combine", combine, get_args(Combination))
        hidden = reduced_channels(channels, reduction)
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
        """Return the combination of the two gated features."""
        channel = squeeze_excitation_gate(
            channel_means(x),
            self.squeeze.weight,
            self.excite.weight,
            self.squeeze.bias,
            self.excite.bias,
        )
        spatial = spatial_squeeze_gate(x, self.project.weight.flatten())
        channel_gate = self.channel_tap(channel)[:, :, None, None]
        return self._combine(x, channel_gate, self.spatial_tap(spatial)[:, None])

    def _combine(
        self,
        x: Float[Tensor, "b c y x"],
        channel: Float[Tensor, "b c 1 1"],
        spatial: Float[Tensor, "b 1 y x"],
    ) -> Float[Tensor, "b c y x"]:
        if self.merge is not None:
            return self.merge(torch.cat((x * channel, x * spatial), 1))
        if self.combine == "max":
            return torch.maximum(x * channel, x * spatial)
        if self.combine == "mul":
            return (x * channel) * (x * spatial)
        return x * (channel + spatial)
