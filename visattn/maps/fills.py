"""What stands for nothing in a picture: the colour of what is hidden."""

from typing import Literal, get_args

from jaxtyping import Float
from torch import Tensor

from visattn.maps.model_cards import ModelCard

Fill = Literal["mean", "black", "white"]


def filled(pictures: Float[Tensor, "b c y x"], card: ModelCard, fill: Fill) -> Tensor:
    """Return normalised pictures of one colour, of one pixel each, which goes with all sizes.

    Args:
        pictures: Normalised; they say the channels, the precision and the device.
        card: With mean and spread of the colours.
        fill: The mean colour, which is 0 when normalised; black or white.

    Raises:
        ValueError: If there is no such colour.

    Example:
        >>> import torch
        >>> card = ModelCard("tiny", "other", (2, 2), (0.5,), (0.25,), "none")
        >>> filled(torch.zeros(3, 1, 2, 2), card, "black").flatten()
        tensor([-2.])
    """
    if fill not in get_args(Fill):
        raise ValueError(f"what is hidden is {', '.join(get_args(Fill))}, got {fill!r}")
    mean, std = (pictures.new_tensor(given).view(-1, 1, 1) for given in (card.mean, card.std))
    if fill == "mean":
        return pictures.new_zeros(1, *pictures.shape[1:2], 1, 1)
    colour = (float(fill == "white") - mean) / std
    return colour.expand(pictures.shape[1], 1, 1)[None]


def coloured(pictures: Float[Tensor, "b c y x"], card: ModelCard) -> Float[Tensor, "b c y x"]:
    """Return normalised pictures as colours in 0 to 1 again.

    Args:
        pictures: Normalised.
        card: With mean and spread of the colours.

    Example:
        >>> import torch
        >>> card = ModelCard("tiny", "other", (2, 2), (0.5,), (0.25,), "none")
        >>> coloured(torch.tensor([[[[-2.0, 1.0]]]]), card)
        tensor([[[[0.0000, 0.7500]]]])
    """
    mean, std = (pictures.new_tensor(given).view(-1, 1, 1) for given in (card.mean, card.std))
    return (pictures * std + mean).clamp(0, 1)
