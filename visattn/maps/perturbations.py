"""What becomes of a score when parts of the picture are hidden."""

import torch
from jaxtyping import Float
from torch import Tensor

from visattn.functional.picture_masks import (
    occlusion_windows,
    random_grids,
    soft_masks,
    window_masks,
)
from visattn.maps.fills import Fill, filled
from visattn.maps.frozen_models import frozen
from visattn.maps.model_cards import Subject
from visattn.maps.target_scores import Of, answers, variants_at_once
from visattn.maps.targets import Target


def occlusion(
    subject: Subject,
    pictures: Float[Tensor, "b c y x"],
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
        pictures: Normalised.
        target: What is to be explained.
        window: Side of the window in pixels; a seventh of the shorter side if None.
        stride: By how many pixels it moves; half a window if None.
        fill: Its colour: `mean`, `black` or `white`.
        of: Whether the target gets probabilities, as in the paper, or scores.
        chunk: Pictures that the model sees at once.

    Raises:
        ValueError: If windows are empty or leave gaps, or there is no such colour.

    Source:
        Zeiler and Fergus 2013, arXiv:1311.2901, section 4.2. Deviation: a pixel takes the mean of
        all windows over it, instead of the one around it.
    """
    size = (pictures.shape[2], pictures.shape[3])
    side = window or max(1, min(size) // 7)
    step = stride or max(1, side // 2)
    windows = occlusion_windows(size, window=(side, side), stride=(step, step))
    hidden = filled(pictures, subject.card, fill)
    total = torch.zeros_like(pictures[:, 0])
    counts = torch.zeros_like(pictures[0, 0])
    with frozen(subject.model), torch.no_grad():
        whole = answers(subject, pictures[None], target, of=of)
        for some in windows.to(pictures.device).split(variants_at_once(chunk, pictures)):
            masks = window_masks(some, size)
            variants = _under(pictures, masks.to(pictures), hidden)
            falls = whole - answers(subject, variants, target, of=of)
            total += torch.einsum("mb,myx->byx", falls, masks.to(falls))
            counts += masks.sum(0)
    return total / counts


def rise(
    subject: Subject,
    pictures: Float[Tensor, "b c y x"],
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

    All pictures get the same masks, so that none depends on the others.

    Args:
        subject: The model.
        pictures: Normalised.
        target: What is to be explained.
        masks: How many are tried; the paper takes 4000 to 8000.
        cells: Along a side of a mask.
        kept: How likely a cell stays visible.
        fill: The colour of what is hidden: `mean`, `black` or `white`.
        of: Whether the target gets probabilities, as in the paper, or scores.
        seed: Of the masks.
        chunk: Pictures that the model sees at once.

    Raises:
        ValueError: If there are no masks or cells, kept is not between 0 and 1, or there is no such
            colour.

    Source:
        Petsiuk, Das and Saenko 2018, arXiv:1806.07421, equation 6.
    """
    size = (pictures.shape[2], pictures.shape[3])
    drawn = random_grids(masks, cells=cells, kept=kept, seed=seed)
    hidden = filled(pictures, subject.card, fill)
    total = torch.zeros_like(pictures[:, 0])
    with frozen(subject.model), torch.no_grad():
        answers(subject, pictures[None], target, of=of)
        at_once = variants_at_once(chunk, pictures)
        for grids, shifts in zip(*(one.split(at_once) for one in drawn), strict=True):
            seen = soft_masks(grids, shifts, size).to(pictures)
            values = answers(subject, _under(pictures, 1 - seen, hidden), target, of=of)
            total += torch.einsum("mb,myx->byx", values, seen)
    return total / (masks * kept)


def _under(
    pictures: Float[Tensor, "b c y x"], masks: Float[Tensor, "m y x"], hidden: Tensor
) -> Float[Tensor, "m b c y x"]:
    """Return each picture under each mask, hidden where that is 1."""
    return torch.lerp(pictures, hidden.expand_as(pictures), masks[:, None, None])
