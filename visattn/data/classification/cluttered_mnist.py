"""Cluttered MNIST: digits at random positions among pieces of other digits."""

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from visattn.data.classification.datasets import TorchvisionImages
from visattn.data.loading import per_sample_uniforms
from visattn.data.source import Source
from visattn.results.kinds import Split


def ink_boxes(digits: UInt8[Tensor, "n 1 y x"]) -> Int[Tensor, "n 4"]:
    """Return top, left, bottom and right of the pixels above 0; the whole image if there are none.

    Example:
        >>> digit = torch.zeros(1, 1, 5, 7, dtype=torch.uint8)
        >>> digit[..., 1:4, 3] = 255
        >>> ink_boxes(digit).tolist()
        [[1, 3, 4, 4]]
    """
    ends = []
    for axis in (3, 2):  # rows with ink, then columns
        ink = (digits > 0).any(axis)[:, 0]
        ink |= ~ink.any(1, keepdim=True)
        first = ink.int().argmax(1)
        ends.append((first, ink.shape[1] - ink.flip(1).int().argmax(1)))
    (top, bottom), (left, right) = ends
    return torch.stack((top, left, bottom, right), 1)


def resize_weights(
    starts: Float[Tensor, "b n"], scales: Float[Tensor, "b n"], out: int, size: int
) -> Float[Tensor, "b n {out} {size}"]:
    """Return the weights of antialiased bilinear resizing along one axis.

    Output pixel 0 begins at `starts`, in pixels of the image; outside the image is black. Scales
    are at least 0.5. Products with float64 images, rounded, are the same on every machine.

    Example:
        >>> starts, scales = torch.tensor([[1.0]]), torch.tensor([[2.0]])
        >>> resize_weights(starts, scales, 2, 3)[0, 0]
        tensor([[0.2500, 0.7500, 0.0000],
                [0.0000, 0.7500, 0.2500]])
    """
    centers = starts[..., None] + (torch.arange(out) + 0.5) / scales[..., None]
    # With scales of at least 0.5 the triangle filter is at most two pixels wide on either side.
    # Black pixels beyond the image count in the sum, so that ink fades there, and are cut off.
    pixels = torch.arange(-2, size + 2) + 0.5
    support = scales.clamp(max=1)[..., None, None]
    weights = (1 - (centers[..., None] - pixels).abs() * support).clamp(min=0)
    weights = weights / weights.sum(-1, keepdim=True).clamp(min=0.5)
    return weights[..., 2:-2]


@dataclass(frozen=True)
class ClutterSpec:
    """Canvas size and distractors of cluttered MNIST.

    Args:
        size: Height and width of the canvas in pixels.
        num_distractors: Number of distractors: pieces of other digits.
        distractor_size: Height and width of a distractor in pixels.
    """

    size: tuple[int, int] = (60, 60)
    num_distractors: int = 0
    distractor_size: int = 8

    def check_fit(self, digits: Tensor, sources: Tensor) -> None:
        """Raise if digits or distractors are larger than the canvas."""
        size = self.distractor_size if self.num_distractors else 1
        if any(d > c for d, c in zip(digits.shape[2:], self.size, strict=True)) or size > min(
            *sources.shape[2:], *self.size
        ):
            raise ValueError(
                f"digits of {tuple(digits.shape[2:])} and distractors of {size} pixels must fit on "
                f"a canvas of {self.size}, distractors into digits of {tuple(sources.shape[2:])}"
            )

    def distractors(
        self,
        uniforms: Float[Tensor, "b n"],
        sources: UInt8[Tensor, "m c y x"],
        own: Int[Tensor, " b"] | None = None,
    ) -> "Distractors":
        """Sample distractors: random crops of the sources, except a canvas's own digit.

        Each takes five random numbers.
        """
        values = uniforms.view(len(uniforms), self.num_distractors, 5)
        numbers = (values[..., 0] * (len(sources) - (own is not None))).long()
        if own is not None:
            # Skip the canvas's own digit: indices from it on move up by one.
            numbers += numbers >= own[:, None]
        room, width = torch.tensor(sources.shape[2:]), self.distractor_size - 1
        crops = (values[..., 1:3] * (room - width)).long()
        corners = (values[..., 3:] * (torch.tensor(self.size) - width)).long()
        return Distractors(numbers, crops, corners)


class Distractors(NamedTuple):
    """Square pieces of digits on canvases; corners are top and left, in pixels."""

    sources: Int[Tensor, "b p"]
    """Indices of the digits that they are cropped from."""
    crops: Int[Tensor, "b p 2"]
    """Corner of each in its source digit."""
    distractors: Int[Tensor, "b p 2"]
    """Corner of each on the canvas."""

    def paste(
        self, canvases: UInt8[Tensor, "b c y x"], sources: UInt8[Tensor, "m c y2 x2"], size: int
    ) -> None:
        """Add them to canvases, in place: the first of each canvas, then the second, and so on."""
        windows = sources.unfold(2, size, 1).unfold(3, size, 1)
        rows, columns = self.crops.unbind(-1)
        patches = windows[self.sources.T, :, rows.T, columns.T]
        for pieces, corners in zip(patches, self.distractors.unbind(1), strict=True):
            paste(canvases, pieces, corners)


class Canvases(Sequence[Any]):
    """Base class of canvases with digits: canvas i depends on the seed and on i alone.

    There are as many canvases as digits; indices beyond the length give each epoch its own
    canvases.

    Args:
        digits: Images of one size.
        labels: Class index of each digit.
        spec: Settings of the canvases.
        seed: Seed of the canvases; at least 0.
        distractor_source: Digits that distractors are cropped from; `digits` if None.
    """

    endless = True  # indices beyond the length give other canvases

    def __init__(
        self,
        digits: UInt8[Tensor, "n c y x"],
        labels: Int[Tensor, " n"],
        spec: Any,
        *,
        seed: int = 0,
        distractor_source: UInt8[Tensor, "m c y2 x2"] | None = None,
    ) -> None:
        self.digits = digits
        self.labels = labels
        self.spec = spec
        self.seed = seed
        self.exclude_self = distractor_source is None
        self.distractor_source = digits if distractor_source is None else distractor_source
        self.check_fit()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: Any) -> Any:
        return self.__getitems__([index])[0]

    @abstractmethod
    def __getitems__(self, indices: list[int]) -> list[Any]:
        """Return several canvases with their labels."""

    @abstractmethod
    def check_fit(self) -> None:
        """Raise if digits or distractors do not fit on the canvas."""


class ClutteredMNIST(Canvases):
    """Digits at random positions on black canvases, overlaid with crops of other digits.

    The digit is pasted first, then the distractors. All positions inside the canvas are equally
    likely, and so are all crops of a digit. With n digits, canvas i + n shows digit i at another
    position. Distractors are never cropped from the digit itself.

    Raises:
        ValueError: If a digit does not fit on the canvas, or a distractor into digit and canvas.

    Example:
        >>> digits = torch.full((3, 1, 5, 5), 200, dtype=torch.uint8)
        >>> dataset = ClutteredMNIST(digits, torch.arange(3), ClutterSpec((7, 11)))
        >>> images, labels = dataset.draw([2, 0])
        >>> tuple(images.shape), labels.tolist(), int((images > 0).sum())
        ((2, 1, 7, 11), [2, 0], 50)

    Source:
        Mnih et al. 2014, arXiv:1406.6247, section 4.1, which does not say how distractors overlap.
    """

    spec: ClutterSpec

    def check_fit(self) -> None:
        """Raise if digits or distractors are larger than the canvas."""
        self.spec.check_fit(self.digits, self.distractor_source)

    def __getitems__(self, indices: list[int]) -> list[tuple[Tensor, int]]:
        """Return several canvases with their classes."""
        images, labels = self.draw(indices)
        return list(zip(images, labels.tolist(), strict=True))

    def draw(self, indices: Sequence[int]) -> tuple[UInt8[Tensor, "b c y x"], Int[Tensor, " b"]]:
        """Return the canvases with these indices and their classes."""
        rows = torch.tensor(indices) % len(self)
        digits = self.digits[rows]
        corners, distractors = self.placements(indices)
        canvases = digits.new_zeros((*digits.shape[:2], *self.spec.size))
        paste(canvases, digits, corners)
        if self.spec.num_distractors:
            distractors.paste(canvases, self.distractor_source, self.spec.distractor_size)
        return canvases, self.labels[rows]

    def placements(self, indices: Sequence[int]) -> tuple[Int[Tensor, "b 2"], Distractors]:
        """Return the corners of the digits, top and left, on canvases, and their distractors."""
        uniforms = per_sample_uniforms(self.seed, indices, 2 + 5 * self.spec.num_distractors)
        room = torch.tensor(self.spec.size) - torch.tensor(self.digits.shape[2:]) + 1
        own = torch.tensor(indices) % len(self) if self.exclude_self else None
        distractors = self.spec.distractors(uniforms[:, 2:], self.distractor_source, own)
        return (uniforms[:, :2] * room).long(), distractors

    @cached_property
    def centers(self) -> Float[Tensor, "n 2"]:
        """Center of each digit on its first canvas: x and y, from -1 to 1 across the canvas."""
        corners, _ = self.placements(range(len(self)))
        centers = corners + torch.tensor(self.digits.shape[2:]) / 2
        return (2 * centers / torch.tensor(self.spec.size) - 1).flip(1)


def canvas_digest(canvases: Any) -> str:
    """Return the SHA-256 of the first canvases of a dataset and their labels, in hexadecimal."""
    size = canvases.draw([0])[0].shape[2:]
    digest = hashlib.sha256(repr((len(canvases), *size)).encode())
    for chunk in torch.arange(len(canvases)).split(512):
        images, labels, *_ = canvases.draw(chunk.tolist())
        digest.update(images.numpy().tobytes())
        digest.update(labels.numpy().astype("<i8").tobytes())
    return digest.hexdigest()


def paste(
    canvases: UInt8[Tensor, "b c y x"],
    patches: UInt8[Tensor, "b c h w"],
    corners: Int[Tensor, "b 2"],
    combine: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> None:
    """Add a patch to each canvas, in place: their sum, at most 255, or the result of `combine`.

    Canvases are contiguous; corners are top and left in pixels, and patches lie inside.

    Example:
        >>> canvas = torch.tensor([[[[0, 200, 100]]]], dtype=torch.uint8)
        >>> paste(canvas, canvas[..., 1:].clone(), torch.tensor([[0, 0]]))
        >>> canvas.flatten().tolist()
        [200, 255, 100]
    """
    height, width = patches.shape[2:]
    stride = canvases.shape[3]
    # Indices into flattened canvases: the corner differs per canvas, so a slice cannot do it.
    offsets = (torch.arange(height)[:, None] * stride + torch.arange(width)).flatten()
    pixels = (corners[:, :1] * stride + corners[:, 1:] + offsets)[:, None]
    pixels = pixels.expand(-1, canvases.shape[1], -1)
    flat_canvases = canvases.view(*canvases.shape[:2], -1)
    below = flat_canvases.gather(2, pixels)
    flat_canvases.scatter_(2, pixels, (combine or _sum)(below, patches.flatten(2)))


def _sum(below: Tensor, above: Tensor) -> Tensor:
    return below + torch.minimum(255 - below, above)


@dataclass
class DigitSource(Source):
    """Base class of sources of canvases with MNIST digits.

    Args:
        root: Folder with `MNIST/raw`.
        val: Number of training digits held out for validation.
        seed: Seed of the training canvases; by default the seed of the data module.
        split_seed: Seed of the choice of validation digits, and of validation and test canvases.
        download: Download missing files.
    """

    root: str
    val: int = 5000
    seed: int | None = None
    split_seed: int = 0
    download: bool = False
    num_workers = 0

    def digits(self, split: Split) -> dict[str, Any]:
        """Return the digits of a split, their seed, and the digits that distractors are cut from.

        The seeds of training, validation and test are 0, 1 and 2 modulo 3, so no two of them are
        equal, whatever `seed` and `split_seed` are.
        """
        mnist = TorchvisionImages("MNIST", self.root, self.val, self.split_seed, self.download)
        part, number = mnist(split), ("train", "validation", "test").index(split)
        return {
            "digits": part.images,
            "labels": part.labels,
            "seed": 3 * (self.split_seed if number else self.seed or 0) + number,
            "distractor_source": mnist("train").images if number else None,
        }


@dataclass
class ClutteredDigits(DigitSource):
    """MNIST digits at random positions on a larger canvas, with distractors cut from other digits.

    Every epoch has its own training canvases; validation and test canvases are the same in every
    run. Other options as in `DigitSource`.

    Args:
        canvas: Canvas and distractors.
    """

    canvas: ClutterSpec = field(default_factory=ClutterSpec)
    class_names = tuple(map(str, range(10)))

    def __call__(self, split: Split) -> ClutteredMNIST:
        """Return the canvases of a split."""
        return ClutteredMNIST(**self.digits(split), spec=self.canvas)
