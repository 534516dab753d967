"""Base class of image classifiers."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from visattn.blocks.registry import block_name
from visattn.insertion.inserted_block import InsertedBlock
from visattn.models.base import Configurable
from visattn.models.normalization import check_normalization, normalize_images

ParameterGroup = Literal["backbone", "blocks", "head"]
_LUMA = (0.299, 0.587, 0.114)  # Pillow's weights for converting RGB to gray


class ImageClassifier(Configurable, nn.Module, ABC):
    """Image classifier with named classes and built-in normalization.

    uint8 images in 0 to 255 are normalized inside; float images must be normalized with `mean` and
    `std` already, as for every PyTorch model. `model(images)` equals
    `model.classify(model.normalize(images))`; training can apply mixup between the two steps.

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
    shift: Tensor
    scale: Tensor
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
        check_normalization(img_size, mean, std, (1, 3))
        self.class_names = tuple(class_names)
        self.img_size = (int(img_size[0]), int(img_size[1]))
        self.mean = tuple(map(float, mean))
        self.std = tuple(map(float, std))
        self.register_buffer("shift", torch.tensor(mean).view(-1, 1, 1) * 255, persistent=False)
        self.register_buffer("scale", torch.tensor(std).view(-1, 1, 1) * 255, persistent=False)
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
        return (normalize_images(images, self.shift, self.scale) * self.luma).sum(1, keepdim=True)

    def accepts_size(self, height: int, width: int) -> bool:
        """Return whether the model accepts images of this size; by default only `img_size`."""
        return (height, width) == self.img_size

    def run_blank_image(self) -> None:
        """Classify one blank image."""
        self.classify(torch.zeros(1, len(self.mean), *self.img_size))

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
        head = {id(parameter) for parameter in self.head.parameters()}
        blocks = {
            id(parameter) for block in self.attention_blocks for parameter in block.parameters()
        }
        groups: dict[ParameterGroup, list[nn.Parameter]] = {
            "backbone": [],
            "blocks": [],
            "head": [],
        }
        for parameter in self.parameters():
            key = id(parameter)
            groups["head" if key in head else "blocks" if key in blocks else "backbone"].append(
                parameter
            )
        return groups

    def no_weight_decay_parameters(self) -> list[nn.Parameter]:
        """Return the parameters that are excluded from weight decay: `unregularized_parameters`."""
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
