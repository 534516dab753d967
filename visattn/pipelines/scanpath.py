"""Scan paths of glimpse models, placed on the original images."""

import math
import zlib
from collections.abc import Iterable
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor, nn

from visattn.attribution.saliency import itti_koch_saliency, saliency_scanpaths
from visattn.images.reader import ImageLike, LoadedImage
from visattn.images.resize import ResizeMode, ResizeSpec, resize_to_input
from visattn.images.sources import read_images
from visattn.models.glimpses.ram import RecurrentAttentionModel
from visattn.models.loaded import loaded_with
from visattn.pipelines.inputs import note_photo
from visattn.recording.frozen import eval_mode
from visattn.results.info import MapInfo
from visattn.results.values import ScanPath

Policy = Literal["greedy", "sampled", "random", "raster", "saliency"]


@torch.no_grad()
def glimpses(
    model: nn.Module,
    images: Iterable[ImageLike] | ImageLike,
    *,
    policy: Policy = "greedy",
    seed: int = 0,
    resize_mode: ResizeMode | None = None,
) -> list[ScanPath]:
    """Return the scan path of a glimpse model on each image.

    The training mode and the random state are restored. Random locations depend only on the seed
    and the image.

    Args:
        model: A trained glimpse model, as `load` returns it.
        images: One image or several, or folders, as for `visattn.caption`.
        policy: The mean of the learned policy (`greedy`), samples of it (`sampled`) as in
            training, or a baseline: `random` locations, a `raster`, the peaks of `saliency`.
        seed: Seed of random initial locations, samples and random locations (32 bits).
        resize_mode: How images get the shape of the input: central `crop`, `squash`, or `pad`; by
            default as in the training of the model, or `crop` if that is unknown.

    Raises:
        TypeError: If the model is not a glimpse model.
        ImageError: If an image cannot be read.
        ValueError: If the policy or resize mode does not exist, or the model outputs NaN.

    Example:
        >>> from visattn.models import RecurrentAttentionModel
        >>> model = RecurrentAttentionModel(
        ...     ("cat", "dog"), (24, 24), (0.5,), (0.5,), glimpse_size=5, num_glimpses=3
        ... )
        >>> [scan] = glimpses(model, np.zeros((60, 80, 3), np.uint8))
        >>> scan.boxes.shape, scan.maps.geometry.image_size
        (torch.Size([3, 1, 4]), (60, 80))

    Source:
        Mnih et al. 2014, arXiv:1406.6247; for sequences Ba et al. 2015, arXiv:1412.7755.
    """
    if not isinstance(model, RecurrentAttentionModel):
        raise TypeError(
            "the model must be a glimpse model, such as RecurrentAttentionModel or DRAM, got "
            f"{type(model).__name__}"
        )
    if policy not in get_args(Policy):
        raise ValueError(f"policy must be one of {', '.join(get_args(Policy))}, got {policy!r}")
    resize_mode = resize_mode or loaded_with(model).resize_mode or "crop"
    level = round(255 * model.pad_value)
    spec = ResizeSpec(size=model.img_size, mode=resize_mode, fill=(level, level, level))

    with eval_mode(model):
        return [_scan(model, image, spec, policy, seed) for image in read_images(images)]


def _scan(
    model: RecurrentAttentionModel,
    image: LoadedImage,
    spec: ResizeSpec,
    policy: Policy,
    seed: int,
) -> ScanPath:
    """Return the scan path on one photo."""
    note_photo(model, image)
    resized, geometry = resize_to_input(image, spec)
    pixels = _to_channels(resized, len(model.mean))[None]
    inputs = pixels.to(model.shift.device)
    drawn: dict[str, Any] = _draw(model, resized, pixels, policy, seed)
    drawn = {name: values.to(inputs.device) for name, values in drawn.items()}
    rollout = model.rollout(model.normalize(inputs), **drawn)
    locations, logits = rollout.locations[0, 0].float(), rollout.logits[0, 0]
    if not (rollout.policy_means.isfinite().all() and logits.isfinite().all()):
        raise ValueError("the model outputs NaN or infinity: its weights are damaged")
    windows = model.retina.boxes(locations, model.img_size).cpu()
    return ScanPath(
        class_names=model.class_names,
        probabilities=logits.double().softmax(-1).cpu(),
        locations=locations.cpu(),
        boxes=geometry.to_image(windows.double().view(-1, 2)).view(windows.shape),
        patches=model.patches(inputs, locations[None])[0].cpu(),
        pixels=pixels[0],
        geometry=geometry,
        info=MapInfo(model=type(model).__name__, image=image.name, policy=policy, seed=seed),
        glimpses_per_label=model.num_glimpses_per_label if model.num_labels > 1 else None,
        end_class=model.end_class,
    )


def _draw(
    model: RecurrentAttentionModel,
    image: UInt8[Tensor, "3 y x"],
    pixels: UInt8[Tensor, "1 c y x"],
    policy: Policy,
    seed: int,
) -> dict[str, Tensor]:
    """Return arguments of `rollout`: noise and first location, or all locations.

    They depend on the seed and the image.
    """
    generator = torch.Generator().manual_seed(zlib.crc32(image.numpy().tobytes(), seed))  # 32 bits
    if policy in ("greedy", "sampled"):
        noise = torch.zeros(1, 1, model.num_glimpses, 2)
        if policy == "sampled":
            noise = torch.randn(noise.shape, generator=generator)
        start = torch.rand((1, 2), generator=generator) * 2 - 1
        return {"noise": noise} | ({"init_locations": start} if model.random_start else {})
    if policy == "random":
        return {"locations": torch.rand(1, model.num_glimpses, 2, generator=generator) * 2 - 1}
    if policy == "raster":
        return {"locations": raster_scanpaths(1, model.num_glimpses)}
    peaks = saliency_scanpaths(itti_koch_saliency(pixels / 255), model.num_glimpses)
    return {"locations": peaks}


def raster_scanpaths(num_images: int, num_glimpses: int) -> Float[Tensor, "b t 2"]:
    """Return the same raster scanpath for every image: over a grid, row by row.

    There are about as many rows as columns. If the number is not divisible, the upper rows have one
    more location; each row spans the whole width.

    Example:
        >>> raster_scanpaths(1, 5)[0]
        tensor([[-0.6667, -0.5000],
                [ 0.0000, -0.5000],
                [ 0.6667, -0.5000],
                [-0.5000,  0.5000],
                [ 0.5000,  0.5000]])
    """
    rows = max(1, round(math.sqrt(num_glimpses)))
    counts = [num_glimpses // rows + (row < num_glimpses % rows) for row in range(rows)]
    locations = [
        (2 * (column + 0.5) / count - 1, 2 * (row + 0.5) / rows - 1)
        for row, count in enumerate(counts)
        for column in range(count)
    ]
    return torch.tensor(locations).reshape(1, num_glimpses, 2).expand(num_images, -1, -1)


def _to_channels(pixels: UInt8[Tensor, "3 y x"], count: int) -> UInt8[Tensor, "c y x"]:
    """Return an image in color, or converted to gray."""
    if count == 3:
        return pixels
    gray = Image.fromarray(pixels.permute(1, 2, 0).numpy()).convert("L")
    return torch.from_numpy(np.array(gray))[None]
