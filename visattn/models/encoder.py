"""From images to a grid of features."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn
from torch.nn.functional import interpolate

from visattn.models.normalization import check_normalization, normalized


class ImageEncoder(nn.Module, ABC):
    """A network that turns RGB images into a grid of features.

    uint8 images, 0 to 255, are normalized inside; float images are taken as normalized with
    `mean` and `std`, as every PyTorch model takes them.

    It works in two steps, and `encoder(images)` equals `encoder.joined(encoder.grids(images))`.
    The first is the costly one; where the encoder is `frozen`, what it gives may be kept. The
    second lays the grids of several stages onto the finest of them.

    Args:
        size: Height and width, in pixels, of the images it is made for.
        mean: Mean of each color channel, in [0, 1].
        std: Spread of each color channel, in [0, 1].
    """

    channels: int
    """Width of a feature."""
    shift: Tensor
    scale: Tensor
    grid: tuple[int, int]
    """Rows and columns of features for an image of the right size."""

    def __init__(self, size: tuple[int, int], mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        check_normalization(size, mean, std, (3,))
        self.size = (int(size[0]), int(size[1]))
        self.mean = tuple(map(float, mean))
        self.std = tuple(map(float, std))
        self.register_buffer("shift", torch.tensor(mean).view(3, 1, 1) * 255, persistent=False)
        self.register_buffer("scale", torch.tensor(std).view(3, 1, 1) * 255, persistent=False)

    @property
    def frozen(self) -> bool:
        """Whether nothing that `grids` does is trained, so that what it gives may be kept."""
        return False

    @property
    def stage_shapes(self) -> tuple[tuple[int, int, int], ...]:
        """Channels, rows and columns of each of the `grids` of an image."""
        return ((self.channels, *self.grid),)

    def forward(
        self, images: UInt8[Tensor, "b 3 y x"] | Float[Tensor, "b 3 y x"]
    ) -> Float[Tensor, "b c gy gx"]:
        """Return the grid of features of each image; it raises what `grids` raises."""
        return self.joined(self.grids(images))

    def grids(
        self, images: UInt8[Tensor, "b 3 y x"] | Float[Tensor, "b 3 y x"]
    ) -> tuple[Float[Tensor, "b _ _ _"], ...]:
        """Return the grid of each stage, for each image.

        Args:
            images: uint8, or floats that are normalized.

        Raises:
            TypeError: If the images are neither uint8 nor floats.
            ValueError: If they are not of the size that the encoder is made for, or floats are
                pixels in 0 to 255.
        """
        if tuple(images.shape[-2:]) != self.size:
            raise ValueError(
                f"images must be {self.size} (height, width), got {tuple(images.shape[-2:])}; "
                "build the encoder for that size, or fit the images to it"
            )
        return self.features(self.normalized(images))

    def joined(self, grids: Sequence[Float[Tensor, "b _ _ _"]]) -> Float[Tensor, "b c gy gx"]:
        """Return the grids of an image's stages as one, in the precision of the encoder.

        Coarser grids are laid onto the finest one: each feature is repeated where the finest grid
        has a whole number of places for it; elsewhere features are interpolated. Their channels
        then stand behind each other.

        Args:
            grids: As `grids` gives them; also such as were kept in a shorter precision.

        Raises:
            ValueError: If they are not of the shapes in `stage_shapes`.
        """
        shapes = tuple(tuple(grid.shape[1:]) for grid in grids)
        if shapes != self.stage_shapes:
            raise ValueError(
                f"grids must be of the shapes {self.stage_shapes} (channels, rows, columns), got "
                f"{shapes}; they come from another encoder, or from another stage of it"
            )
        finished = self.finished([grid.to(self.shift.dtype) for grid in grids])
        laid = [_laid(grid, self.grid) for grid in finished]
        return laid[0] if len(laid) == 1 else torch.cat(laid, 1)

    def finished(
        self, grids: Sequence[Float[Tensor, "b _ _ _"]]
    ) -> Sequence[Float[Tensor, "b _ _ _"]]:
        """Return the grids after those layers that are trained; without such, as they are."""
        return grids

    def kept_weights(self) -> dict[str, Tensor]:
        """Return the weights and statistics that `grids` depends on."""
        return dict(self.state_dict())

    def normalized(
        self, images: UInt8[Tensor, "b 3 y x"] | Float[Tensor, "b 3 y x"]
    ) -> Float[Tensor, "b 3 y x"]:
        """Return images as the network wants them; floats are normalized already.

        Raises:
            TypeError: If the images are neither uint8 nor floats.
            ValueError: If floats are pixels in 0 to 255.
        """
        return normalized(images, self.shift, self.scale)

    @abstractmethod
    def features(self, images: Float[Tensor, "b 3 y x"]) -> tuple[Float[Tensor, "b _ _ _"], ...]:
        """Return the grid of each stage, for normalized images."""


class SmallEncoder(ImageEncoder):
    """A small CNN to be trained from scratch: three strided convolutions and a residual block.

    One feature stands for 8×8 pixels and sees 54×54 around them, so that a map stays local. The
    strided kernels are even: with 3×3 ones every feature would look half a cell up and to the
    left of where it is drawn.

    Args:
        size: Height and width, in pixels, of the images it is made for; multiples of 8.
        channels: Width of a feature; the earlier layers have a quarter and a half of it.
        coordinates: How loudly each feature says where it lies: a learnt projection of its height
            and width, in [-1, 1], times this number. At 4 "left" and "above" are learnt far sooner
            than at 1; at 0 nothing is said.
        mean: Mean of each color channel, in [0, 1].
        std: Spread of each color channel, in [0, 1].

    Example:
        >>> encoder = SmallEncoder((40, 56), channels=16)
        >>> encoder(torch.zeros(1, 3, 40, 56, dtype=torch.uint8)).shape
        torch.Size([1, 16, 5, 7])
    """

    def __init__(
        self,
        size: tuple[int, int] = (64, 64),
        *,
        channels: int = 128,
        coordinates: float = 4.0,
        mean: Sequence[float] = (0.5, 0.5, 0.5),
        std: Sequence[float] = (0.25, 0.25, 0.25),
    ) -> None:
        super().__init__(size, mean, std)
        if channels < 4 or channels % 4 or size[0] % 8 or size[1] % 8:
            raise ValueError(
                "channels must be a multiple of 4 and both sides of size multiples of 8, "
                f"got channels={channels}, size={size}"
            )
        self.channels = channels
        self.grid = (self.size[0] // 8, self.size[1] // 8)
        self.coordinates = coordinates
        self.stem = nn.Sequential(
            _halving(3, channels // 4),
            _halving(channels // 4, channels // 2),
            _halving(channels // 2, channels),
        )
        self.refine = nn.Sequential(_keeping(channels), _keeping(channels))
        self.place = nn.Conv2d(2, channels, 1, bias=False) if coordinates else nn.Identity()

    def features(self, images: Float[Tensor, "b 3 y x"]) -> tuple[Float[Tensor, "b _ _ _"], ...]:
        """Return the one grid of features of normalized images."""
        stem = self.stem(images)
        grid = stem + self.refine(stem)
        if self.coordinates:
            grid = grid + self.place(self.coordinates * _places(grid))
        return (grid,)


def _halving(channels: int, out: int) -> nn.Sequential:
    return _normed(nn.Conv2d(channels, out, 4, stride=2, padding=1, bias=False))


def _keeping(channels: int) -> nn.Sequential:
    return _normed(nn.Conv2d(channels, channels, 3, padding=1, bias=False))


def _normed(convolution: nn.Conv2d) -> nn.Sequential:
    return nn.Sequential(convolution, nn.BatchNorm2d(convolution.out_channels), nn.ReLU())


def _laid(grid: Float[Tensor, "b c y x"], size: tuple[int, int]) -> Float[Tensor, "b c y2 x2"]:
    """Return a grid of another size in which every feature lies where it lay."""
    if tuple(grid.shape[-2:]) == size:
        return grid
    if size[0] % grid.shape[-2] == 0 and size[1] % grid.shape[-1] == 0:
        return interpolate(grid, size, mode="nearest-exact")
    return interpolate(grid, size, mode="bilinear", align_corners=False)


def _places(grid: Float[Tensor, "b c y x"]) -> Float[Tensor, "1 2 y x"]:
    """Return the height and width of each cell of a grid, -1 to 1."""
    y = torch.linspace(-1, 1, grid.shape[-2], device=grid.device, dtype=grid.dtype)
    x = torch.linspace(-1, 1, grid.shape[-1], device=grid.device, dtype=grid.dtype)
    return torch.stack(torch.meshgrid(y, x, indexing="ij")).unsqueeze(0)
