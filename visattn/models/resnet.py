"""ResNet with attention blocks in its residual units."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, pad

from visattn.blocks.registry import create_block
from visattn.models.base import ImageClassifier, parse_block_name

BlockFactory = Callable[[int], nn.Module]
"""Creates an attention block for a number of channels."""


def create_conv(
    in_channels: int, out_channels: int, kernel_size: int, stride: int = 1
) -> nn.Conv2d:
    """Return a padded convolution without bias, with He initialization.

    Example:
        >>> create_conv(3, 5, 3, stride=2)(torch.zeros(1, 3, 7, 11)).shape
        torch.Size([1, 5, 4, 6])
    """
    conv = nn.Conv2d(
        in_channels, out_channels, kernel_size, stride, padding=kernel_size // 2, bias=False
    )
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return conv


class ZeroPadShortcut(nn.Module):
    """Shortcut without parameters: strided subsampling, and zeros in the additional channels.

    Example:
        >>> ZeroPadShortcut(2, 5, 2)(torch.ones(1, 2, 4, 4)).sum((2, 3))
        tensor([[4., 4., 0., 0., 0.]])

    Source:
        He et al. 2016, arXiv:1512.03385, section 3.3, option A.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.extra_channels = out_channels - in_channels
        self.stride = stride

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c2 y2 x2"]:
        """Return the subsampled features with additional channels of zeros."""
        return pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.extra_channels))


class BasicUnit(nn.Module):
    """Basic residual unit: two 3×3 convolutions and a shortcut.

    Args:
        in_channels: Number of input channels.
        out_channels: Number of output channels.
        inner_channels: Number of channels between the convolutions; by default `out_channels`.
        stride: Stride of the first convolution.
        create_block: Creates the attention block before the addition; None for none.
        zero_pad: Whether a shortcut that changes the shape is a `ZeroPadShortcut`.

    Source:
        He et al. 2016, arXiv:1512.03385, figure 5 left.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        inner_channels: int | None = None,
        stride: int = 1,
        create_block: BlockFactory | None = None,
        zero_pad: bool = False,
    ) -> None:
        super().__init__()
        inner = inner_channels or out_channels
        self.conv1 = create_conv(in_channels, inner, 3, stride)
        self.bn1 = nn.BatchNorm2d(inner)
        self.conv2 = create_conv(inner, out_channels, 3)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.attention = create_block(out_channels) if create_block else None
        self.downsample = _create_shortcut(in_channels, out_channels, stride, zero_pad=zero_pad)

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c2 y2 x2"]:
        """Return the output features."""
        residual = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        residual = residual if self.attention is None else self.attention(residual)
        return (residual + (x if self.downsample is None else self.downsample(x))).relu()


class BottleneckUnit(nn.Module):
    """Bottleneck residual unit: 1×1, 3×3 and 1×1 convolutions, and a shortcut.

    The options are those of `BasicUnit`, for the 3×3 convolution, which has `out_channels` / 4
    channels by default.

    Source:
        He et al. 2016, arXiv:1512.03385, figure 5 right; the stride is in the 3×3 convolution, as
        in torchvision, where the paper has it in the first 1×1 convolution.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        inner_channels: int | None = None,
        stride: int = 1,
        create_block: BlockFactory | None = None,
        zero_pad: bool = False,
    ) -> None:
        super().__init__()
        inner = inner_channels or out_channels // 4
        self.conv1 = create_conv(in_channels, inner, 1)
        self.bn1 = nn.BatchNorm2d(inner)
        self.conv2 = create_conv(inner, inner, 3, stride)
        self.bn2 = nn.BatchNorm2d(inner)
        self.conv3 = create_conv(inner, out_channels, 1)
        self.bn3 = nn.BatchNorm2d(out_channels)
        self.attention = create_block(out_channels) if create_block else None
        self.downsample = _create_shortcut(in_channels, out_channels, stride, zero_pad=zero_pad)

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c2 y2 x2"]:
        """Return the output features."""
        residual = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu())).relu()
        residual = self.bn3(self.conv3(residual))
        residual = residual if self.attention is None else self.attention(residual)
        return (residual + (x if self.downsample is None else self.downsample(x))).relu()


def _create_shortcut(
    in_channels: int, out_channels: int, stride: int, *, zero_pad: bool
) -> nn.Module | None:
    if in_channels == out_channels and stride == 1:
        return None
    if zero_pad:
        return ZeroPadShortcut(in_channels, out_channels, stride)
    return nn.Sequential(
        create_conv(in_channels, out_channels, 1, stride), nn.BatchNorm2d(out_channels)
    )


Shortcut = Literal["projection", "padding"]
BlockPosition = Literal["residual", "stage_end"]


class ResNetLayout(NamedTuple):
    """Architecture of a ResNet of some depth."""

    units: tuple[int, ...]
    """Number of residual units per stage."""
    unit: type[BasicUnit | BottleneckUnit]
    width: int
    """Channels of the first layer; the channels of the units double from stage to stage."""
    large: bool
    """Whether the stem downsamples, as for ImageNet."""

    @property
    def expansion(self) -> int:
        """Ratio of the output channels of a unit to its inner channels."""
        return 4 if self.unit is BottleneckUnit else 1


_IMAGENET = {
    18: ResNetLayout((2, 2, 2, 2), BasicUnit, 64, large=True),
    34: ResNetLayout((3, 4, 6, 3), BasicUnit, 64, large=True),
    50: ResNetLayout((3, 4, 6, 3), BottleneckUnit, 64, large=True),
    101: ResNetLayout((3, 4, 23, 3), BottleneckUnit, 64, large=True),
}


class AttentionResNet(ImageClassifier):
    """ResNet with an attention block in each residual unit or at the end of each stage.

    Depths 18, 34, 50 and 101 are the ImageNet variants, built and named as in torchvision. Depths
    6n + 2, such as 20, 32 and 56, are the CIFAR variants: three stages of n units with 16, 32 and
    64 channels. Blocks are placed as in their papers.

    Args:
        class_names: Names of the classes, in the order of the logits.
        depth: Number of layers with weights.
        block: Registered name of the attention block; None or `none` for a plain ResNet.
        stages: Stages that get blocks, counted from 1; None for all.
        position: Position of the blocks: `residual`, in each unit before the addition, or
            `stage_end`, after the last unit of each stage.
        block_kwargs: Further arguments of the blocks, such as `reduction`.
        stem_block: Name of a block applied to the normalized image, such as the Spatial
            Transformer; None or `none` for none.
        stem_block_kwargs: Further arguments of that block.
        stem_width: Number of channels of the first layer; by default 64 for ImageNet variants and
            16 for CIFAR variants.
        pool_size: Output size of the final average pooling; with more than 1, the classifier
            depends on the position of the features.
        stage_widths: Number of inner channels of the units of each stage, instead of the usual
            one, for example to match the parameter count of a network with attention.
        shortcut: Shortcut where the shape changes: a learned `projection` (option B of the paper)
            or zero `padding` without parameters (option A).
        img_size: Height and width of the input images, in pixels.
        mean: Mean of each color channel, in [0, 1]; one value for gray images.
        std: Standard deviation of each color channel, in [0, 1].

    Raises:
        ValueError: If the depth, block, argument or stage is unknown, `pool_size` is below 1, or
            `stage_widths` does not have one entry per stage.

    Example:
        >>> model = AttentionResNet(
        ...     ("cat", "dog"), depth=8, block="se", block_kwargs={"reduction": 4}
        ... )
        >>> model(torch.zeros(1, 3, 32, 32, dtype=torch.uint8)).shape
        torch.Size([1, 2])

    Source:
        He et al. 2016, arXiv:1512.03385, sections 3.3, 4.1 and 4.2.
    """

    def __init__(
        self,
        class_names: Sequence[str],
        *,
        depth: int = 20,
        block: str | None = None,
        stages: Sequence[int] | None = None,
        position: BlockPosition = "residual",
        block_kwargs: Mapping[str, Any] | None = None,
        stem_block: str | None = None,
        stem_block_kwargs: Mapping[str, Any] | None = None,
        stem_width: int | None = None,
        pool_size: int = 1,
        stage_widths: Sequence[int] | None = None,
        shortcut: Shortcut = "projection",
        img_size: tuple[int, int] = (32, 32),
        mean: Sequence[float] = (0.485, 0.456, 0.406),
        std: Sequence[float] = (0.229, 0.224, 0.225),
    ) -> None:
        super().__init__(class_names, img_size, mean, std)
        layout = resnet_layout(depth)
        if pool_size < 1:
            raise ValueError(f"pool_size must be at least 1, got {pool_size}")
        self.pool_size = pool_size
        self.block = parse_block_name(block)
        self.block_kwargs = dict(block_kwargs or {})
        self.stem_block = parse_block_name(stem_block)
        self.stem_block_kwargs = dict(stem_block_kwargs or {})
        self.position: BlockPosition = position
        self.shortcut: Shortcut = shortcut
        self.stem_width = stem_width or layout.width
        self.stages = _check_stages(stages, len(layout.units))
        self.stage_widths = None if stage_widths is None else tuple(stage_widths)
        if self.stage_widths is not None and len(self.stage_widths) != len(layout.units):
            raise ValueError(
                f"stage_widths must have {len(layout.units)} entries, one per stage, got "
                f"{stage_widths}"
            )
        self.input_block = (
            create_block(self.stem_block, len(mean), **self.stem_block_kwargs)
            if self.stem_block
            else nn.Identity()
        )
        stem = create_conv(len(mean), self.stem_width, *((7, 2) if layout.large else (3, 1)))
        self.conv1 = stem
        self.bn1 = nn.BatchNorm2d(self.stem_width)
        self.maxpool = nn.MaxPool2d(3, 2, padding=1) if layout.large else nn.Identity()
        self._stage_names = tuple(f"layer{index + 1}" for index in range(len(layout.units)))
        channels = self.stem_width
        for index, name in enumerate(self._stage_names):
            channels, stage = self._create_stage(layout, index, channels)
            self.add_module(name, stage)
        self.fc = nn.Linear(channels * pool_size**2, len(self.class_names))

    @property
    def head(self) -> nn.Module:
        """The final classification layer."""
        return self.fc

    def classify(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b k"]:
        """Return the logits of normalized images."""
        x = self.maxpool(self.bn1(self.conv1(self.input_block(images))).relu())
        for name in self._stage_names:
            x = self.get_submodule(name)(x)
        return self.fc(adaptive_avg_pool2d(x, self.pool_size).flatten(1))

    def _create_stage(
        self, layout: ResNetLayout, index: int, in_channels: int
    ) -> tuple[int, nn.Sequential]:
        """Return the number of output channels of a stage, and its units."""
        out_channels = self.stem_width * 2**index * layout.expansion
        create_block = self._block_factory if self.block and index + 1 in self.stages else None
        units = nn.Sequential()
        for unit_index in range(layout.units[index]):
            unit = layout.unit(
                out_channels if unit_index else in_channels,
                out_channels,
                inner_channels=self.stage_widths[index] if self.stage_widths else None,
                stride=2 if index and not unit_index else 1,
                create_block=create_block if self.position == "residual" else None,
                zero_pad=self.shortcut == "padding",
            )
            units.append(unit)
        if create_block and self.position == "stage_end":
            units.append(create_block(out_channels))
        return out_channels, units

    @property
    def _block_factory(self) -> BlockFactory:
        return lambda channels: create_block(str(self.block), channels, **self.block_kwargs)


def resnet_layout(depth: int) -> ResNetLayout:
    """Return the architecture of a ResNet.

    Raises:
        ValueError: If there is no ResNet of this depth.

    Example:
        >>> resnet_layout(20).units, resnet_layout(50).units
        ((3, 3, 3), (3, 4, 6, 3))
    """
    if depth in _IMAGENET:
        return _IMAGENET[depth]
    if depth < 8 or depth % 6 != 2:
        raise ValueError(
            f"depth must be one of {', '.join(map(str, _IMAGENET))} (ImageNet) or 6n + 2 "
            f"(CIFAR), such as 8, 20, 32 and 56; got {depth}"
        )
    return ResNetLayout((depth // 6,) * 3, BasicUnit, 16, large=False)


def _check_stages(stages: Sequence[int] | None, count: int) -> tuple[int, ...]:
    """Return the stages that get blocks, counted from 1."""
    if stages is None:
        return tuple(range(1, count + 1))
    if invalid := [stage for stage in stages if not 1 <= stage <= count]:
        raise ValueError(f"stages must be from 1 to {count}, got {invalid[0]}")
    return tuple(stages)
