"""Base class of dense models: segmentation and detection networks."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from jaxtyping import Float, UInt8
from torch import Tensor, nn

from visattn.models.base import Configurable
from visattn.models.classifier import unregularized_parameters
from visattn.models.encoder import ImageEncoder

DensePart = Literal["encoder", "decoder"]


class DenseModel(Configurable, nn.Module, ABC):
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

    @abstractmethod
    def forward(self, images: UInt8[Tensor, "b 3 y x"] | Float[Tensor, "b 3 y x"]) -> Any:
        """Return the dense output for images of `img_size`."""

    def parameter_groups(self) -> Mapping[DensePart, list[nn.Parameter]]:
        """Return the parameters of the encoder, and all others; each belongs to one group."""
        return encoder_decoder_parameters(self, self.encoder)

    def no_weight_decay_parameters(self) -> list[nn.Parameter]:
        """Return the parameters that are excluded from weight decay, as in `ImageClassifier`."""
        return unregularized_parameters(self)


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
