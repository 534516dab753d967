"""Base classes of models: image encoders, classifiers, dense models, and their normalization."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn
from torch.nn.functional import interpolate

from visattn.blocks.registry import block_name
from visattn.insertion.with_block import InsertedBlock
from visattn.models.configurable import Configurable

_MAX_NORMALIZED = 10.0  # white is 2 to 3 with the mean and std of usual data


class NormalizedInput(nn.Module):
    """What models of images share: size and normalization of their input.

    uint8 images in 0 to 255 are normalized inside; float images must be normalized with `mean` and
    `std` already, as for every PyTorch model.
    """

    img_size: tuple[int, int]
    """Height and width of the input images, in pixels."""
    mean: tuple[float, ...]
    """Mean of each channel, in [0, 1]."""
    std: tuple[float, ...]
    """Standard deviation of each channel, in [0, 1]."""
    shift: Tensor
    scale: Tensor

    def set_input(
        self,
        size: tuple[int, int],
        mean: Sequence[float],
        std: Sequence[float],
        *,
        channels: Sequence[int],
    ) -> None:
        """Keep the size and the constants, which must have one of these numbers of channels.

        Raises:
            ValueError: If they do not fit together.
        """
        if min(size) < 1 or len(mean) not in channels or len(std) != len(mean) or min(std) <= 0:
            counts = " or ".join(map(str, channels))
            raise ValueError(
                f"size needs two sides >= 1, mean and std {counts} channels with std > 0; "
                f"got size={size}, mean={mean}, std={std}"
            )
        self.img_size = (int(size[0]), int(size[1]))
        self.mean = tuple(map(float, mean))
        self.std = tuple(map(float, std))
        for name, values in (("shift", self.mean), ("scale", self.std)):
            self.register_buffer(name, torch.tensor(values).view(-1, 1, 1) * 255, persistent=False)

    def normalize(self, images: Tensor) -> Tensor:
        """Normalize uint8 images; floats are normalized already.

        Raises:
            TypeError: If the images are neither uint8 nor floats.
            ValueError: If floats are pixels in 0 to 255.
        """
        return normalize_images(images, self.shift, self.scale)


def normalize_images(images: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """Return images as a network takes them: uint8 is normalized, floats are already.

    Floats are never scaled: a float image in 0 to 255 or 0 to 1 must be normalized by the
    caller, with the model's `mean` and `std`, as for every PyTorch model. On the CPU, where looking
    at the values costs no synchronization, floats that can only be unnormalized pixels are refused.

    Args:
        images: uint8 in 0 to 255, or floats.
        shift: 255 times the mean of each channel.
        scale: 255 times the standard deviation of each channel.

    Raises:
        TypeError: If they are of any other dtype.
        ValueError: If floats are pixels in 0 to 255.

    Example:
        >>> white = torch.full((1, 1, 2, 2), 255, dtype=torch.uint8)
        >>> shift, scale = torch.tensor(127.5), torch.tensor(63.75)
        >>> normalize_images(white, shift, scale).max()
        tensor(2.)
        >>> normalize_images(white / 255, shift, scale).max()
        tensor(1.)
        >>> normalize_images(white.float(), shift, scale)
        Traceback (most recent call last):
        ValueError: float images are taken as normalized, but these are 255 to 255, like pixel...
    """
    if images.dtype == torch.uint8:
        return (images - shift) / scale
    if not images.is_floating_point():
        raise TypeError(
            "images must be uint8, 0 to 255, which the model normalizes itself, or floats, "
            f"normalized with its mean and std; got {images.dtype}"
        )
    _check_float_range(images, shift, scale)
    return images


def _check_float_range(images: Tensor, shift: Tensor, scale: Tensor) -> None:
    """Refuse floats that are pixels in 0 to 255, where that is known without a device sync."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing():  # pyright: ignore[reportPrivateImportUsage]
        return
    functorch: Any = torch._C._functorch  # noqa: SLF001 # pyright: ignore[reportAttributeAccessIssue]
    wrapped = functorch.is_functorch_wrapped_tensor(images)  # by vmap or grad
    # Fake tensors of an export, and other subclasses, may have no values.
    if wrapped or images.device.type != "cpu" or type(images) is not Tensor or not images.numel():
        return
    low, high = map(float, images.detach().aminmax())
    white = float(((255 - shift) / scale).max())
    if low >= 0 and high > max(_MAX_NORMALIZED, 4 * white):
        raise ValueError(
            f"float images are taken as normalized, but these are {low:g} to {high:g}, like "
            "pixels in 0 to 255: pass uint8, which the model normalizes itself, or normalize them "
            "with (images / 255 - mean) / std"
        )


class ImageEncoder(Configurable, NormalizedInput, ABC):
    """Base class of networks that map RGB images to a grid of features.

    Images are uint8, 0 to 255, or floats that are normalized with `mean` and `std` already.

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
    grid_size: tuple[int, int]
    """Rows and columns of the feature grid."""

    def __init__(
        self, img_size: tuple[int, int], mean: Sequence[float], std: Sequence[float]
    ) -> None:
        super().__init__()
        self.set_input(img_size, mean, std, channels=(3,))

    @property
    def frozen(self) -> bool:
        """Whether `stage_features` has no trainable parameters, so that they can be cached."""
        return False

    @property
    def stage_shapes(self) -> tuple[tuple[int, int, int], ...]:
        """Channels, rows and columns of each of the `stage_features` of an image."""
        return ((self.channels, *self.grid_size),)

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

    @abstractmethod
    def forward_features(
        self, images: Float[Tensor, "b 3 y x"]
    ) -> tuple[Float[Tensor, "b _ _ _"], ...]:
        """Return the feature grid of each stage, for normalized images."""


class SmallEncoder(ImageEncoder):
    """Small CNN to train from scratch: three strided convolutions and a residual block.

    The stride is 8 and the receptive field 54×54 pixels, or 22×22 with `kernels=(1, 1)`: where a
    neighboring cell sees the whole object, too, nothing makes attention choose the cell on it. With
    `stride=4` the third convolution has no stride, and the fields are 34×34 and 18×18. The strided
    kernels are even: with 3×3 kernels the receptive field of each feature would be half a cell
    above and to the left of the place where the map draws it.

    Args:
        img_size: Height and width of the input images, in pixels; multiples of the stride.
        channels: Number of feature channels; earlier layers have a quarter and a half of it.
        coord_scale: Scale of the coordinates in [-1, 1] whose learned projection is added to each
            feature. With 4, "left" and "above" are learned much sooner than with 1; with 0 there
            are no coordinates.
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
        if stride not in (4, 8):
            raise ValueError(f"stride must be 4 or 8, got {stride}")
        if channels < 4 or channels % 4 or img_size[0] % stride or img_size[1] % stride:
            raise ValueError(
                "channels must be a multiple of 4 and both sides of img_size multiples of "
                f"{stride}, got channels={channels}, img_size={img_size}"
            )
        if any(side < 1 or not side % 2 for side in kernels):
            raise ValueError(f"kernels must be odd and at least 1, got {tuple(kernels)}")
        self.channels = channels
        self.stride = stride
        self.grid_size = (self.img_size[0] // stride, self.img_size[1] // stride)
        self.coord_scale = coord_scale
        self.stem = nn.Sequential(
            _downsampling_conv(3, channels // 4),
            _downsampling_conv(channels // 4, channels // 2),
            (_downsampling_conv if stride == 8 else _same_size_conv)(channels // 2, channels),
        )
        refine = [_same_size_conv(channels, channels, side) for side in kernels]
        self.refine = nn.Sequential(*refine)
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


def _same_size_conv(channels: int, out: int, side: int = 3) -> nn.Sequential:
    return _conv_bn_relu(nn.Conv2d(channels, out, side, padding=side // 2, bias=False))


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


ParameterGroup = Literal["backbone", "blocks", "head"]
_LUMA = (0.299, 0.587, 0.114)  # Pillow's weights for converting RGB to gray


class ImageClassifier(Configurable, NormalizedInput, ABC):
    """Image classifier with named classes and built-in normalization.

    Images are uint8, 0 to 255, or floats that are normalized with `mean` and `std` already.
    `model(images)` equals `model.classify(model.normalize(images))`; training can apply mixup
    between the two steps.

    Args:
        class_names: Names of the classes, in the order of the logits.
        img_size: Height and width of the input images, in pixels.
        mean: Mean of each color channel, in [0, 1]; one channel for gray images, else three.
        std: Standard deviation of each color channel, in [0, 1].

    Raises:
        ValueError: If there are fewer than two classes, a name is repeated, or img_size, mean and
            std do not fit together.
    """

    pipeline_tag = "image-classification"
    luma: Tensor

    def __init__(
        self,
        class_names: Sequence[str],
        img_size: tuple[int, int],
        mean: Sequence[float],
        std: Sequence[float],
    ) -> None:
        super().__init__()
        if len(class_names) < 2 or len(set(class_names)) < len(class_names):
            raise ValueError(
                f"class_names must be at least two distinct names, got {len(class_names)} names, "
                f"{len(set(class_names))} of them distinct"
            )
        self.set_input(img_size, mean, std, channels=(1, 3))
        self.class_names = tuple(class_names)
        self.register_buffer("luma", torch.tensor(_LUMA).view(3, 1, 1), persistent=False)

    def forward(
        self, images: UInt8[Tensor, "b _ y x"] | Float[Tensor, "b _ y x"]
    ) -> Float[Tensor, "b k"]:
        """Return the logits; raises what `normalize` raises."""
        return self.classify(self.normalize(images))

    def normalize(
        self, images: UInt8[Tensor, "b _ y x"] | Float[Tensor, "b _ y x"]
    ) -> Float[Tensor, "b c y x"]:
        """Normalize uint8 images; floats are normalized already.

        A model for gray images also accepts RGB and converts it to gray as Pillow does; RGB floats
        are then normalized with the single mean and std in each channel.

        Raises:
            TypeError: If the images are neither uint8 nor floats.
            ValueError: If the model does not accept their size or number of channels, or floats
                are pixels in 0 to 255.
        """
        to_gray = len(self.mean) == 1 and images.shape[1] == 3
        if not (to_gray or images.shape[1] == len(self.mean)) or not self.accepts_size(
            images.shape[2], images.shape[3]
        ):
            raise ValueError(
                f"images must be [batch, {len(self.mean)}, {self.img_size[0]}, "
                f"{self.img_size[1]}], got {list(images.shape)}; build the classifier for that "
                "img_size, with one mean and std per channel, or resize the images"
            )
        if not to_gray:
            return normalize_images(images, self.shift, self.scale)
        if images.dtype == torch.uint8:
            return ((images * self.luma).sum(1, keepdim=True) - self.shift) / self.scale
        # The weights of luma sum to 1: gray of normalized colors is normalized gray.
        return (normalize_images(images, self.shift, self.scale) * self.luma).sum(1, keepdim=True)

    def accepts_size(self, height: int, width: int) -> bool:
        """Return whether the model accepts images of this size; by default only `img_size`."""
        return (height, width) == self.img_size

    @abstractmethod
    def classify(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b k"]:
        """Return the logits of normalized images."""

    @property
    @abstractmethod
    def head(self) -> nn.Module:
        """The final classification layer."""

    @property
    def attention_blocks(self) -> tuple[nn.Module, ...]:
        """All registered attention blocks and wrappers of inserted blocks."""
        return tuple(
            module
            for module in self.modules()
            if isinstance(module, InsertedBlock) or block_name(module)
        )

    def parameter_groups(self) -> Mapping[ParameterGroup, list[nn.Parameter]]:
        """Return the parameters of the backbone, of the attention blocks and of the head.

        Each parameter belongs to exactly one group.
        """
        owners: dict[int, ParameterGroup] = {
            id(weight): "blocks" for block in self.attention_blocks for weight in block.parameters()
        }
        owners |= {id(weight): "head" for weight in self.head.parameters()}
        groups: dict[ParameterGroup, list[nn.Parameter]] = {
            "backbone": [],
            "blocks": [],
            "head": [],
        }
        for weight in self.parameters():
            groups[owners.get(id(weight), "backbone")].append(weight)
        return groups

    def no_weight_decay_parameters(self) -> list[nn.Parameter]:
        """Return the parameters that are excluded from weight decay."""
        return unregularized_parameters(self)


def unregularized_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of a model that are excluded from weight decay.

    These are all one-dimensional parameters (biases, norms, scales) and those that a module lists
    in a class attribute `NO_WEIGHT_DECAY`: learned tokens, position embeddings and temperatures.

    Example:
        >>> [tuple(weight.shape) for weight in unregularized_parameters(nn.Linear(2, 3))]
        [(3,)]
    """
    listed = {
        id(getattr(module, name))
        for module in model.modules()
        for name in getattr(module, "NO_WEIGHT_DECAY", ())
    }
    return [weight for weight in model.parameters() if weight.ndim < 2 or id(weight) in listed]


def parse_block_name(name: str | None) -> str | None:
    """Return the name of a block, or None for no block.

    Nested command-line options pass `null` as a string, so the string "none" also means no block.

    Example:
        >>> parse_block_name("cbam"), parse_block_name("none"), parse_block_name("None")
        ('cbam', None, None)
    """
    return None if name is None or name.lower() == "none" else name


DensePart = Literal["encoder", "decoder"]


class ModelWithEncoder(nn.Module):
    """What models on the features of an image encoder share: its input, and groups of weights."""

    encoder: ImageEncoder

    @property
    def img_size(self) -> tuple[int, int]:
        """Height and width of the input images, in pixels."""
        return self.encoder.img_size

    def parameter_groups(self) -> Mapping[DensePart, list[nn.Parameter]]:
        """Return the parameters of the encoder, and all others; each belongs to one group."""
        return encoder_decoder_parameters(self, self.encoder)

    def no_weight_decay_parameters(self) -> list[nn.Parameter]:
        """Return the parameters that are excluded from weight decay."""
        return unregularized_parameters(self)


class DenseModel(Configurable, ModelWithEncoder, ABC):
    """Network with an output for places on an image: classes of pixels, or boxes.

    Images are those of the encoder: uint8 in 0 to 255, or floats that are normalized already. All
    have its `img_size`; `visattn.data.resize_to_input` brings photos to that size and returns the
    geometry back to the photo.

    Args:
        class_names: Names of the classes, in the order of the logits.
        encoder: Image encoder.

    Raises:
        ValueError: If there is no class, or a name is repeated.
    """

    def __init__(self, class_names: Sequence[str], encoder: ImageEncoder) -> None:
        super().__init__()
        if not class_names or len(set(class_names)) < len(class_names):
            raise ValueError(
                f"class_names must be distinct names, at least one, got {len(class_names)} names, "
                f"{len(set(class_names))} of them distinct"
            )
        self.class_names = tuple(class_names)
        self.encoder = encoder

    @property
    def mean(self) -> tuple[float, ...]:
        """Mean of each color channel, in [0, 1]."""
        return self.encoder.mean

    @property
    def std(self) -> tuple[float, ...]:
        """Standard deviation of each color channel, in [0, 1]."""
        return self.encoder.std

    @abstractmethod
    def forward(self, images: UInt8[Tensor, "b 3 y x"] | Float[Tensor, "b 3 y x"]) -> Any:
        """Return the dense output for images of `img_size`."""


def encoder_decoder_parameters(
    model: nn.Module, encoder: nn.Module
) -> Mapping[DensePart, list[nn.Parameter]]:
    """Return the parameters of the encoder of a model, and all others as those of the decoder.

    Example:
        >>> encoder = nn.Linear(2, 2)
        >>> model = nn.Sequential(encoder, nn.Linear(2, 2, bias=False))
        >>> {part: len(group) for part, group in encoder_decoder_parameters(model, encoder).items()}
        {'encoder': 2, 'decoder': 1}
    """
    first = list(encoder.parameters())
    known = {id(parameter) for parameter in first}
    others = [parameter for parameter in model.parameters() if id(parameter) not in known]
    return {"encoder": first, "decoder": others}
