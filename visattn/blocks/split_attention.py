"""Split attention of ResNeSt."""

from typing import ClassVar

from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.base import Block, BlockInfo, check_odd, reduced_channels
from visattn.blocks.selective_kernel import resolve_groups
from visattn.blocks.tap import Tap
from visattn.functional.gates import branch_softmax, merge_branches


def radix_softmax(
    scores: Float[Tensor, "b mc"], *, radix: int, groups: int = 1
) -> Float[Tensor, "b m c"]:
    """Return the radix softmax: weights of the m = `radix` splits, per channel.

    A single split has a sigmoid gate instead.

    Args:
        scores: Logits ordered by group, split and channel.

    Example:
        >>> radix_softmax(torch.zeros(1, 4), radix=2)
        tensor([[[0.5000, 0.5000],
                 [0.5000, 0.5000]]])

    Source:
        Zhang et al. 2020, arXiv:2004.08955, equation 3.
    """
    if radix == 1:
        return scores.sigmoid().unsqueeze(1)
    # A convolution in groups returns [group, split, channel]; branches are [split, group, channel].
    by_group = scores.reshape(scores.shape[0], groups, radix, -1)
    return branch_softmax(by_group.transpose(1, 2).flatten(2))


class SplitAttention(Block):
    """Split attention: softmax attention per channel over splits of a convolution (ResNeSt).

    Args:
        channels: Number of input channels.
        reduction: Reduction ratio of the hidden layer, relative to all splits.
        kernel_size: Kernel size of the convolution, odd.
        radix: Number of splits; with one split the softmax becomes a sigmoid gate.
        groups: Cardinality: number of channel groups with separate attention; divides `channels`.
        min_hidden_channels: Smallest width of the hidden layer.

    Raises:
        ValueError: If the kernel size is even, radix is below 1, or groups do not divide the
            channels; in training mode, if the batch is a single image.

    Example:
        >>> import torch
        >>> SplitAttention(64)(torch.zeros(2, 64, 5, 7)).shape
        torch.Size([2, 64, 5, 7])

    Source:
        Zhang et al. 2020, arXiv:2004.08955, equations 1 to 3 and the radix-major form of its
        appendix.
    """

    info: ClassVar = BlockInfo(
        name="split",
        kind="branch",
        title="Split attention",
        paper="Zhang et al. 2020, arXiv:2004.08955",
        equation="y = sum_i a_i * u_i, [u_1 .. u_R] = relu(BN(conv_k(x))), R = radix,\n"
        "a = softmax_i(W2 relu(BN(W1 mean(sum_i u_i) + b1)) + b2), sigmoid if R is 1",
        parameters="k k C C R / F + 2 R C + C d / G + 3 d + d R C / G + R C, G = groups, "
        "F = gcd(C, G R), d = max(C R // reduction, min_hidden_channels), a multiple of G",
        deviations=(
            "the convolution has gcd(C, G R) groups where G R does not divide C",
            "it cannot be trained with a batch of one image, which has no variance",
        ),
    )

    def __init__(
        self,
        channels: int,
        *,
        reduction: int = 4,
        kernel_size: int = 3,
        radix: int = 2,
        groups: int = 1,
        min_hidden_channels: int = 32,
    ) -> None:
        super().__init__(channels)
        check_odd("kernel_size", kernel_size)
        if radix < 1 or min_hidden_channels < 1:
            raise ValueError(
                "radix and min_hidden_channels must be at least 1, got "
                f"{radix} and {min_hidden_channels}"
            )
        self.radix = radix
        self.groups = resolve_groups(channels, groups, usual=1)
        hidden = reduced_channels(channels * radix, reduction, minimum=min_hidden_channels)
        hidden += -hidden % groups
        shared = resolve_groups(channels, None, usual=groups * radix)
        self.split = nn.Sequential(
            nn.Conv2d(
                channels,
                radix * channels,
                kernel_size,
                padding=kernel_size // 2,
                groups=shared,
                bias=False,
            ),
            nn.BatchNorm2d(radix * channels),
            nn.ReLU(inplace=True),
        )
        self.squeeze = nn.Conv2d(channels, hidden, 1, groups=groups)
        self.norm = nn.BatchNorm2d(hidden)
        self.select = nn.Conv2d(hidden, radix * channels, 1, groups=groups)
        self.tap = Tap("channel")

    def attend(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return the weighted sum of the splits."""
        splits = self.split(x).unflatten(1, (self.radix, self.channels))
        pooled = splits.mean((3, 4)).sum(1)[:, :, None, None]
        scores = self.select(self.norm(self.squeeze(pooled)).relu()).flatten(1)
        weights = radix_softmax(scores, radix=self.radix, groups=self.groups)
        return merge_branches(splits.unbind(1), self.tap(weights))
