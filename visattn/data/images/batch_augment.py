"""Augmentations of a batch on its device: RandAugment and random erasing, as torchvision's."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor
from torchvision.transforms import v2

from visattn.data.images.augment import (
    Affine,
    Augmentation,
    AugmentationSpec,
    RandomHorizontalFlip,
    RandomTranslate,
    augmentation_from,
)

_ATTEMPTS = 10  # of torchvision, to draw a rectangle that fits into the image


class RandAugment(Augmentation):
    """RandAugment of torchvision, for all images of a batch that draw the same operation at once.

    Args:
        options: Those of `torchvision.transforms.v2.RandAugment`.

    Example:
        >>> images = torch.zeros(5, 3, 4, 6, dtype=torch.uint8)
        >>> RandAugment(num_ops=1)(images).shape
        torch.Size([5, 3, 4, 6])

    Source:
        Cubuk et al. 2019, arXiv:1909.13719.
    """

    def __init__(self, **options: Any) -> None:
        self.transform = v2.RandAugment(**options)
        self.num_uniforms = 2 * self.transform.num_ops

    def __call__(
        self, images: UInt8[Tensor, "b c y x"], uniforms: Float[Tensor, "b n"] | None = None
    ) -> UInt8[Tensor, "b c y x"]:
        """Return the images after `num_ops` operations each."""
        space = list(self.transform._AUGMENTATION_SPACE)  # noqa: SLF001 (has no public name)
        for kinds, signs in self._uniforms_first(images, uniforms).split(2):
            operations = (kinds * len(space)).long().clamp(max=len(space) - 1)
            for number, name in enumerate(space):
                for negative in (False, True):
                    rows = ((operations == number) & ((signs <= 0.5) == negative)).nonzero()[:, 0]
                    if len(rows):
                        rows = rows.to(images.device, non_blocking=True)
                        images = images.index_copy(
                            0, rows, self._apply(images[rows], name, negative=negative)
                        )
        return images

    def _apply(
        self, images: UInt8[Tensor, "b c y x"], name: str, *, negative: bool
    ) -> UInt8[Tensor, "b c y x"]:
        """Return images after one operation at the configured magnitude."""
        transform = self.transform
        magnitudes, signed = transform._AUGMENTATION_SPACE[name]  # noqa: SLF001
        height, width = images.shape[-2:]
        values = magnitudes(transform.num_magnitude_bins, height, width)
        magnitude = 0.0 if values is None else float(values[transform.magnitude])
        result: Any = transform._apply_image_or_video_transform(  # noqa: SLF001
            images,
            name,
            -magnitude if signed and negative else magnitude,
            interpolation=transform.interpolation,
            fill=transform._fill,  # noqa: SLF001
        )
        return result


class RandomErasing(Augmentation):
    """Random erasing of torchvision, for a whole batch.

    Args:
        p: Probability that a rectangle of an image is erased.
        scale: Smallest and largest share of the image that is erased.
        ratio: Smallest and largest ratio of height to width.
        value: Value of erased pixels, 0 to 255: a number, or one per channel.

    Example:
        >>> images = torch.full((2, 1, 8, 8), 9, dtype=torch.uint8)
        >>> RandomErasing(p=1.0, value=3)(images).unique()
        tensor([3, 9], dtype=torch.uint8)

    Source:
        Zhong et al. 2017, arXiv:1708.04896.
    """

    num_uniforms = 1 + 2 * _ATTEMPTS + 2

    def __init__(
        self,
        p: float = 0.5,
        scale: Sequence[float] = (0.02, 0.33),
        ratio: Sequence[float] = (0.3, 3.3),
        value: float | Sequence[float] = 0,
    ) -> None:
        self.values = torch.tensor([value] if isinstance(value, int | float) else list(value))
        fits = 0 <= scale[0] <= scale[1] <= 1 and 0 < ratio[0] <= ratio[1] and 0 <= p <= 1
        if (
            not fits
            or self.values.ndim != 1
            or not bool(((self.values >= 0) & (self.values <= 255)).all())
        ):
            raise ValueError(
                "p must lie between 0 and 1, scale be a smallest and a largest share of the image, "
                "ratio a smallest and a largest ratio above 0, and value from 0 to 255; got "
                f"p={p}, scale={tuple(scale)}, ratio={tuple(ratio)}, value={value}"
            )
        self.p, self.scale, self.ratio = p, (scale[0], scale[1]), (ratio[0], ratio[1])

    def __call__(
        self, images: UInt8[Tensor, "b c y x"], uniforms: Float[Tensor, "b n"] | None = None
    ) -> UInt8[Tensor, "b c y x"]:
        """Return the images, some of them with an erased rectangle."""
        device = images.device
        height, width = images.shape[-2:]
        boxes = self._boxes(self._uniforms_first(images, uniforms), (height, width))
        top, left, bottom, right = boxes.to(device, non_blocking=True)[:, :, None, None, None]
        rows = torch.arange(height, device=device)[:, None]
        columns = torch.arange(width, device=device)
        inside = (rows >= top) & (rows < bottom) & (columns >= left) & (columns < right)
        values = self.values.to(images.dtype)[:, None, None].to(device, non_blocking=True)
        return torch.where(inside, values, images)

    def _boxes(self, uniforms: Float[Tensor, "n b"], size: tuple[int, int]) -> Tensor:
        """Return top, left, bottom and right of the rectangles; empty where nothing is erased."""
        (chosen,), areas, ratios, places = uniforms.split((1, _ATTEMPTS, _ATTEMPTS, 2))
        low, high = map(math.log, self.ratio)
        ratio = (low + ratios * (high - low)).exp()
        area = size[0] * size[1] * (self.scale[0] + areas * (self.scale[1] - self.scale[0]))
        heights, widths = (area * ratio).sqrt().round(), (area / ratio).sqrt().round()
        fits: Bool[Tensor, "a b"] = (heights < size[0]) & (widths < size[1])
        first = fits.int().argmax(0, keepdim=True)
        erased = (chosen < self.p) & fits.any(0)
        height, width = (sides.gather(0, first)[0] * erased for sides in (heights, widths))
        top = (places[0] * (size[0] - height + 1)).floor()
        left = (places[1] * (size[1] - width + 1)).floor()
        return torch.stack((top, left, top + height, left + width))


_BATCH_TRANSFORMS: dict[str, type[Augmentation]] = {
    transform.__name__: transform
    for transform in (RandomHorizontalFlip, RandomTranslate, Affine, RandAugment, RandomErasing)
}


def build_batch_transform(spec: AugmentationSpec) -> Augmentation:
    """Return the augmentation of a batch that a config names.

    Args:
        spec: A name, or a name with its options: `RandomHorizontalFlip`, `RandomTranslate`,
            `Affine`, `RandAugment` or `RandomErasing`.

    Raises:
        ValueError: If the name is unknown or does not accept these options.

    Example:
        >>> build_batch_transform({"RandomErasing": {"p": 0.25}}).p
        0.25
    """
    return augmentation_from(_BATCH_TRANSFORMS, spec, "transform of a batch")
