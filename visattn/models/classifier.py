"""What every classifier of images can do, whatever it is made of."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from visattn.blocks.registry import name_of
from visattn.insertion.graft import InsertedBlock
from visattn.models.normalization import check_normalization, normalized

Part = Literal["backbone", "blocks", "head"]
_LUMA = (0.299, 0.587, 0.114)  # the weights by which Pillow makes an image gray


class ImageClassifier(nn.Module, ABC):
    """A network that says to which of several classes an image belongs.

    uint8 images, 0 to 255, are normalized inside; float images are taken as normalized with
    `mean` and `std`, as every PyTorch model takes them. `model(images)` equals
    `model.classify(model.normalized(images))`; between the two, training may mix images.

    Args:
        classes: Names of the classes, in the order of the scores.
        size: Height and width, in pixels, of the images it is made for.
        mean: Mean of each color channel, in [0, 1]; one channel for gray images, else three.
        std: Spread of each color channel, in [0, 1].

    Raises:
        ValueError: If there are fewer than two classes or one stands twice, or if size, mean and
            std do not fit together.
    """

    shift: Tensor
    scale: Tensor
    luma: Tensor

    def __init__(
        self,
        classes: Sequence[str],
        size: tuple[int, int],
        mean: Sequence[float],
        std: Sequence[float],
    ) -> None:
        super().__init__()
        if len(classes) < 2 or len(set(classes)) < len(classes):
            raise ValueError(
                f"classes must be at least two different names, got {len(classes)}, "
                f"{len(set(classes))} of them different"
            )
        check_normalization(size, mean, std, (1, 3))
        self.classes = tuple(classes)
        self.size = (int(size[0]), int(size[1]))
        self.mean = tuple(map(float, mean))
        self.std = tuple(map(float, std))
        self.register_buffer("shift", torch.tensor(mean).view(-1, 1, 1) * 255, persistent=False)
        self.register_buffer("scale", torch.tensor(std).view(-1, 1, 1) * 255, persistent=False)
        self.register_buffer("luma", torch.tensor(_LUMA).view(3, 1, 1), persistent=False)

    def forward(
        self, images: UInt8[Tensor, "b _ y x"] | Float[Tensor, "b _ y x"]
    ) -> Float[Tensor, "b k"]:
        """Return the score of each class, before softmax; it raises what `normalized` raises."""
        return self.classify(self.normalized(images))

    def normalized(
        self, images: UInt8[Tensor, "b _ y x"] | Float[Tensor, "b _ y x"]
    ) -> Float[Tensor, "b c y x"]:
        """Return images as the network wants them; floats are normalized already.

        A network for gray images also takes RGB, and makes it gray as Pillow does; RGB floats
        are then normalized with the one mean and std in each channel.

        Raises:
            TypeError: If the images are neither uint8 nor floats.
            ValueError: If they are not of the size or the channels that the network is made for,
                or floats are pixels in 0 to 255.
        """
        grayed = len(self.mean) == 1 and images.shape[1] == 3
        if not (grayed or images.shape[1] == len(self.mean)) or not self.takes(
            images.shape[2], images.shape[3]
        ):
            raise ValueError(
                f"images must be [batch, {len(self.mean)}, {self.size[0]}, {self.size[1]}], got "
                f"{list(images.shape)}; build the classifier with that size and as many channels "
                "of mean and std, or fit the images to it"
            )
        if not grayed:
            return normalized(images, self.shift, self.scale)
        if images.dtype == torch.uint8:
            return ((images * self.luma).sum(1, keepdim=True) - self.shift) / self.scale
        return (normalized(images, self.shift, self.scale) * self.luma).sum(1, keepdim=True)

    def takes(self, height: int, width: int) -> bool:
        """Whether images of a size may come in: that which it is made for, if not more."""
        return (height, width) == self.size

    @abstractmethod
    def classify(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b k"]:
        """Return the score of each class, before softmax, for normalized images."""

    @property
    @abstractmethod
    def head(self) -> nn.Module:
        """The last layer, the one that knows the classes."""

    @property
    def attention(self) -> tuple[nn.Module, ...]:
        """What was added to the backbone: blocks of the catalog, and what eases them in."""
        return tuple(
            module
            for module in self.modules()
            if isinstance(module, InsertedBlock) or name_of(module)
        )

    def parts(self) -> Mapping[Part, list[nn.Parameter]]:
        """Return the parameters of the backbone, of the attention blocks and of the head.

        Each parameter stands in one of the three.
        """
        head = {id(parameter) for parameter in self.head.parameters()}
        blocks = {id(parameter) for block in self.attention for parameter in block.parameters()}
        found: dict[Part, list[nn.Parameter]] = {"backbone": [], "blocks": [], "head": []}
        for parameter in self.parameters():
            place = id(parameter)
            found["head" if place in head else "blocks" if place in blocks else "backbone"].append(
                parameter
            )
        return found

    def undecayed(self) -> list[nn.Parameter]:
        """Return the parameters that weight decay is to leave as they are.

        They are those with a single axis (biases, norms, scales), and those that a part of the
        network names in a class attribute `UNDECAYED`: learnt tokens, positions and temperatures,
        for which nothing speaks for zero.
        """
        named = {
            id(getattr(part, name))
            for part in self.modules()
            for name in getattr(part, "UNDECAYED", ())
        }
        return [weight for weight in self.parameters() if weight.ndim < 2 or id(weight) in named]


def block_name(name: str | None) -> str | None:
    """Return the name of a block, None where there is to be none.

    On a command line `null` comes as a word in nested options, so that words say it too.

    Example:
        >>> block_name("cbam"), block_name("none"), block_name("None")
        ('cbam', None, None)
    """
    return None if name is None or name.lower() == "none" else name
