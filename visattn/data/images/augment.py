"""Images changed at random for training, a whole batch at once, each image in its own way."""

import difflib
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample, pad
from torchvision.transforms import v2

Spec = str | Mapping[str, Mapping[str, Any]]
"""How a config names an augmentation: `RandomHorizontalFlip`, or `RandomTranslate: {pixels: 4}`."""


class Augmentation(ABC):
    """A change of images, drawn anew for each image of a batch.

    What becomes of an image depends on its own random numbers alone, not on its batch.
    """

    draws: int
    """How many random numbers an image needs."""

    @abstractmethod
    def __call__(
        self, images: UInt8[Tensor, "b c y x"], uniforms: Float[Tensor, "b n"] | None = None
    ) -> UInt8[Tensor, "b c y2 x2"]:
        """Return the images changed.

        Args:
            images: They stay as they are.
            uniforms: What decides: for each image `draws` numbers, even in [0, 1). Drawn from
                torch's own generator if left out.
        """

    def _drawn(
        self, images: UInt8[Tensor, "b c y x"], uniforms: Float[Tensor, "b n"] | None
    ) -> Float[Tensor, "n b"]:
        """Return the first random numbers of all images, then the second, and so on."""
        if uniforms is None:
            return torch.rand(self.draws, len(images), dtype=torch.float64)
        return uniforms.T


class RandomHorizontalFlip(Augmentation):
    """Mirror some of the images, left to right.

    Args:
        share: How many of them, between 0 and 1.

    Example:
        >>> row = torch.tensor([[[[1, 2, 3]]]], dtype=torch.uint8)
        >>> RandomHorizontalFlip(1.0)(row).flatten().tolist()
        [3, 2, 1]
    """

    draws = 1

    def __init__(self, share: float = 0.5) -> None:
        if not 0 <= share <= 1:
            raise ValueError(f"share must lie between 0 and 1, got {share}")
        self.share = share

    def __call__(
        self, images: UInt8[Tensor, "b c y x"], uniforms: Float[Tensor, "b n"] | None = None
    ) -> UInt8[Tensor, "b c y2 x2"]:
        """Return the images, some of them mirrored."""
        (drawn,) = self._drawn(images, uniforms)
        return torch.where(drawn[:, None, None, None] < self.share, images.flip(-1), images)


class RandomTranslate(Augmentation):
    """Move each image by whole pixels; what comes in from outside is black.

    Args:
        pixels: How far at most, in each direction.

    Example:
        >>> RandomTranslate(0)(torch.tensor([[[[1, 2, 3]]]], dtype=torch.uint8)).flatten().tolist()
        [1, 2, 3]
    """

    draws = 2

    def __init__(self, pixels: int = 4) -> None:
        if pixels < 0:
            raise ValueError(f"pixels must be at least 0, got {pixels}")
        self.pixels = pixels

    def __call__(
        self, images: UInt8[Tensor, "b c y x"], uniforms: Float[Tensor, "b n"] | None = None
    ) -> UInt8[Tensor, "b c y2 x2"]:
        """Return the images, each cut out of itself with a black margin around it."""
        count, channels, height, width = images.shape
        wide = pad(images, (self.pixels,) * 4)
        cut = (self._drawn(images, uniforms) * (2 * self.pixels + 1)).long()
        top, left = cut.clamp(max=2 * self.pixels)[:, :, None]
        rows, columns = top + torch.arange(height), left + torch.arange(width)
        return wide[
            torch.arange(count)[:, None, None, None],
            torch.arange(channels)[:, None, None],
            rows[:, None, :, None],
            columns[:, None, None, :],
        ]


class Affine(Augmentation):
    """Turn, scale and move each image; what comes in from outside is black.

    Args:
        degrees: How far an image is turned at most, in either direction.
        scale: Smallest and largest scale; scales are drawn evenly.
        shift: How far an image is moved at most in each direction, as a share of the canvas.
        canvas: Height and width, in pixels, of what the image is laid on; None for its own.

    Example:
        >>> Affine(scale=(1, 1), canvas=(1, 5))(torch.tensor([[[[9]]]], dtype=torch.uint8)).tolist()
        [[[[0, 0, 9, 0, 0]]]]
    """

    draws = 4

    def __init__(
        self,
        degrees: float = 0.0,
        scale: Sequence[float] = (1.0, 1.0),
        shift: float = 0.0,
        canvas: Sequence[int] | None = None,
    ) -> None:
        if len(scale) != 2 or not 0 < scale[0] <= scale[1] or min(degrees, shift) < 0:
            raise ValueError(
                "scale must be a smallest and a largest number above 0, degrees and shift at least "
                f"0; got scale={scale}, degrees={degrees}, shift={shift}"
            )
        self.degrees, self.scale, self.shift = degrees, (scale[0], scale[1]), shift
        self.canvas = None if canvas is None else (canvas[0], canvas[1])

    def __call__(
        self, images: UInt8[Tensor, "b c y x"], uniforms: Float[Tensor, "b n"] | None = None
    ) -> UInt8[Tensor, "b c y2 x2"]:
        """Return the images turned, scaled and moved, in between pixels by interpolation."""
        count, channels, height, width = images.shape
        canvas = self.canvas or (height, width)
        grid = affine_grid(
            self._ways(self._drawn(images, uniforms).float(), (height, width), canvas),
            [count, channels, *canvas],
            align_corners=False,
        )
        return grid_sample(images.float(), grid, align_corners=False).round().to(torch.uint8)

    def _ways(
        self, drawn: Float[Tensor, "4 b"], size: tuple[int, int], canvas: tuple[int, int]
    ) -> Float[Tensor, "b 2 3"]:
        """Return, per image, the way from a place on the canvas back to one on the image."""
        turn, scale, right, down = drawn
        angle = (2 * turn - 1) * math.radians(self.degrees)
        scale = self.scale[0] + scale * (self.scale[1] - self.scale[0])
        cosine, sine = angle.cos() / scale, angle.sin() / scale
        back = torch.stack([cosine, sine, -sine, cosine], -1).view(-1, 2, 2)
        moved = (2 * torch.stack([right, down], -1) - 1) * self.shift
        ends = torch.tensor([canvas[1], canvas[0]]) / 2  # both grids run from -1 to 1
        back = back * ends / torch.tensor([[size[1]], [size[0]]]) * 2
        return torch.cat([back, -(back @ (2 * moved)[:, :, None])], 2)


class EachAlone(Augmentation):
    """A transform of torchvision, for one image after the other.

    Args:
        transform: Takes and gives bytes. It draws from torch's own generator, which is set for
            each image and then put back; the first of its random numbers decides how.

    Example:
        >>> flip = EachAlone(v2.RandomHorizontalFlip(p=1.0))
        >>> flip(torch.tensor([[[[1, 2, 3]]]], dtype=torch.uint8)).flatten().tolist()
        [3, 2, 1]
    """

    draws = 1

    def __init__(self, transform: v2.Transform) -> None:
        self.transform = transform

    def __call__(
        self, images: UInt8[Tensor, "b c y x"], uniforms: Float[Tensor, "b n"] | None = None
    ) -> UInt8[Tensor, "b c y2 x2"]:
        """Return the images, each transformed.

        Raises:
            TypeError: If no bytes come out.
        """
        (drawn,) = self._drawn(images, uniforms)
        seeds = (drawn.double() * 2**53).long().tolist()
        kept = torch.default_generator.get_state()
        changed = torch.stack(
            [self._changed(image, seed) for image, seed in zip(images, seeds, strict=True)]
        )
        torch.default_generator.set_state(kept)
        if changed.dtype != torch.uint8:
            raise TypeError(
                f"{type(self.transform).__name__} gives {changed.dtype} where bytes must come out; "
                "the classifier normalizes by itself, so leave such a transform out"
            )
        return changed

    def _changed(self, image: UInt8[Tensor, "c y x"], seed: int) -> Tensor:
        torch.default_generator.manual_seed(seed)
        return self.transform(image)


_OURS: dict[str, type[Augmentation]] = {
    kind.__name__: kind for kind in (RandomHorizontalFlip, RandomTranslate, Affine)
}


def augmentation(spec: Spec) -> Augmentation:
    """Return the augmentation that a config names.

    Args:
        spec: A name, or a name with its options. `RandomHorizontalFlip`, `RandomTranslate` and
            `Affine` change a whole batch at once; all other names are those of
            `torchvision.transforms.v2`.

    Raises:
        ValueError: If there is no such name, or it does not take these options.

    Example:
        >>> augmentation({"RandomTranslate": {"pixels": 2}}).pixels
        2
        >>> augmentation("RandomInvert").transform
        RandomInvert(p=0.5)
    """
    parts = {spec: {}} if isinstance(spec, str) else dict(spec)
    if len(parts) != 1:
        raise ValueError(f"an augmentation is one name with its options, got {', '.join(parts)}")
    ((name, options),) = parts.items()
    foreign = vars(v2).get(name)
    transform = isinstance(foreign, type) and issubclass(foreign, v2.Transform)
    if name not in _OURS and not transform:
        known = [*_OURS, *(found for found in vars(v2) if found[0].isupper())]
        close = difflib.get_close_matches(name, known, n=3) or [*_OURS]
        raise ValueError(f"there is no augmentation {name!r}; did you mean {' or '.join(close)}?")
    try:
        if name in _OURS:
            return _OURS[name](**options)
        return EachAlone(vars(v2)[name](**options))
    except TypeError as error:
        raise ValueError(f"{name} does not take these options: {error}") from error
