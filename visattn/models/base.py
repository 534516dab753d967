"""Base classes of models: image encoders, classifiers, dense models, and their normalization."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Literal

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn
from torch.nn.functional import interpolate

from visattn.models.configurable import Configurable

Images = UInt8[Tensor, "b _ y x"] | Float[Tensor, "b _ y x"]
_LUMA = (0.299, 0.587, 0.114)  # Pillow's weights for converting RGB to gray


class NormalizedInput(nn.Module):
    """Image size and normalization, shared by all models of images.

    uint8 images in 0 to 255 are normalized inside; float images must already be normalized with
    `mean` and `std`, as usual in PyTorch.
    """

    img_size: tuple[int, int]
    """Height and width of the input images, in pixels."""
    mean: tuple[float, ...]
    """Mean of each channel, in [0, 1]."""
    std: tuple[float, ...]
    """Standard deviation of each channel, in [0, 1]."""
    shift: Tensor
    scale: Tensor

    def set_input(self, size: tuple[int, int], mean: Sequence[float], std: Sequence[float]) -> None:
        """Set the image size and the normalization constants."""
        self.img_size = (int(size[0]), int(size[1]))
        self.mean = tuple(map(float, mean))
        self.std = tuple(map(float, std))
        for name, values in (("shift", self.mean), ("scale", self.std)):
            self.register_buffer(name, torch.tensor(values).view(-1, 1, 1) * 255, persistent=False)

    def normalize(self, images: Images) -> Float[Tensor, "b c y x"]:
        """Normalize uint8 images; floats are returned unchanged.

        A model for gray images also accepts RGB and converts it to gray as Pillow does.

        Raises:
            TypeError: If the images are neither uint8 nor floats.
        """
        is_normalized = images.is_floating_point()
        if not is_normalized and images.dtype != torch.uint8:
            raise TypeError(
                "images must be uint8, 0 to 255, which the model normalizes itself, or floats, "
                f"normalized with its mean and std; got {images.dtype}"
            )
        if len(self.mean) == 1 and images.shape[1] == 3:
            # The weights sum to 1, so gray of normalized colors is normalized gray.
            weights = self.shift.new_tensor(_LUMA).view(3, 1, 1)
            images = (images * weights).sum(1, keepdim=True)
        return images if is_normalized else (images - self.shift) / self.scale


class ImageEncoder(Configurable, NormalizedInput, ABC):
    """Base class of networks that map RGB images to a grid of features.

    Images are uint8, 0 to 255, or floats that are already normalized with `mean` and `std`.

    `encoder(images)` equals `encoder.merge_stages(encoder.stage_features(images))`. The first step
    is expensive; if the encoder is `frozen`, its output can be cached. The second step resizes the
    grids of several stages to the finest of them and concatenates their channels.

    Args:
        img_size: Height and width of the input images, in pixels.
        mean: Mean of each color channel, in [0, 1].
        std: Spread of each color channel, in [0, 1].
    """

    channels: int
    """Number of feature channels."""
    grid_size: tuple[int, int]
    """Rows and columns of the feature grid."""

    def __init__(
        self, img_size: tuple[int, int], mean: Sequence[float], std: Sequence[float]
    ) -> None:
        super().__init__()
        self.set_input(img_size, mean, std)

    @property
    def frozen(self) -> bool:
        """Whether `stage_features` has no trainable parameters, so that they can be cached."""
        return False

    @property
    def stage_shapes(self) -> tuple[tuple[int, int, int], ...]:
        """Channels, rows and columns of each of the `stage_features` of an image."""
        return ((self.channels, *self.grid_size),)

    def forward(self, images: Images) -> Float[Tensor, "b c gy gx"]:
        """Return the feature grid of each image."""
        return self.merge_stages(self.stage_features(images))

    def stage_features(self, images: Images) -> tuple[Float[Tensor, "b _ _ _"], ...]:
        """Return the feature grid of each stage.

        Raises:
            ValueError: If the image size is not `img_size`, which would displace maps.
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
        interpolated bilinearly otherwise. Cached grids may have a lower precision.
        """
        features = self.run_trainable_stages([grid.to(self.shift.dtype) for grid in grids])
        resized = [_resize(grid, self.grid_size) for grid in features]
        return resized[0] if len(resized) == 1 else torch.cat(resized, 1)

    def run_trainable_stages(
        self, grids: Sequence[Float[Tensor, "b _ _ _"]]
    ) -> Sequence[Float[Tensor, "b _ _ _"]]:
        """Apply the trainable layers that follow the frozen ones; by default there are none."""
        return grids

    def feature_pyramid(self, images: Images) -> tuple[Float[Tensor, "b _ _ _"], ...]:
        """Return the feature grid of each stage after all layers, for decoders of dense models.

        By default these are the grids that `merge_stages` merges.
        """
        grids = [grid.to(self.shift.dtype) for grid in self.stage_features(images)]
        return tuple(self.run_trainable_stages(grids))

    def stage_feature_weights(self) -> dict[str, Tensor]:
        """Return the parameters and buffers that `stage_features` depends on."""
        return dict(self.state_dict())

    @abstractmethod
    def forward_features(
        self, images: Float[Tensor, "b 3 y x"]
    ) -> tuple[Float[Tensor, "b _ _ _"], ...]:
        """Return the feature grid of each stage, for normalized images."""


class SmallEncoder(ImageEncoder):
    """Small CNN to train from scratch: three strided convolutions and a residual block.

    The stride is 8 and the receptive field 54×54 pixels, or 22×22 with `kernels=(1, 1)`: if
    neighboring cells also see the whole object, nothing makes attention select the cell on it. With
    `stride=4` the third convolution has no stride, and the fields are 34×34 and 18×18. The strided
    kernels are even: with 3×3 kernels the receptive field of each feature would be half a cell
    above and to the left of its position on the map.

    Args:
        img_size: Height and width of the input images, in pixels; multiples of the stride.
        channels: Number of feature channels; earlier layers have a quarter and a half of it.
        coord_scale: Scale of the coordinates in [-1, 1] whose learned projection is added to each
            feature. With 4, "left" and "above" are learned much faster than with 1; 0 disables
            coordinates.
        stride: Pixels per feature: 8, or 4 for a finer grid.
        kernels: Side of each convolution of the residual block, odd.
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
        kernels: Sequence[int] = (3, 3),
        mean: Sequence[float] = (0.5, 0.5, 0.5),
        std: Sequence[float] = (0.25, 0.25, 0.25),
    ) -> None:
        super().__init__(img_size, mean, std)
        if img_size[0] % stride or img_size[1] % stride:  # so that its cells cover the image
            raise ValueError(f"img_size must be multiples of {stride}, got {img_size}")
        self.channels = channels
        self.stride = stride
        self.grid_size = (self.img_size[0] // stride, self.img_size[1] // stride)
        self.coord_scale = coord_scale
        self.stem = nn.Sequential(
            _conv_bn_relu(3, channels // 4, 4, 2),
            _conv_bn_relu(channels // 4, channels // 2, 4, 2),
            _conv_bn_relu(channels // 2, channels, *((4, 2) if stride == 8 else (3, 1))),
        )
        self.refine = nn.Sequential(*(_conv_bn_relu(channels, channels, side) for side in kernels))
        self.coord_proj = nn.Conv2d(2, channels, 1, bias=False) if coord_scale else nn.Identity()

    def forward_features(
        self, images: Float[Tensor, "b 3 y x"]
    ) -> tuple[Float[Tensor, "b _ _ _"], ...]:
        """Return the single feature grid of normalized images."""
        return self._stages(images)[-1:]

    def feature_pyramid(self, images: Images) -> tuple[Float[Tensor, "b _ _ _"], ...]:
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


def _conv_bn_relu(channels: int, out: int, side: int, stride: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(channels, out, side, stride, padding=(side - 1) // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(out), nn.ReLU())


def _resize(grid: Float[Tensor, "b c y x"], size: tuple[int, int]) -> Float[Tensor, "b c y2 x2"]:
    """Resize a grid; every feature keeps its relative position."""
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
    y, x = (torch.linspace(-1, 1, side).to(grid) for side in grid.shape[2:])
    return torch.stack(torch.meshgrid(y, x, indexing="ij")).unsqueeze(0)


class ImageClassifier(Configurable, NormalizedInput, ABC):
    """Image classifier with named classes and built-in normalization.

    `model(images)` equals `model.classify(model.normalize(images))`; training can apply mixup
    between the two steps. The module `head` is the final classification layer.

    Args:
        class_names: Names of the classes, in the order of the logits.
        img_size: Height and width of the input images, in pixels.
        mean: Mean of each color channel, in [0, 1]; one channel for gray images, else three.
        std: Standard deviation of each color channel, in [0, 1].
    """

    def __init__(
        self,
        class_names: Sequence[str],
        img_size: tuple[int, int],
        mean: Sequence[float],
        std: Sequence[float],
    ) -> None:
        super().__init__()
        self.set_input(img_size, mean, std)
        self.class_names = tuple(class_names)

    def forward(self, images: Images) -> Float[Tensor, "b k"]:
        """Return the logits."""
        return self.classify(self.normalize(images))

    @abstractmethod
    def classify(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b k"]:
        """Return the logits of normalized images."""


class ModelWithEncoder(nn.Module):
    """A model on the features of an image encoder, whose input it takes."""

    encoder: ImageEncoder

    @property
    def img_size(self) -> tuple[int, int]:
        """Height and width of the input images, in pixels."""
        return self.encoder.img_size

    @property
    def mean(self) -> tuple[float, ...]:
        """Mean of each color channel, in [0, 1]."""
        return self.encoder.mean

    @property
    def std(self) -> tuple[float, ...]:
        """Standard deviation of each color channel, in [0, 1]."""
        return self.encoder.std


class DenseModel(Configurable, ModelWithEncoder, ABC):
    """Network with an output for positions on an image: classes of pixels, or boxes.

    Images are uint8 in 0 to 255, or normalized floats, of the encoder's `img_size`;
    `visattn.images.resize.resize_to_input` resizes photos and returns the geometry back to the
    photo.

    Args:
        class_names: Names of the classes, in the order of the logits.
        encoder: Image encoder.
    """

    def __init__(self, class_names: Sequence[str], encoder: ImageEncoder) -> None:
        super().__init__()
        self.class_names = tuple(class_names)
        self.encoder = encoder

    @abstractmethod
    def forward(self, images: Images) -> Any:
        """Return the dense output for images of `img_size`."""


def parse_block_name(name: str | None) -> str | None:
    """Return the name of a block, or None for no block.

    Nested command-line options pass `null` as a string, so the string "none" also means no block.
    """
    return None if name is None or name.lower() == "none" else name
