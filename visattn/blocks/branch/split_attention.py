"""Split attention: several convolutions in one, weighed per channel."""

from typing import ClassVar

from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.base import Block, BlockInfo, check_odd, hidden_width
from visattn.blocks.branch.selective_kernel import dividing_groups
from visattn.blocks.norm import MapNorm
from visattn.blocks.tap import Tap
from visattn.functional.gates.branch import merged, radix_weights


class SplitAttention(Block):
    """Convolve the features into several splits, and mix these per channel (ResNeSt).

    Args:
        channels: Width of a feature.
        reduction: By which the hidden layer is narrower than all splits together.
        kernel: Side of the convolution, odd.
        radix: How many splits; with one there is a gate in place of a choice.
        groups: Of channels, each with its own attention; it divides the width.
        least: Units that the hidden layer has at least.

    Raises:
        ValueError: If the kernel is even, there is no split, or the groups do not divide the width;
            in training, if the batch is a single image.

    Example:
        >>> import torch
        >>> SplitAttention(64)(torch.zeros(2, 64, 5, 7)).shape
        torch.Size([2, 64, 5, 7])

    Source:
        Zhang et al. 2020, arXiv:2004.08955, equations 1 to 3 and the radix-major form of its
        appendix.
    """

    card: ClassVar = BlockInfo(
        name="split",
        kind="branches",
        title="Split attention",
        paper="Zhang et al. 2020, arXiv:2004.08955",
        equation="y = sum_i a_i * u_i, [u_1 .. u_R] = relu(BN(conv_k(x))), R = radix,\n"
        "a = softmax_i(W2 relu(BN(W1 mean(sum_i u_i) + b1)) + b2), sigmoid if R is 1",
        parameters="k k C C R / F + 2 R C + C d / G + 3 d + d R C / G + R C, G = groups, "
        "F = gcd(C, G R), d = max(C R // reduction, least), a multiple of G",
        deviations=(
            "the convolution has G R groups; where these do not divide the width, as many as "
            "divide both",
            "it cannot learn from a batch of one image, which has no variance",
        ),
        weights=("timm SplitAttn with batch normalization (conv, bn0, fc1, bn1, fc2)",),
        aliases=("split attn", "splat", "ResNeSt"),
    )

    def __init__(
        self,
        channels: int,
        *,
        reduction: int = 4,
        kernel: int = 3,
        radix: int = 2,
        groups: int = 1,
        least: int = 32,
    ) -> None:
        super().__init__(channels)
        check_odd("kernel", kernel)
        if radix < 1 or least < 1:
            raise ValueError(f"radix and least must be at least 1, got {radix} and {least}")
        self.radix, self.groups = radix, dividing_groups(channels, groups, usual=1)
        hidden = hidden_width(channels * radix, reduction, least=least)
        hidden += -hidden % groups
        shared = dividing_groups(channels, None, usual=groups * radix)
        self.split = nn.Sequential(
            nn.Conv2d(
                channels, radix * channels, kernel, padding=kernel // 2, groups=shared, bias=False
            ),
            MapNorm(radix * channels),
            nn.ReLU(inplace=True),
        )
        self.squeeze = nn.Conv2d(channels, hidden, 1, groups=groups)
        self.norm = MapNorm(hidden)
        self.select = nn.Conv2d(hidden, radix * channels, 1, groups=groups)
        self.tap = Tap("channel")

    def attend(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return the mix of the splits."""
        splits = self.split(x).unflatten(1, (self.radix, self.channels))
        pooled = splits.mean((3, 4)).sum(1)[:, :, None, None]
        scores = self.select(self.norm(self.squeeze(pooled)).relu()).flatten(1)
        weights = radix_weights(scores, radix=self.radix, groups=self.groups)
        return merged(splits.unbind(1), self.tap(weights))
