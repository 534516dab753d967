"""Residual network for small images, with an attention block in each residual unit."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d

from visattn.blocks.registry import create_block
from visattn.models.base import ImageClassifier, parse_block_name

STAGES = 3
"""Number of stages; each next one has twice the channels and half the resolution."""


def _conv(channels: int, out: int, side: int, stride: int = 1) -> nn.Conv2d:
    """Return a padded convolution without bias, with He initialization."""
    conv = nn.Conv2d(channels, out, side, stride, padding=side // 2, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return conv


class ResidualUnit(nn.Module):
    """Two 3 × 3 convolutions, an attention block before the addition, and a shortcut.

    Args:
        channels: Number of input channels.
        out: Number of output channels.
        inner: Number of channels between the convolutions.
        stride: Stride of the first convolution.
        block: Creates the attention block for a number of channels; None for none.

    Source:
        He et al. 2016, arXiv:1512.03385, figure 5 left, with option B of section 3.3.
    """

    def __init__(
        self, channels: int, out: int, *, inner: int, stride: int, block: Any = None
    ) -> None:
        super().__init__()
        self.conv1, self.bn1 = _conv(channels, inner, 3, stride), nn.BatchNorm2d(inner)
        self.conv2, self.bn2 = _conv(inner, out, 3), nn.BatchNorm2d(out)
        self.attention = block(out) if block else None
        changes = channels != out or stride > 1
        projection = (_conv(channels, out, 1, stride), nn.BatchNorm2d(out)) if changes else ()
        self.downsample = nn.Sequential(*projection)

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c2 y2 x2"]:
        """Return the output features."""
        residual = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        residual = residual if self.attention is None else self.attention(residual)
        return (residual + self.downsample(x)).relu()


class AttentionResNet(ImageClassifier):
    """ResNet of 6n + 2 layers for small images, with an attention block in each residual unit.

    It has three stages of n units with 16, 32 and 64 channels. For ImageNet networks, insert blocks
    into those of torchvision or timm: `visattn.insert`, or `TimmClassifier` in a config.

    Args:
        class_names: Names of the classes, in the order of the logits.
        depth: Number of layers with weights: 8, 20, 32, 56, ...
        block: Registered name of the attention block; None or `none` for a plain ResNet.
        block_kwargs: Further arguments of the blocks, such as `reduction`.
        stem_block: Name of a block applied to the normalized image, such as the Spatial
            Transformer; None or `none` for none.
        stem_block_kwargs: Further arguments of that block.
        stem_width: Number of channels of the first stage.
        pool_size: Output size of the final average pooling; with more than 1, the classifier
            depends on the position of the features.
        stage_widths: Number of inner channels of the units of each stage, instead of the usual
            one, for example to match the parameter count of a network with attention.
        img_size: Height and width of the input images, in pixels.
        mean: Mean of each color channel, in [0, 1]; one value for gray images.
        std: Standard deviation of each color channel, in [0, 1].

    Raises:
        ValueError: If the depth, a block or an argument of it is unknown.

    Example:
        >>> model = AttentionResNet(
        ...     ("cat", "dog"), depth=8, block="se", block_kwargs={"reduction": 4}
        ... )
        >>> model(torch.zeros(1, 3, 32, 32, dtype=torch.uint8)).shape
        torch.Size([1, 2])

    Source:
        He et al. 2016, arXiv:1512.03385, section 4.2.
    """

    def __init__(
        self,
        class_names: Sequence[str],
        *,
        depth: int = 20,
        block: str | None = None,
        block_kwargs: Mapping[str, Any] | None = None,
        stem_block: str | None = None,
        stem_block_kwargs: Mapping[str, Any] | None = None,
        stem_width: int = 16,
        pool_size: int = 1,
        stage_widths: Sequence[int] | None = None,
        img_size: tuple[int, int] = (32, 32),
        mean: Sequence[float] = (0.485, 0.456, 0.406),
        std: Sequence[float] = (0.229, 0.224, 0.225),
    ) -> None:
        super().__init__(class_names, img_size, mean, std)
        if depth < 8 or depth % 6 != 2 or depth == 50:  # depth 50 is the ImageNet network
            raise ValueError(
                f"depth must be 6n + 2, such as 8, 20, 32 and 56, got {depth}. For ImageNet "
                "networks see visattn.insert"
            )
        self.pool_size = pool_size
        self.block = parse_block_name(block)
        self.block_kwargs = dict(block_kwargs or {})
        self.stem_block = parse_block_name(stem_block)
        self.stem_block_kwargs = dict(stem_block_kwargs or {})
        self.input_block = (
            create_block(self.stem_block, len(mean), **self.stem_block_kwargs)
            if self.stem_block
            else nn.Identity()
        )
        self.conv1, self.bn1 = _conv(len(mean), stem_width, 3), nn.BatchNorm2d(stem_width)
        widths = [stem_width * 2**stage for stage in range(STAGES)]
        inner_widths = stage_widths or widths
        self.layer1, self.layer2, self.layer3 = (
            nn.Sequential(
                *(
                    ResidualUnit(
                        widths[stage] if index or not stage else widths[stage - 1],
                        widths[stage],
                        inner=inner_widths[stage],
                        stride=2 if stage and not index else 1,
                        block=self._create_block if self.block else None,
                    )
                    for index in range(depth // 6)
                )
            )
            for stage in range(STAGES)
        )
        self.fc = nn.Linear(widths[-1] * pool_size**2, len(self.class_names))

    def _create_block(self, channels: int) -> nn.Module:
        return create_block(str(self.block), channels, **self.block_kwargs)

    @property
    def head(self) -> nn.Module:
        """The final classification layer."""
        return self.fc

    def classify(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b k"]:
        """Return the logits of normalized images."""
        x = self.bn1(self.conv1(self.input_block(images))).relu()
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.fc(adaptive_avg_pool2d(x, self.pool_size).flatten(1))
