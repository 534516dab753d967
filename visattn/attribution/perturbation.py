"""What stands for nothing in an image: the color of what is hidden."""

from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from visattn.attribution.target_scores import Of, answers, variants_at_once
from visattn.attribution.targets import Target
from visattn.functional.attribution.masks import (
    occlusion_windows,
    random_grids,
    soft_masks,
    window_masks,
)
from visattn.recording.frozen_model import frozen
from visattn.recording.model_info import ExplainedModel, ModelInfo

Fill = Literal["mean", "black", "white"]


def filled(images: Float[Tensor, "b c y x"], card: ModelInfo, fill: Fill) -> Tensor:
    """Return normalized images of one color, of one pixel each, which goes with all sizes.

    Args:
        images: Normalized; they say the channels, the precision and the device.
        card: With mean and spread of the colors.
        fill: The mean color, which is 0 when normalized; black or white.

    Raises:
        ValueError: If there is no such color.

    Example:
        >>> import torch
        >>> card = ModelInfo("tiny", "other", (2, 2), (0.5,), (0.25,), "none")
        >>> filled(torch.zeros(3, 1, 2, 2), card, "black").flatten()
        tensor([-2.])
    """
    if fill not in get_args(Fill):
        raise ValueError(f"what is hidden is {', '.join(get_args(Fill))}, got {fill!r}")
    mean, std = (images.new_tensor(given).view(-1, 1, 1) for given in (card.mean, card.std))
    if fill == "mean":
        return images.new_zeros(1, *images.shape[1:2], 1, 1)
    color = (float(fill == "white") - mean) / std
    return color.expand(images.shape[1], 1, 1)[None]


def colored(images: Float[Tensor, "b c y x"], card: ModelInfo) -> Float[Tensor, "b c y x"]:
    """Return normalized images as colors in 0 to 1 again.

    Args:
        images: Normalized.
        card: With mean and spread of the colors.

    Example:
        >>> import torch
        >>> card = ModelInfo("tiny", "other", (2, 2), (0.5,), (0.25,), "none")
        >>> colored(torch.tensor([[[[-2.0, 1.0]]]]), card)
        tensor([[[[0.0000, 0.7500]]]])
    """
    mean, std = (images.new_tensor(given).view(-1, 1, 1) for given in (card.mean, card.std))
    return (images * std + mean).clamp(0, 1)


def occlusion(
    subject: ExplainedModel,
    images: Float[Tensor, "b c y x"],
    target: Target,
    *,
    window: int | None = None,
    stride: int | None = None,
    fill: Fill = "mean",
    of: Of = "probabilities",
    chunk: int = 32,
) -> Float[Tensor, "b y x"]:
    """Return by how much the target falls, on average, when a window hides a pixel.

    Where it rises the map is negative.

    Args:
        subject: The model.
        images: Normalized.
        target: What is to be explained.
        window: Side of the window in pixels; a seventh of the shorter side if None.
        stride: By how many pixels it moves; half a window if None.
        fill: Its color: `mean`, `black` or `white`.
        of: Whether the target gets probabilities, as in the paper, or scores.
        chunk: Images that the model sees at once.

    Raises:
        ValueError: If windows are empty or leave gaps, or there is no such color.

    Source:
        Zeiler and Fergus 2013, arXiv:1311.2901, section 4.2. Deviation: a pixel takes the mean of
        all windows over it, instead of the one around it.
    """
    size = (images.shape[2], images.shape[3])
    side = window or max(1, min(size) // 7)
    step = stride or max(1, side // 2)
    windows = occlusion_windows(size, window=(side, side), stride=(step, step))
    hidden = filled(images, subject.card, fill)
    total = torch.zeros_like(images[:, 0])
    counts = torch.zeros_like(images[0, 0])
    with frozen(subject.model), torch.no_grad():
        whole = answers(subject, images[None], target, of=of)
        for some in windows.to(images.device).split(variants_at_once(chunk, images)):
            masks = window_masks(some, size)
            variants = _under(images, masks.to(images), hidden)
            falls = whole - answers(subject, variants, target, of=of)
            total += torch.einsum("mb,myx->byx", falls, masks.to(falls))
            counts += masks.sum(0)
    return total / counts


def rise(
    subject: ExplainedModel,
    images: Float[Tensor, "b c y x"],
    target: Target,
    *,
    masks: int = 1000,
    cells: int = 7,
    kept: float = 0.5,
    fill: Fill = "mean",
    of: Of = "probabilities",
    seed: int = 0,
    chunk: int = 32,
) -> Float[Tensor, "b y x"]:
    """Return the mean of the target over random masks that leave a pixel visible.

    All images get the same masks, so that none depends on the others.

    Args:
        subject: The model.
        images: Normalized.
        target: What is to be explained.
        masks: How many are tried; the paper takes 4000 to 8000.
        cells: Along a side of a mask.
        kept: How likely a cell stays visible.
        fill: The color of what is hidden: `mean`, `black` or `white`.
        of: Whether the target gets probabilities, as in the paper, or scores.
        seed: Of the masks.
        chunk: Images that the model sees at once.

    Raises:
        ValueError: If there are no masks or cells, kept is not between 0 and 1, or there is no such
            color.

    Source:
        Petsiuk, Das and Saenko 2018, arXiv:1806.07421, equation 6.
    """
    size = (images.shape[2], images.shape[3])
    drawn = random_grids(masks, cells=cells, kept=kept, seed=seed)
    hidden = filled(images, subject.card, fill)
    total = torch.zeros_like(images[:, 0])
    with frozen(subject.model), torch.no_grad():
        answers(subject, images[None], target, of=of)
        at_once = variants_at_once(chunk, images)
        for grids, shifts in zip(*(one.split(at_once) for one in drawn), strict=True):
            seen = soft_masks(grids, shifts, size).to(images)
            values = answers(subject, _under(images, 1 - seen, hidden), target, of=of)
            total += torch.einsum("mb,myx->byx", values, seen)
    return total / (masks * kept)


def _under(
    images: Float[Tensor, "b c y x"], masks: Float[Tensor, "m y x"], hidden: Tensor
) -> Float[Tensor, "m b c y x"]:
    """Return each image under each mask, hidden where that is 1."""
    return torch.lerp(images, hidden.expand_as(images), masks[:, None, None])
