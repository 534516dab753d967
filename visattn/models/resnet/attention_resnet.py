"""Residual networks with any attention block in any stage."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d

from visattn.blocks.registry import create
from visattn.models.classifier import ImageClassifier, block_name
from visattn.models.resnet.units import BasicUnit, BottleneckUnit, Maker, convolution

Shortcut = Literal["projection", "padding"]
At = Literal["residual", "stage_end"]


class Layout(NamedTuple):
    """How a residual network of some depth is laid out."""

    units: tuple[int, ...]
    """Residual units per stage."""
    unit: type[BasicUnit | BottleneckUnit]
    width: int
    """Of the first layer; the width of the units doubles from stage to stage."""
    large: bool
    """Whether the first layer thins out large images."""

    @property
    def expansion(self) -> int:
        """How much wider a unit is than its stage's number says."""
        return 4 if self.unit is BottleneckUnit else 1


_LARGE = {
    18: Layout((2, 2, 2, 2), BasicUnit, 64, large=True),
    34: Layout((3, 4, 6, 3), BasicUnit, 64, large=True),
    50: Layout((3, 4, 6, 3), BottleneckUnit, 64, large=True),
    101: Layout((3, 4, 23, 3), BottleneckUnit, 64, large=True),
}


class AttentionResNet(ImageClassifier):
    """A residual network with an attention block in each residual unit, or at the end of stages.

    Depths 18, 34, 50 and 101 are those for large images, built and named as in torchvision.
    Depths 6n + 2, as 20, 32 and 56, are those for small images: three stages of n units, 16, 32
    and 64 wide. Each block stands as its paper has it; nothing is added to it.

    Args:
        classes: Names of the classes, in the order of the scores.
        depth: Layers with weights, as in the network's name.
        block: Name of the attention block in the catalog; None or `none` for a plain network.
        stages: The stages that get blocks, the first of them 1; None for all.
        at: Where the blocks stand: in each unit before the addition (`residual`), or behind the
            last unit of each stage (`stage_end`).
        options: What each block takes besides its width, such as `reduction`.
        first: A block that sees the normalized image before the network does, such as the
            Spatial Transformer, which moves it; None or `none` for none.
        first_options: What that block takes.
        width: Of the first layer; by default 64 for large images, 16 for small ones.
        cells: Cells along each side into which the last features are averaged; with more than 1 the
            network minds where on the image things lie.
        inner: Width inside the units of each stage, in place of the usual one: a way to give a
            plain network a few more parameters.
        shortcut: What a shortcut that changes the shape does: a learnt `projection`, or `padding`
            with zeros, which has no parameters (options B and A of the paper).
        size: Height and width, in pixels, of the images it is made for.
        mean: Mean of each color channel, in [0, 1]; one for gray images.
        std: Spread of each color channel, in [0, 1].

    Raises:
        ValueError: If there is no network of that depth, no such block, option or stage, no cell,
            or if `inner` has not one width per stage.

    Example:
        >>> model = AttentionResNet(("cat", "dog"), depth=8, block="se", options={"reduction": 4})
        >>> model(torch.zeros(1, 3, 32, 32, dtype=torch.uint8)).shape
        torch.Size([1, 2])

    Source:
        He et al. 2016, arXiv:1512.03385, sections 3.3, 4.1 and 4.2.
    """

    def __init__(
        self,
        classes: Sequence[str],
        *,
        depth: int = 20,
        block: str | None = None,
        stages: Sequence[int] | None = None,
        at: At = "residual",
        options: Mapping[str, Any] | None = None,
        first: str | None = None,
        first_options: Mapping[str, Any] | None = None,
        width: int | None = None,
        cells: int = 1,
        inner: Sequence[int] | None = None,
        shortcut: Shortcut = "projection",
        size: tuple[int, int] = (32, 32),
        mean: Sequence[float] = (0.485, 0.456, 0.406),
        std: Sequence[float] = (0.229, 0.224, 0.225),
    ) -> None:
        super().__init__(classes, size, mean, std)
        layout = layout_of(depth)
        if cells < 1:
            raise ValueError(f"cells must be at least 1, got {cells}")
        self.cells = cells
        self.depth, self.block, self.first = depth, block_name(block), block_name(first)
        self.options, self.first_options = dict(options or {}), dict(first_options or {})
        self.at: At = at
        self.shortcut: Shortcut = shortcut
        self.width = width or layout.width
        self.stages = _chosen(stages, len(layout.units))
        self.inner = None if inner is None else tuple(inner)
        if self.inner is not None and len(self.inner) != len(layout.units):
            raise ValueError(f"inner needs {len(layout.units)} widths, one per stage, got {inner}")
        self.looks = (
            create(self.first, len(mean), **self.first_options) if self.first else nn.Identity()
        )
        stem = convolution(len(mean), self.width, *((7, 2) if layout.large else (3, 1)))
        self.conv1, self.bn1 = stem, nn.BatchNorm2d(self.width)
        self.maxpool = nn.MaxPool2d(3, 2, padding=1) if layout.large else nn.Identity()
        self._layers = tuple(f"layer{number + 1}" for number in range(len(layout.units)))
        came = self.width
        for number, name in enumerate(self._layers):
            came, stage = self._stage(layout, number, came)
            self.add_module(name, stage)
        self.fc = nn.Linear(came * cells**2, len(self.classes))

    @property
    def head(self) -> nn.Module:
        """The last layer, the one that knows the classes."""
        return self.fc

    def classify(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b k"]:
        """Return the score of each class, before softmax, for normalized images."""
        x = self.maxpool(self.bn1(self.conv1(self.looks(images))).relu())
        for name in self._layers:
            x = self.get_submodule(name)(x)
        return self.fc(adaptive_avg_pool2d(x, self.cells).flatten(1))

    def _stage(self, layout: Layout, number: int, came: int) -> tuple[int, nn.Sequential]:
        """Return the width that goes out of a stage, and its units."""
        width = self.width * 2**number * layout.expansion
        attend = self._attend if self.block and number + 1 in self.stages else None
        units = nn.Sequential()
        for index in range(layout.units[number]):
            unit = layout.unit(
                width if index else came,
                width,
                inner=self.inner[number] if self.inner else None,
                stride=2 if number and not index else 1,
                attend=attend if self.at == "residual" else None,
                padded=self.shortcut == "padding",
            )
            units.append(unit)
        if attend and self.at == "stage_end":
            units.append(attend(width))
        return width, units

    @property
    def _attend(self) -> Maker:
        return lambda channels: create(str(self.block), channels, **self.options)


def layout_of(depth: int) -> Layout:
    """Return how the residual network of a depth is laid out.

    Raises:
        ValueError: If there is none.

    Example:
        >>> layout_of(20).units, layout_of(50).units
        ((3, 3, 3), (3, 4, 6, 3))
    """
    if depth in _LARGE:
        return _LARGE[depth]
    if depth < 8 or depth % 6 != 2:
        raise ValueError(
            f"depth must be one of {', '.join(map(str, _LARGE))} for large images or 6n + 2 for "
            f"small ones, such as 8, 20, 32 and 56; got {depth}"
        )
    return Layout((depth // 6,) * 3, BasicUnit, 16, large=False)


def _chosen(stages: Sequence[int] | None, count: int) -> tuple[int, ...]:
    """Return the numbers of the stages that get blocks."""
    if stages is None:
        return tuple(range(1, count + 1))
    if wrong := [stage for stage in stages if not 1 <= stage <= count]:
        raise ValueError(f"stages are counted from 1 to {count}, got {wrong[0]}")
    return tuple(stages)
