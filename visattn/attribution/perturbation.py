"""Perturbation methods: occlusion and RISE."""

from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from visattn.attribution.registry import method
from visattn.attribution.targets import ScoreType, Target
from visattn.attribution.variants import variant_scorer
from visattn.functional.attribution.masks import (
    occlusion_windows,
    rise_grids,
    rise_masks,
    window_masks,
)
from visattn.recording.frozen_model import frozen
from visattn.recording.model_info import ExplainedModel, ModelInfo

Baseline = Literal["mean", "black", "white"]


def baseline_image(images: Float[Tensor, "b c y x"], info: ModelInfo, baseline: Baseline) -> Tensor:
    """Return a normalized image of one color and one pixel, which broadcasts to any size.

    Args:
        images: Normalized; give number of channels, dtype and device.
        info: Metadata with mean and std.
        baseline: The mean color (0 when normalized), black or white.

    Raises:
        ValueError: If the baseline is unknown.

    Example:
        >>> import torch
        >>> info = ModelInfo("tiny", "other", (2, 2), (0.5,), (0.25,), "none")
        >>> baseline_image(torch.zeros(3, 1, 2, 2), info, "black").flatten()
        tensor([-2.])
    """
    if baseline not in get_args(Baseline):
        raise ValueError(
            f"baselines must be one of {', '.join(get_args(Baseline))}; got {baseline!r}"
        )
    mean, std = (images.new_tensor(values).view(-1, 1, 1) for values in (info.mean, info.std))
    if baseline == "mean" and not info.mean_color:
        return images.new_zeros(1, *images.shape[1:2], 1, 1)
    level = images.new_tensor(info.mean_color).view(-1, 1, 1) if baseline == "mean" else None
    color = ((float(baseline == "white") if level is None else level) - mean) / std
    return color.expand(images.shape[1], 1, 1)[None]


def denormalize(images: Float[Tensor, "b c y x"], info: ModelInfo) -> Float[Tensor, "b c y x"]:
    """Return normalized images as colors in [0, 1].

    Args:
        images: Normalized.
        info: Metadata with mean and std.

    Example:
        >>> import torch
        >>> info = ModelInfo("tiny", "other", (2, 2), (0.5,), (0.25,), "none")
        >>> denormalize(torch.tensor([[[[-2.0, 1.0]]]]), info)
        tensor([[[[0.0000, 0.7500]]]])
    """
    mean, std = (images.new_tensor(values).view(-1, 1, 1) for values in (info.mean, info.std))
    return (images * std + mean).clamp(0, 1)


@method("occlusion", title="Occlusion", paper="arXiv:1311.2901", needs="scores", signed=True)
def occlusion(
    explained: ExplainedModel,
    images: Float[Tensor, "b c y x"],
    target: Target,
    *,
    sliding_window_size: int | None = None,
    stride: int | None = None,
    baselines: Baseline = "mean",
    score_type: ScoreType = "probabilities",
    internal_batch_size: int | None = None,
) -> Float[Tensor, "b y x"]:
    """Occlusion: the mean decrease of the target over all windows that hide a pixel.

    Where the target increases the map is negative.

    Args:
        explained: The model.
        images: Normalized.
        target: Target to explain.
        sliding_window_size: Side of the window in pixels; 1/7 of the shorter side if None.
        stride: Step of the window in pixels; half of the window if None.
        baselines: Color of the window: `mean`, `black` or `white`.
        score_type: Whether a class target selects `probabilities`, as in the paper, or `logits`.
        internal_batch_size: Images in one forward pass; None for as many as suit the device.

    Raises:
        ValueError: If the window is empty, windows leave gaps, or the baseline is unknown.

    Source:
        Zeiler and Fergus 2013, arXiv:1311.2901, section 4.2. Deviation: a pixel gets the mean of
        all windows over it, instead of the value of the one centered on it.
    """
    size = (images.shape[2], images.shape[3])
    side = sliding_window_size or max(1, min(size) // 7)
    step = stride or max(1, side // 2)
    windows = occlusion_windows(size, window_size=(side, side), stride=(step, step))
    baseline = baseline_image(images, explained.info, baselines)
    total = torch.zeros_like(images[:, 0])
    counts = torch.zeros_like(images[0, 0])
    with frozen(explained.model), torch.no_grad():
        evaluate, chunk = variant_scorer(
            explained, images, target, score_type=score_type,
            internal_batch_size=internal_batch_size,
        )  # fmt: skip
        original = evaluate(images[None])
        for window_chunk in windows.to(images.device).split(chunk):
            masks = window_masks(window_chunk, size)
            decrease = original - evaluate(_masked_variants(images, masks.to(images), baseline))
            total += torch.einsum("mb,myx->byx", decrease, masks.to(decrease))
            counts += masks.sum(0)
    return total / counts


@method("rise", title="RISE", paper="arXiv:1806.07421", needs="scores")
def rise(
    explained: ExplainedModel,
    images: Float[Tensor, "b c y x"],
    target: Target,
    *,
    num_masks: int = 1000,
    grid_size: int = 7,
    keep_probability: float = 0.5,
    baselines: Baseline = "mean",
    score_type: ScoreType = "probabilities",
    seed: int = 0,
    internal_batch_size: int | None = None,
) -> Float[Tensor, "b y x"]:
    """RISE: the mean of the target over random masks, weighted by the visibility of each pixel.

    All images get the same masks, so that the map of an image does not depend on its batch.

    Args:
        explained: The model.
        images: Normalized.
        target: Target to explain.
        num_masks: Number of masks; the paper uses 4000 to 8000.
        grid_size: Cells along a side of a mask.
        keep_probability: Probability that a cell stays visible.
        baselines: Color of hidden pixels: `mean`, `black` or `white`.
        score_type: Whether a class target selects `probabilities`, as in the paper, or `logits`.
        seed: Of the masks.
        internal_batch_size: Images in one forward pass; None for as many as suit the device.

    Raises:
        ValueError: If there are no masks or cells, keep_probability is not between 0 and 1, or the
            baseline is unknown.

    Source:
        Petsiuk, Das and Saenko 2018, arXiv:1806.07421, equation 6.
    """
    size = (images.shape[2], images.shape[3])
    grids, shifts = rise_grids(
        num_masks, num_cells=grid_size, keep_probability=keep_probability, seed=seed
    )
    baseline = baseline_image(images, explained.info, baselines)
    total = torch.zeros_like(images[:, 0])
    with frozen(explained.model), torch.no_grad():
        evaluate, chunk = variant_scorer(
            explained, images, target, score_type=score_type,
            internal_batch_size=internal_batch_size,
        )  # fmt: skip
        parts = (tensor.to(images.device).split(chunk) for tensor in (grids, shifts))
        for chunk_grids, chunk_shifts in zip(*parts, strict=True):
            visible = rise_masks(chunk_grids, chunk_shifts, size).to(images)
            values = evaluate(_masked_variants(images, 1 - visible, baseline))
            total += torch.einsum("mb,myx->byx", values, visible)
    return total / (num_masks * keep_probability)


def _masked_variants(
    images: Float[Tensor, "b c y x"], masks: Float[Tensor, "m y x"], baseline: Tensor
) -> Float[Tensor, "m b c y x"]:
    """Return each image with each mask, replaced by the baseline where the mask is 1."""
    return torch.lerp(images, baseline.expand_as(images), masks[:, None, None])
