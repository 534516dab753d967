"""Perturbation methods (occlusion and RISE), and the scoring of image variants."""

from collections.abc import Callable
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import interpolate

from visattn.attribution.registry import method
from visattn.attribution.targets import (
    Score,
    ScoreType,
    Target,
    probabilities,
)
from visattn.functional.numerics import at_least_float32
from visattn.recording.frozen import frozen
from visattn.recording.model_info import ModelInfo
from visattn.recording.subject import Subject

Baseline = Literal["mean", "black", "white"]
VariantScorer = Callable[[Float[Tensor, "m b c y x"]], Float[Tensor, "m b"]]
"""From variants of images to one score for each."""


def occlusion_windows(
    image_size: tuple[int, int], *, window_size: tuple[int, int], stride: tuple[int, int]
) -> Int[Tensor, "m 4"]:
    """Return sliding windows over an image as boxes, row by row.

    They start at the top left corner and cover the image; the last ones are clipped at the border.

    Returns:
        Left, top, right and bottom of each window, in pixels.

    Raises:
        ValueError: If windows are empty or leave gaps.

    Example:
        >>> occlusion_windows((2, 5), window_size=(2, 2), stride=(1, 2)).tolist()
        [[0, 0, 2, 2], [2, 0, 4, 2], [4, 0, 5, 2]]
    """
    if not all(1 <= step <= side for step, side in zip(stride, window_size, strict=True)):
        raise ValueError(
            "the stride must be at least 1 and at most the window size, or windows leave gaps; got "
            f"stride {stride} and window size {window_size}"
        )
    tops, lefts = (
        torch.arange(-(-max(length - side, 0) // step) + 1) * step
        for length, side, step in zip(image_size, window_size, stride, strict=True)
    )
    top, left = (corner.flatten() for corner in torch.meshgrid(tops, lefts, indexing="ij"))
    bottom = (top + window_size[0]).clamp(max=image_size[0])
    right = (left + window_size[1]).clamp(max=image_size[1])
    return torch.stack((left, top, right, bottom), 1)


def window_masks(windows: Int[Tensor, "m 4"], size: tuple[int, int]) -> Bool[Tensor, "m y x"]:
    """Return masks that are True inside the windows.

    Example:
        >>> window_masks(torch.tensor([[1, 0, 3, 1]]), (1, 4))
        tensor([[[False,  True,  True, False]]])
    """
    left, top, right, bottom = windows[:, :, None].unbind(1)
    down = torch.arange(size[0], device=windows.device)
    across = torch.arange(size[1], device=windows.device)
    rows = (down >= top) & (down < bottom)
    columns = (across >= left) & (across < right)
    return rows[:, :, None] & columns[:, None, :]


@method("occlusion", title="Occlusion", paper="arXiv:1311.2901", needs="scores", signed=True)
def occlusion(
    subject: Subject,
    images: Float[Tensor, "b c y x"],
    target: Target,
    *,
    sliding_window_size: int | None = None,
    stride: int | None = None,
    baselines: Baseline = "mean",
    internal_batch_size: int | None = None,
) -> Float[Tensor, "b y x"]:
    """Occlusion: the mean drop of the target over all windows that cover a pixel.

    Negative values mean that hiding the pixel raises the target. Classes are scored by probability.

    Args:
        sliding_window_size: Side of the window in pixels; 1/7 of the shorter side if None.
        stride: Step of the window in pixels; half of the window if None.
        baselines: Fill color of the window: `mean`, `black` or `white`.
        internal_batch_size: Images in one forward pass; None chooses it for the device.

    Raises:
        ValueError: If the window is empty, or windows leave gaps.

    Source:
        Zeiler and Fergus 2013, arXiv:1311.2901, section 4.2. Deviation: a pixel gets the mean over
        all windows that cover it, instead of the value of the one centered on it.
    """
    size = (images.shape[2], images.shape[3])
    side = max(1, min(size) // 7) if sliding_window_size is None else sliding_window_size
    step = max(1, side // 2) if stride is None else stride
    windows = occlusion_windows(size, window_size=(side, side), stride=(step, step))
    baseline = baseline_image(images, subject.info, baselines)
    total = torch.zeros_like(images[:, 0])
    counts = torch.zeros_like(images[0, 0])
    with frozen(subject.model), torch.no_grad():
        evaluate, chunk, original = variant_scorer(
            subject, images, target, "probabilities", internal_batch_size
        )
        for part in windows.to(images.device).split(chunk):
            masks = window_masks(part, size).to(images)
            decrease = original - evaluate(_masked_variants(images, masks, baseline))
            total += torch.einsum("mb,myx->byx", decrease, masks.to(decrease))
            counts += masks.sum(0)
    return total / counts


def rise_grids(
    num_masks: int, *, num_cells: int, keep_probability: float, seed: int
) -> tuple[Float[Tensor, "m cells cells"], Float[Tensor, "m 2"]]:
    """Return random binary grids and offsets for RISE masks.

    Each of the `num_cells` x `num_cells` cells is 1 with `keep_probability`. With the same seed, a
    larger number of grids starts with the same ones.

    Returns:
        Grids, and offsets in [0, 1) as fractions of a cell.

    Example:
        >>> grids, shifts = rise_grids(1000, num_cells=7, keep_probability=0.25, seed=0)
        >>> grids.shape, 0.24 < float(grids.mean()) < 0.26, shifts.shape
        (torch.Size([1000, 7, 7]), True, torch.Size([1000, 2]))
    """
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.rand(num_masks, num_cells * num_cells + 2, generator=generator)
    grids = (numbers[:, :-2] < keep_probability).float().view(num_masks, num_cells, num_cells)
    return grids, numbers[:, -2:]


def rise_masks(
    grids: Float[Tensor, "m cells cells"], shifts: Float[Tensor, "m 2"], size: tuple[int, int]
) -> Float[Tensor, "m y x"]:
    """Return RISE masks: binary grids, upsampled bilinearly, shifted and cropped to the image.

    Args:
        shifts: Shifts down and to the right as fractions of a cell, in [0, 1).

    Example:
        >>> grid, shift = torch.tensor([[[0.0, 1.0], [0.0, 1.0]]]), torch.zeros(1, 2)
        >>> rise_masks(grid, shift, (2, 4))[0, 0].round(decimals=2)
        tensor([0.0000, 0.0000, 0.3300, 0.6700])

    Source:
        Petsiuk et al. 2018, arXiv:1806.07421, section 3.2.
    """
    cells = grids.shape[1]
    # One extra cell, so that the crop may start anywhere in the first cell.
    cell = [-(-length // cells) for length in size]
    whole = [(cells + 1) * side for side in cell]
    large = interpolate(grids[:, None], whole, mode="bilinear", align_corners=False)[:, 0]
    moved = (shifts * shifts.new_tensor(cell)).long()
    rows = moved[:, :1] + torch.arange(size[0], device=grids.device)
    columns = moved[:, 1:] + torch.arange(size[1], device=grids.device)
    number = torch.arange(len(grids), device=grids.device)
    return large[number[:, None, None], rows[:, :, None], columns[:, None]]


@method("rise", title="RISE", paper="arXiv:1806.07421", needs="scores")
def rise(
    subject: Subject,
    images: Float[Tensor, "b c y x"],
    target: Target,
    *,
    num_masks: int = 1000,
    grid_size: int = 7,
    keep_probability: float = 0.5,
    baselines: Baseline = "mean",
    seed: int = 0,
    internal_batch_size: int | None = None,
) -> Float[Tensor, "b y x"]:
    """RISE: the mean of the target over random masks, weighted by each pixel's mask value.

    All images get the same masks, so that a map does not depend on the rest of the batch. Classes
    are scored by probability.

    Args:
        num_masks: Number of masks; the paper uses 4000 to 8000.
        grid_size: Cells along a side of a mask.
        keep_probability: Probability that a cell stays visible, above 0 and below 1.
        baselines: Color of hidden pixels: `mean`, `black` or `white`.
        seed: Random seed of the masks.
        internal_batch_size: Images in one forward pass; None chooses it for the device.

    Source:
        Petsiuk, Das and Saenko 2018, arXiv:1806.07421, equation 6.
    """
    size = (images.shape[2], images.shape[3])
    grids, shifts = rise_grids(
        num_masks, num_cells=grid_size, keep_probability=keep_probability, seed=seed
    )
    baseline = baseline_image(images, subject.info, baselines)
    total = torch.zeros_like(images[:, 0])
    with frozen(subject.model), torch.no_grad():
        evaluate, chunk, _ = variant_scorer(
            subject, images, target, "probabilities", internal_batch_size
        )
        parts = (tensor.to(images.device).split(chunk) for tensor in (grids, shifts))
        for chunk_grids, chunk_shifts in zip(*parts, strict=True):
            visible = rise_masks(chunk_grids, chunk_shifts, size).to(images)
            values = evaluate(_masked_variants(images, 1 - visible, baseline))
            total += torch.einsum("mb,myx->byx", values, visible)
    return total / (num_masks * keep_probability)


def baseline_image(images: Float[Tensor, "b c y x"], info: ModelInfo, baseline: Baseline) -> Tensor:
    """Return a uniform baseline image, normalized, as one pixel that broadcasts to any size.

    Args:
        baseline: The mean color (0 when normalized), black or white.

    Example:
        >>> info = ModelInfo("tiny", "other", (2, 2), (0.5,), (0.25,), "none")
        >>> baseline_image(torch.zeros(3, 1, 2, 2), info, "black").flatten()
        tensor([-2.])
    """
    colors = {"mean": info.mean_color or info.mean, "black": (0.0,), "white": (1.0,)}
    color, mean, std = (
        images.new_tensor(values).view(1, -1, 1, 1)
        for values in (colors[baseline], info.mean, info.std)
    )
    return (color - mean) / std


def denormalize(images: Float[Tensor, "b c y x"], info: ModelInfo) -> Float[Tensor, "b c y x"]:
    """Undo the normalization of images; colors are clamped to [0, 1].

    Example:
        >>> info = ModelInfo("tiny", "other", (2, 2), (0.5,), (0.25,), "none")
        >>> denormalize(torch.tensor([[[[-2.0, 1.0]]]]), info)
        tensor([[[[0.0000, 0.7500]]]])
    """
    mean, std = (images.new_tensor(values).view(-1, 1, 1) for values in (info.mean, info.std))
    return (images * std + mean).clamp(0, 1)


def _masked_variants(
    images: Float[Tensor, "b c y x"], masks: Float[Tensor, "m y x"], baseline: Tensor
) -> Float[Tensor, "m b c y x"]:
    """Return each image under each mask, with the baseline where the mask is 1."""
    return torch.lerp(images, baseline.expand_as(images), masks[:, None, None])


def variant_scorer(
    subject: Subject,
    images: Float[Tensor, "b c y x"],
    target: Target,
    score_type: ScoreType = "logits",
    internal_batch_size: int | None = None,
    *,
    backward: bool = False,
) -> tuple[VariantScorer, int, Float[Tensor, "1 b"]]:
    """Return a function that scores variants of images, its chunk size, and the images' scores.

    The target is called on the original images first.

    Example:
        >>> from visattn.attribution.targets import Score
        >>> info = ModelInfo("tiny", "other", (2, 2), (0.5,), (0.5,), "none")
        >>> model, images = torch.nn.Flatten(), torch.zeros(1, 1, 1, 2)
        >>> score, count, original = variant_scorer(
        ...     Subject(model, info, model), images, Score((1,)), internal_batch_size=3
        ... )
        >>> score(torch.tensor([[0.0, 5.0], [7.0, 6.0]]).view(2, 1, 1, 1, 2)).tolist(), count
        ([[5.0], [6.0]], 3)
        >>> original
        tensor([[0.]])
    """
    size = internal_batch_size or images_per_pass(images, backward=backward)
    size = size if subject.independent else 1

    def evaluate(variants: Float[Tensor, "m b c y x"]) -> Float[Tensor, "m b"]:
        return evaluate_target(subject, variants, target, score_type, size)

    with torch.no_grad():
        first = evaluate(images[None])
    return evaluate, max(1, size // len(images)), first


def images_per_pass(images: Float[Tensor, "b c y x"], *, backward: bool = False) -> int:
    """Return how many images to put into one pass of the model.

    On a CPU, as many as keep their activations in cache, since larger batches are slower. With a
    backward pass, eight: fewer are slower on an idle machine, more on a busy one.

    Args:
        backward: Whether a backward pass follows, for which activations are kept.

    Example:
        >>> images_per_pass(torch.zeros(1, 3, 112, 112)) == 16 * torch.get_num_threads()
        True
        >>> [images_per_pass(torch.zeros(1, 1, side, side), backward=True) for side in (4000, 4)]
        [1, 32]
    """
    count = 128  # of 224 x 224 pixels
    if images.device.type == "cpu":
        count = 8 if backward else min(4 * torch.get_num_threads(), count)
    count = max(1, count * 224 * 224 // (images.shape[2] * images.shape[3]))
    return min(count, 32) if backward else count


def evaluate_target(
    subject: Subject,
    variants: Float[Tensor, "m b *axes"],
    target: Target,
    score_type: ScoreType = "logits",
    internal_batch_size: int | None = None,
) -> Float[Tensor, "m b"]:
    """Return the value of the target for each variant of each image.

    Args:
        variants: Inputs of the subject: images, or tokens that one of its layers continues from.
        score_type: Whether class targets are `probabilities` or `logits`; other targets always get
            the output of the model.
        internal_batch_size: Images in one forward pass, for class targets; None for all at once.
    """
    kind = target.kind if isinstance(target, Score) else "function"
    shape, images = variants.shape[:2], variants.flatten(0, 1)
    output = subject.info.output
    if isinstance(target, Score) and kind == "class":
        parts = images.split(internal_batch_size or len(images))
        scores = torch.cat([subject.scores(part) for part in parts])
        if target.first_scores is None:
            target.first_scores, target.num_images = scores[: shape[1]].detach(), shape[1]
        if score_type == "probabilities":
            scores = probabilities(at_least_float32(scores), output)
        return target(scores).unflatten(0, shape)
    if kind == "thing":
        return target(subject.forward(images)).unflatten(0, shape)
    # A user's function gets one variant of all images at a time: outputs may have several parts.
    outputs: Any = map(subject.forward, variants)
    if not (output.key or output.error):
        outputs = subject.forward(images).unflatten(0, shape)
    return torch.stack([target(each) for each in outputs])
