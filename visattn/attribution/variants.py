"""Scores of many variants of images, in batches and a memory layout that suit the device."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from visattn.attribution.targets import (
    BatchedTarget,
    ClassTarget,
    ScoreType,
    Target,
    check_one_per_image,
    probabilities,
)
from visattn.functional.numerics import at_least_float32
from visattn.recording.frozen_model import with_grad
from visattn.recording.model_info import ExplainedModel

_PIXELS = 224 * 224
_IMAGES_PER_THREAD = 4  # of 224 x 224 pixels, whose activations fit into the caches of a core
_IMAGES_PER_DEVICE = 512
_IMAGES_PER_GRADIENT_BATCH = 32
_GRADIENT_BYTES = 2**30
_BYTES_PER_INPUT_BYTE = 256  # of activations in a forward pass, at most

VariantScorer = Callable[[Float[Tensor, "m b c y x"]], Float[Tensor, "m b"]]
"""Maps variants of images to one number for each."""


def images_per_batch(images: Float[Tensor, "b c y x"]) -> int:
    """Return how many images to put into one forward pass without gradients.

    On CPUs as many as have their activations in the caches: larger batches are slower. On other
    devices up to 512 images of 224 x 224 pixels, fewer if the memory of a GPU is small.

    Args:
        images: Give their size, dtype and device.

    Example:
        >>> import torch
        >>> count = images_per_batch(torch.zeros(1, 3, 112, 112))
        >>> count == 16 * torch.get_num_threads()
        True
    """
    on_cpu = images.device.type == "cpu"
    count = _IMAGES_PER_THREAD * torch.get_num_threads() if on_cpu else _IMAGES_PER_DEVICE
    count = count * _PIXELS // (images.shape[2] * images.shape[3])
    if images.device.type == "cuda" and torch.cuda.is_available():
        free, _ = torch.cuda.mem_get_info(images.device)
        needed = _BYTES_PER_INPUT_BYTE * images.shape[1:].numel() * images.element_size()
        count = min(count, free // needed)
    return max(1, count)


def images_per_gradient_batch(explained: ExplainedModel, images: Float[Tensor, "b c y x"]) -> int:
    """Return how many images to put into one forward and backward pass.

    The activations that the model keeps for the backward pass are measured for one image. Of up to
    32 images they take at most 1 GiB on CPUs, where larger batches are not faster, and a quarter of
    the free memory on GPUs.

    Args:
        explained: The model, with frozen parameters.
        images: Normalized.

    Example:
        >>> import torch
        >>> from visattn.recording.model_info import ModelInfo
        >>> info = ModelInfo("tiny", "other", (2, 2), (0.5,), (0.5,), "none")
        >>> explained = ExplainedModel(torch.nn.Sigmoid(), info, torch.sigmoid)
        >>> images_per_gradient_batch(explained, torch.zeros(1, 1, 4000, 4000))
        16
    """
    budget = _GRADIENT_BYTES
    if images.device.type == "cuda" and torch.cuda.is_available():
        budget = torch.cuda.mem_get_info(images.device)[0] // 4
    count = budget // max(1, _saved_bytes(explained, images[:1]))
    return min(max(1, count), _IMAGES_PER_GRADIENT_BATCH)


def _saved_bytes(explained: ExplainedModel, images: Tensor) -> int:
    """Return the size of all tensors that a forward pass keeps for the backward pass."""
    weights = {weight.untyped_storage().data_ptr() for weight in explained.model.parameters()}
    sizes: dict[int, int] = {}

    def note_size(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.enable_grad(), saved_tensors_hooks(note_size, lambda tensor: tensor):
        output = explained.forward(with_grad(images))
    del output  # not before: another tensor could get the address of one that is freed
    return sum(sizes.values())


def variants_per_batch(internal_batch_size: int, images: Float[Tensor, "b c y x"]) -> int:
    """Return how many variants of all images fit into one forward pass, at least one.

    Args:
        internal_batch_size: Images in one forward pass.
        images: Each of which has variants.

    Raises:
        ValueError: If the batch size is below 1.

    Example:
        >>> import torch
        >>> variants_per_batch(32, torch.zeros(3, 1, 2, 2))
        10
    """
    if internal_batch_size < 1:
        raise ValueError(f"internal_batch_size must be at least 1, got {internal_batch_size}")
    return max(1, internal_batch_size // len(images))


def variant_scorer(
    explained: ExplainedModel,
    images: Float[Tensor, "b c y x"],
    target: Target,
    *,
    score_type: ScoreType = "logits",
    internal_batch_size: int | None = None,
) -> tuple[VariantScorer, int]:
    """Return the function that scores variants of images, and how many variants to give it at once.

    Variants of a CNN are laid out channels last, which makes convolutions faster, if the model
    takes them: one that calls `view` on its features does not. The target is called with the images
    first. To be used without gradients.

    Args:
        explained: The model.
        images: Normalized.
        target: Function of the model's output.
        score_type: Whether a class target selects `probabilities` or `logits`.
        internal_batch_size: Images in one forward pass; None for as many as suit the device.

    Raises:
        ValueError: If the batch size is below 1.

    Example:
        >>> import torch
        >>> from visattn.functional.numerics import at_least_float32
        >>> from visattn.recording.model_info import ModelInfo
        >>> info = ModelInfo("tiny", "other", (2, 2), (0.5,), (0.5,), "none")
        >>> model, images = torch.nn.Flatten(), torch.zeros(1, 1, 1, 2)
        >>> score, count = variant_scorer(
        ...     ExplainedModel(model, info, model), images, ClassTarget([1]), internal_batch_size=3
        ... )
        >>> score(torch.tensor([[0.0, 5.0], [7.0, 6.0]]).view(2, 1, 1, 1, 2)).tolist(), count
        ([[5.0], [6.0]], 3)
    """
    size = images_per_batch(images) if internal_batch_size is None else internal_batch_size
    count = variants_per_batch(size, images)

    def evaluate(variants: Float[Tensor, "m b c y x"]) -> Float[Tensor, "m b"]:
        return evaluate_target(
            explained, variants, target, score_type=score_type, internal_batch_size=size
        )

    def channels_last(variants: Float[Tensor, "m b c y x"]) -> Float[Tensor, "m b"]:
        return evaluate(variants.movedim(2, -1).contiguous().movedim(-1, 2))

    if explained.info.attention_layers:
        evaluate(images[None])
        return evaluate, count
    try:
        channels_last(images[None])
    except RuntimeError:
        evaluate(images[None])
        return evaluate, count
    return channels_last, count


def evaluate_target(
    explained: ExplainedModel,
    variants: Float[Tensor, "m b c y x"],
    target: Target,
    *,
    score_type: ScoreType = "logits",
    internal_batch_size: int | None = None,
) -> Float[Tensor, "m b"]:
    """Return the value of the target for each variant of each image.

    Args:
        explained: The model.
        variants: Of b images, normalized.
        target: Function of the model's output.
        score_type: Whether a class target selects `probabilities` or `logits`; functions always
            get the output of the model.
        internal_batch_size: Images in one forward pass, for class targets; None for all at once.

    Raises:
        ValueError: If the score type is unknown.
    """
    if score_type not in ("probabilities", "logits"):
        raise ValueError(f"score_type must be 'probabilities' or 'logits', got {score_type!r}")
    if isinstance(target, BatchedTarget):
        values = target(explained.forward(variants.flatten(0, 1)))
        return values.unflatten(0, variants.shape[:2])
    if not isinstance(target, ClassTarget):
        count = variants.shape[1]
        outputs = _variant_outputs(explained, variants)
        return torch.stack([check_one_per_image(target(output), count) for output in outputs])
    batch = variants.flatten(0, 1)
    parts = batch.split(internal_batch_size or max(1, len(batch)))
    scores = torch.cat([explained.scores(part) for part in parts])
    if score_type == "probabilities":
        scores = probabilities(at_least_float32(scores), explained.info.output)
    return torch.stack([target(batch) for batch in scores.unflatten(0, variants.shape[:2])])


def _variant_outputs(
    explained: ExplainedModel, variants: Float[Tensor, "m b c y x"]
) -> Iterator[Any]:
    """Yield the output of the model for each variant; in one forward pass if it is a tensor."""
    if explained.info.output.key or explained.info.output.error:
        yield from map(explained.forward, variants)
        return
    output = explained.forward(variants.flatten(0, 1))
    yield from output.unflatten(0, variants.shape[:2])


def noisy_copies(
    images: Float[Tensor, "b c y x"], num_samples: int, stdev_spread: float, seed: int
) -> Iterator[Float[Tensor, "b c y x"]]:
    """Return an iterator of noisy copies of images, all of which get the same noise.

    Args:
        images: Normalized.
        num_samples: Number of copies.
        stdev_spread: Standard deviation of the noise, relative to the range (max - min) of each
            image.
        seed: Of the noise.

    Raises:
        ValueError: If there are no samples, or the noise is negative.

    Example:
        >>> images = torch.tensor([0.0, 1.0]).expand(2, 1, 1, 2)
        >>> first, second = noisy_copies(images, 2, 0.1, seed=0)
        >>> torch.equal(first[0], first[1]), torch.equal(first, second)
        (True, False)
    """
    if num_samples < 1 or not stdev_spread >= 0:
        raise ValueError(
            "num_samples must be at least 1 and stdev_spread at least 0, got "
            f"{num_samples=}, {stdev_spread=}"
        )
    random = torch.Generator().manual_seed(seed)
    spread = images.amax((1, 2, 3), keepdim=True) - images.amin((1, 2, 3), keepdim=True)
    noise = (torch.randn(images.shape[1:], generator=random) for _ in range(num_samples))
    return (images + stdev_spread * spread * each.to(images) for each in noise)
