"""U-Net decoder on an image encoder with several stages, with optional attention blocks."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import interpolate

from visattn.blocks.attention_gate import AttentionGate
from visattn.blocks.registry import block_class, create_block
from visattn.models.base import DenseModel, ImageEncoder, Images, parse_block_name


class UNetOutput(NamedTuple):
    """Logits of the pixels and the gates of the skip connections."""

    logits: Float[Tensor, "b k y x"]
    gates: tuple[Float[Tensor, "b _ _"], ...]
    """One gate per skip connection, from the coarsest to the finest; empty without gates."""


class UNetLevel(nn.Module):
    """One level of a U-Net decoder: upsample, concatenate the skip connection, two convolutions.

    The additive attention gate (`gate`) multiplies the skip connection, with the coarser features
    as gating signal. Other blocks are applied twice: to the concatenation, and to the output.

    Example:
        >>> level = UNetLevel(16, 8, 4, block="gate")
        >>> output, gate = level(torch.zeros(1, 16, 3, 5), torch.zeros(1, 8, 6, 10))
        >>> output.shape, gate.shape
        (torch.Size([1, 4, 6, 10]), torch.Size([1, 6, 10]))
    """

    def __init__(
        self,
        in_channels: int,
        skip_channels: int,
        channels: int,
        *,
        block: str | None = None,
        block_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        arguments = dict(block_kwargs or {})
        width = in_channels + skip_channels
        gated = block is not None and block_class(block) is AttentionGate
        self.gate = (
            AttentionGate(skip_channels, **{"signal_channels": in_channels, **arguments})
            if gated
            else None
        )
        self.input_block, self.output_block = (
            nn.Identity() if block is None or gated else create_block(block, size, **arguments)
            for size in (width, channels)
        )
        layers: list[nn.Module] = []
        for before in (width, channels):
            conv = nn.Conv2d(before, channels, 3, padding=1, bias=False)
            layers += [conv, nn.BatchNorm2d(channels), nn.ReLU()]
        self.convolutions = nn.Sequential(*layers)

    def forward(
        self, x: Float[Tensor, "b c _y _x"], skip: Float[Tensor, "b s y x"]
    ) -> tuple[Float[Tensor, "b d y x"], Float[Tensor, "b y x"] | None]:
        """Return the features at the size of the skip connection, and its gate."""
        gate = None
        if self.gate is not None:
            gate = self.gate.gate(skip, x)
            skip = skip * gate[:, None]
        # `nearest` rounds down, which shifts features if sizes are not multiples.
        enlarged = interpolate(x, (skip.shape[2], skip.shape[3]), mode="nearest-exact")
        merged = self.input_block(torch.cat((enlarged, skip), 1))
        return self.output_block(self.convolutions(merged)), gate


class UNet(DenseModel):
    """U-Net for segmentation: a decoder with skip connections on the stages of an image encoder.

    Logits are computed at the size of the finest stage and enlarged bilinearly to the input.

    Args:
        class_names: Names of the classes of pixels; the first one is the background, if there is
            one.
        encoder: Image encoder with grids of at least two sizes: `TimmEncoder` with several stages
            (`stage: [0, 1, 2, 3, 4]`), or `SmallEncoder`.
        decoder_channels: Channels of the decoder's levels, the finest last; if the encoder has
            fewer levels, the last ones are used.
        block: Registered name of an attention block; None or `none` for none. `gate` puts additive
            attention gates on the skip connections (Attention U-Net); every other block is applied
            to the input and to the output of each level, as is usual for `scse`.
        block_kwargs: Further arguments of the blocks, such as `reduction`.

    Raises:
        ValueError: If the encoder has no grids of several sizes, or the block or an argument of it
            is unknown.

    Example:
        >>> from visattn.models import SmallEncoder
        >>> model = UNet(("background", "cat"), SmallEncoder((24, 40), channels=8), block="gate")
        >>> output = model.segment(torch.zeros(1, 3, 24, 40, dtype=torch.uint8))
        >>> output.logits.shape, [tuple(gate.shape[1:]) for gate in output.gates]
        (torch.Size([1, 2, 24, 40]), [(6, 10), (12, 20)])

    Source:
        Ronneberger et al. 2015, arXiv:1505.04597; attention gates Oktay et al. 2018,
        arXiv:1804.03999, but here the signal of the coarsest gate has no separate convolution, and
        the finest skip connection is gated too; scSE Roy et al. 2018, arXiv:1803.02579.
    """

    def __init__(
        self,
        class_names: Sequence[str],
        encoder: ImageEncoder,
        *,
        decoder_channels: Sequence[int] = (96, 64, 48, 32),
        block: str | None = None,
        block_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(class_names, encoder)
        self.decoder_channels = tuple(decoder_channels)
        self.block = parse_block_name(block)
        self.block_kwargs = dict(block_kwargs or {})
        stages = _pyramid_channels(encoder)
        widths = (stages[0], *self.decoder_channels[1 - len(stages) :])
        self.levels = nn.ModuleList(
            UNetLevel(before, skip, after, block=self.block, block_kwargs=self.block_kwargs)
            for (before, after), skip in zip(pairwise(widths), stages[1:], strict=True)
        )
        self.head = nn.Conv2d(widths[-1], len(self.class_names), 1)

    def forward(self, images: Images) -> Float[Tensor, "b k y x"]:
        """Return the logits of each pixel, for images of `img_size`."""
        return self.segment(images).logits

    def segment(self, images: Images) -> UNetOutput:
        """Return the logits of each pixel and the gates of the skip connections."""
        x, *skips = sorted(self.encoder.feature_pyramid(images), key=_num_cells)
        gates: list[Tensor] = []
        for level, skip in zip(self.levels, skips, strict=True):
            x, gate = level(x, skip)
            gates += [] if gate is None else [gate]
        logits = interpolate(self.head(x), self.img_size, mode="bilinear")
        return UNetOutput(logits, tuple(gates))


def _num_cells(grid: Float[Tensor, "b c y x"]) -> int:
    return grid.shape[2] * grid.shape[3]


@torch.no_grad()
def _pyramid_channels(encoder: ImageEncoder) -> list[int]:
    """Return the channels of the stages of an encoder, the coarsest first."""
    training = encoder.training
    grids = encoder.eval().feature_pyramid(torch.zeros(1, 3, *encoder.img_size))
    encoder.train(training)
    grids = sorted(grids, key=_num_cells)
    sizes = [tuple(grid.shape[2:]) for grid in grids]
    if len(set(sizes)) < max(2, len(sizes)):
        raise ValueError(
            "a U-Net needs an encoder whose stages have grids of different sizes, got "
            f"{', '.join(f'{rows} x {columns}' for rows, columns in sizes)}; set several stages "
            "(TimmEncoder: stage=[0, 1, 2, 3, 4])"
        )
    return [grid.shape[1] for grid in grids]
