"""Image encoders: networks that map images to a grid of features."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn
from torch.nn.functional import interpolate

from visattn.geometry.placement import GridPlacement
from visattn.models.base import Configurable
from visattn.models.normalization import check_normalization, normalize_images
from visattn.recording.probe_cache import probe_grids


class ImageEncoder(Configurable, nn.Module, ABC):
    """Base class of networks that map RGB images to a grid of features.

    uint8 images in 0 to 255 are normalized inside; float images must be normalized with `mean` and
    `std` already, as for every PyTorch model.

    `encoder(images)` equals `encoder.merge_stages(encoder.stage_features(images))`. The first step
    is the expensive one; if the encoder is `frozen`, its output can be cached. The second step
    resizes the grids of several stages to the finest of them and concatenates their channels.

    Args:
        img_size: Height and width of the input images, in pixels.
        mean: Mean of each color channel, in [0, 1].
        std: Spread of each color channel, in [0, 1].
    """

    pipeline_tag = "image-feature-extraction"
    channels: int
    """Number of feature channels."""
    shift: Tensor
    scale: Tensor
    grid_size: tuple[int, int]
    """Rows and columns of the feature grid."""

    def __init__(
        self, img_size: tuple[int, int], mean: Sequence[float], std: Sequence[float]
    ) -> None:
        super().__init__()
        check_normalization(img_size, mean, std, (3,))
        self.img_size = (int(img_size[0]), int(img_size[1]))
        self.mean = tuple(map(float, mean))
        self.std = tuple(map(float, std))
        self.register_buffer("shift", torch.tensor(mean).view(3, 1, 1) * 255, persistent=False)
        self.register_buffer("scale", torch.tensor(std).view(3, 1, 1) * 255, persistent=False)

    @property
    def frozen(self) -> bool:
        """Whether `stage_features` has no trainable parameters, so that they can be cached."""
        return False

    @property
    def stage_shapes(self) -> tuple[tuple[int, int, int], ...]:
        """Channels, rows and columns of each of the `stage_features` of an image."""
        return ((self.channels, *self.grid_size),)

    @property
    def placement(self) -> GridPlacement | None:
        """Where the cells of the feature grid lie on the images; None if that cannot be followed.

        Maps over these features, and the boxes that they are compared with, are placed by it.

        Example:
            >>> SmallEncoder((40, 56), channels=16).placement.extent
            (0.0, 0.0, 56.0, 40.0)
        """

        def forward(images: Tensor) -> Tensor:  # without the checks of `normalize`, which read them
            return self.merge_stages(self.forward_features(images))

        traced = probe_grids(self, self.img_size, 3, forward, cache_key="features")
        return traced.output("", self.grid_size)

    def boxes_to_cells(self, boxes: Float[Tensor, "*n 4"]) -> Float[Tensor, "*n 4"]:
        """Map boxes relative to the images to boxes relative to the feature grid.

        Args:
            boxes: Left, top, right, bottom as fractions of the image.
        """
        placement = self.placement
        return boxes if placement is None else placement.boxes_to_cells(boxes)

    def forward(
        self, images: UInt8[Tensor, "b 3 y x"] | Float[Tensor, "b 3 y x"]
    ) -> Float[Tensor, "b c gy gx"]:
        """Return the feature grid of each image; raises what `stage_features` raises."""
        return self.merge_stages(self.stage_features(images))

    def stage_features(
        self, images: UInt8[Tensor, "b 3 y x"] | Float[Tensor, "b 3 y x"]
    ) -> tuple[Float[Tensor, "b _ _ _"], ...]:
        """Return the feature grid of each stage.

        Args:
            images: uint8, or normalized floats.

        Raises:
            TypeError: If the images are neither uint8 nor floats.
            ValueError: If the image size is not `img_size`, or floats are pixels in 0 to 255.
        """
        if tuple(images.shape[-2:]) != self.img_size:
            raise ValueError(
                f"images must be {self.img_size} (height, width), got {tuple(images.shape[-2:])}; "
                "build the encoder for that size, or resize the images"
            )
        return self.forward_features(self.normalize(images))

    def merge_stages(self, grids: Sequence[Float[Tensor, "b _ _ _"]]) -> Float[Tensor, "b c gy gx"]:
        """Resize the grids of all stages to the finest one and concatenate their channels.

        A coarser grid is repeated where the finest grid is an integer multiple of it, and
        interpolated bilinearly otherwise.

        Args:
            grids: The `stage_features`; cached ones may have a lower precision.

        Raises:
            ValueError: If their shapes are not `stage_shapes`.
        """
        shapes = tuple(tuple(grid.shape[1:]) for grid in grids)
        if shapes != self.stage_shapes:
            raise ValueError(
                f"grids must have the shapes {self.stage_shapes} (channels, rows, columns), got "
                f"{shapes}; they come from another encoder or from other stages"
            )
        features = self.run_trainable_stages([grid.to(self.shift.dtype) for grid in grids])
        resized = [_resize(grid, self.grid_size) for grid in features]
        return resized[0] if len(resized) == 1 else torch.cat(resized, 1)

    def run_trainable_stages(
        self, grids: Sequence[Float[Tensor, "b _ _ _"]]
    ) -> Sequence[Float[Tensor, "b _ _ _"]]:
        """Apply the trainable layers that follow the frozen ones; by default there are none."""
        return grids

    def feature_pyramid(
        self, images: UInt8[Tensor, "b 3 y x"] | Float[Tensor, "b 3 y x"]
    ) -> tuple[Float[Tensor, "b _ _ _"], ...]:
        """Return the feature grid of each stage after all layers, for decoders of dense models.

        By default these are the grids that `merge_stages` merges; raises what `stage_features`
        raises.
        """
        grids = [grid.to(self.shift.dtype) for grid in self.stage_features(images)]
        return tuple(self.run_trainable_stages(grids))

    def stage_feature_weights(self) -> dict[str, Tensor]:
        """Return the parameters and buffers that `stage_features` depends on."""
        return dict(self.state_dict())

    def normalize(
        self, images: UInt8[Tensor, "b 3 y x"] | Float[Tensor, "b 3 y x"]
    ) -> Float[Tensor, "b 3 y x"]:
        """Normalize uint8 images; floats are normalized already.

        Raises:
            TypeError: If the images are neither uint8 nor floats.
            ValueError: If floats are pixels in 0 to 255.
        """
        return normalize_images(images, self.shift, self.scale)

    @abstractmethod
    def forward_features(
        self, images: Float[Tensor, "b 3 y x"]
    ) -> tuple[Float[Tensor, "b _ _ _"], ...]:
        """Return the feature grid of each stage, for normalized images."""


class SmallEncoder(ImageEncoder):
    """Small CNN to train from scratch: three strided convolutions and a residual block.

    The stride is 8 and the receptive field 54×54 pixels, so that attention maps stay local; with
    `stride=4` the third convolution has no stride, and the field is 34×34. The strided kernels are
    even: with 3×3 kernels the receptive field of each feature would be half a cell above and to the
    left of the place where the map draws it.

    Args:
        img_size: Height and width of the input images, in pixels; multiples of the stride.
        channels: Number of feature channels; earlier layers have a quarter and a half of it.
        coord_scale: Scale of the coordinates in [-1, 1] whose learned projection is added to each
            feature. With 4, "left" and "above" are learned much sooner than with 1; with 0 there
            are no coordinates.
        stride: Pixels per feature: 8, or 4 for a finer grid.
        mean: Mean of each color channel, in [0, 1].
        std: Spread of each color channel, in [0, 1].

    Example:
        >>> encoder = SmallEncoder((40, 56), channels=16)
        >>> encoder(torch.zeros(1, 3, 40, 56, dtype=torch.uint8)).shape
        torch.Size([1, 16, 5, 7])
    """

    def __init__(
        self,
        img_size: tuple[int, int] = (64, 64),
        *,
        channels: int = 128,
        coord_scale: float = 4.0,
        stride: Literal[4, 8] = 8,
        mean: Sequence[float] = (0.5, 0.5, 0.5),
        std: Sequence[float] = (0.25, 0.25, 0.25),
    ) -> None:
        super().__init__(img_size, mean, std)
        if stride not in (4, 8):
            raise ValueError(f"stride must be 4 or 8, got {stride}")
        if channels < 4 or channels % 4 or img_size[0] % stride or img_size[1] % stride:
            raise ValueError(
                "channels must be a multiple of 4 and both sides of img_size multiples of "
                f"{stride}, got channels={channels}, img_size={img_size}"
            )
        self.channels, self.stride = channels, stride
        self.grid_size = (self.img_size[0] // stride, self.img_size[1] // stride)
        self.coord_scale = coord_scale
        self.stem = nn.Sequential(
            _downsampling_conv(3, channels // 4),
            _downsampling_conv(channels // 4, channels // 2),
            (_downsampling_conv if stride == 8 else _same_size_conv)(channels // 2, channels),
        )
        self.refine = nn.Sequential(*(_same_size_conv(channels, channels) for _ in range(2)))
        self.coord_proj = nn.Conv2d(2, channels, 1, bias=False) if coord_scale else nn.Identity()

    def forward_features(
        self, images: Float[Tensor, "b 3 y x"]
    ) -> tuple[Float[Tensor, "b _ _ _"], ...]:
        """Return the single feature grid of normalized images."""
        return self._stages(images)[-1:]

    def feature_pyramid(
        self, images: UInt8[Tensor, "b 3 y x"] | Float[Tensor, "b 3 y x"]
    ) -> tuple[Float[Tensor, "b _ _ _"], ...]:
        """Return the grids at strides 2, 4 and 8, or 2 and 4; the last is the feature grid."""
        return self._stages(self.normalize(images))

    def _stages(self, images: Float[Tensor, "b 3 y x"]) -> tuple[Float[Tensor, "b _ _ _"], ...]:
        half = self.stem[0](images)
        quarter = self.stem[1](half)
        stem = self.stem[2](quarter)
        grid = stem + self.refine(stem)
        if self.coord_scale:
            grid = grid + self.coord_proj(self.coord_scale * cell_coordinates(grid))
        return (half, quarter, grid) if self.stride == 8 else (half, grid)


def _downsampling_conv(channels: int, out: int) -> nn.Sequential:
    return _conv_bn_relu(nn.Conv2d(channels, out, 4, stride=2, padding=1, bias=False))


def _same_size_conv(channels: int, out: int) -> nn.Sequential:
    return _conv_bn_relu(nn.Conv2d(channels, out, 3, padding=1, bias=False))


def _conv_bn_relu(convolution: nn.Conv2d) -> nn.Sequential:
    return nn.Sequential(convolution, nn.BatchNorm2d(convolution.out_channels), nn.ReLU())


def _resize(grid: Float[Tensor, "b c y x"], size: tuple[int, int]) -> Float[Tensor, "b c y2 x2"]:
    """Return a grid of another size in which every feature keeps its relative position."""
    if tuple(grid.shape[-2:]) == size:
        return grid
    if size[0] % grid.shape[-2] == 0 and size[1] % grid.shape[-1] == 0:
        return interpolate(grid, size, mode="nearest-exact")
    return interpolate(grid, size, mode="bilinear", align_corners=False)


def cell_coordinates(grid: Float[Tensor, "b c y x"]) -> Float[Tensor, "1 2 y x"]:
    """Return the y and x coordinates of each cell of a grid, from -1 to 1.

    Example:
        >>> cell_coordinates(torch.zeros(1, 5, 1, 3))[0, 1]
        tensor([[-1.,  0.,  1.]])
    """
    y = torch.linspace(-1, 1, grid.shape[-2], device=grid.device, dtype=grid.dtype)
    x = torch.linspace(-1, 1, grid.shape[-1], device=grid.device, dtype=grid.dtype)
    return torch.stack(torch.meshgrid(y, x, indexing="ij")).unsqueeze(0)
