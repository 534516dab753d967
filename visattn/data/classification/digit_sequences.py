"""Sequences of digits: several MNIST digits on one canvas, in a row or scattered."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from visattn.data.classification.cluttered_mnist import (
    Canvases,
    ClutterSpec,
    DigitSource,
    ink_boxes,
    paste,
    resize_weights,
)
from visattn.data.loading import mix_seed, per_sample_uniforms
from visattn.data.source import to_device
from visattn.results.kinds import IGNORE_LABEL, Split

DigitLayout = Literal["row", "scattered"]
DigitTarget = Literal["sequence", "addition"]


# Independent random streams of one seed.
_CLUTTER_STREAM = 1
_TRIES_STREAM = 2
_TRIES, _ROUNDS = 32, 64  # placements sampled at once, rounds before giving up


@dataclass(frozen=True)
class DigitSequenceSpec:
    """Canvas, number, size and positions of the digits.

    Args:
        layout: `row`: from left to right, each at a random height. `scattered`: anywhere without
            overlapping boxes.
        canvas: Canvas size and distractors.
        min_digits: Smallest number of digits on a canvas.
        max_digits: Largest number of digits on a canvas; all numbers are equally likely.
        scale: Smallest and largest resize factor, sampled per digit.
        gap: Smallest and largest gap between the boxes of a row, in pixels.
        min_offset: Smallest horizontal distance between the centers of scattered digits, in pixels,
            so that their order from left to right is visible.
        target: The labels: the digits from left to right (`sequence`) or their sum (`addition`).

    """

    layout: DigitLayout = "row"
    canvas: ClutterSpec = field(default_factory=lambda: ClutterSpec((48, 160)))
    min_digits: int = 1
    max_digits: int = 5
    scale: tuple[float, float] = (1.0, 1.0)
    gap: tuple[int, int] = (1, 6)
    min_offset: int = 4
    target: DigitTarget = "sequence"

    def __post_init__(self) -> None:
        """Raise for scales at which resizing would skip pixels."""
        if self.scale[0] < 0.5:
            raise ValueError(f"scale must be at least 0.5, got {self.scale}")

    @property
    def num_classes(self) -> int:
        """Number of classes of a label: 10, or the number of possible sums."""
        return 10 if self.target == "sequence" else 9 * self.max_digits + 1

    @property
    def max_length(self) -> int:
        """Largest number of labels of a canvas."""
        return self.max_digits if self.target == "sequence" else 1


class DigitSequenceBatch(NamedTuple):
    """Canvases with their labels and the true boxes of their digits."""

    images: UInt8[Tensor, "b 1 y x"]
    labels: Int[Tensor, "b t"]
    """Class indices, padded with `IGNORE_LABEL`."""
    lengths: Int[Tensor, " b"]
    """Number of labels of each canvas."""
    boxes: Float[Tensor, "b n 4"]
    """Left, top, right and bottom of each digit in pixels, from left to right; padded with 0."""
    num_digits: Int[Tensor, " b"]
    """Number of digits on each canvas; equals `lengths` unless the target is their sum."""

    @property
    def centers(self) -> Float[Tensor, "b n 2"]:
        """Center of each digit: x and y, from -1 to 1 across the canvas; 0 for padding."""
        height, width = self.images.shape[-2:]
        centers = (self.boxes[..., :2] + self.boxes[..., 2:]) / self.boxes.new_tensor(
            [width, height]
        )
        index = torch.arange(self.boxes.shape[1], device=centers.device)
        present = index < self.num_digits[:, None]
        return torch.where(present.unsqueeze(-1), centers - 1, 0)

    to = to_device


def collate_sequences(samples: Sequence[tuple[Tensor, ...]]) -> DigitSequenceBatch:
    """Stack canvases into a batch."""
    return DigitSequenceBatch(*map(torch.stack, zip(*samples, strict=True)))


class DigitPlacements(NamedTuple):
    """Digits of each canvas from left to right; entries from `num_digits` on are padding.

    `corners` are top and left of the ink on the canvas, `sizes` its height and width after
    resizing, both in pixels.
    """

    num_digits: Int[Tensor, " b"]
    sources: Int[Tensor, "b n"]
    scales: Float[Tensor, "b n"]
    corners: Int[Tensor, "b n 2"]
    sizes: Float[Tensor, "b n 2"]


class DigitSequences(Canvases):
    """Canvases with several digits.

    Each digit is cropped to its ink, resized and placed.

    Raises:
        ValueError: If the digits or distractors do not fit on the canvas.

    Example:
        >>> digits = torch.full((3, 1, 5, 5), 200, dtype=torch.uint8)
        >>> spec = DigitSequenceSpec(canvas=ClutterSpec((7, 23)), max_digits=2)
        >>> batch = DigitSequences(digits, torch.tensor([3, 1, 7]), spec, seed=2).draw([0, 1])
        >>> batch.labels.tolist(), batch.lengths.tolist()
        ([[1, -100], [3, 1]], [1, 2])
        >>> [int(image.count_nonzero()) for image in batch.images]
        [25, 50]

    Source:
        Ba et al. 2015, arXiv:1412.7755, section 4.1, for pairs and their sum.
    """

    spec: DigitSequenceSpec

    def check_fit(self) -> None:
        """Measure the digits; raise if they do not fit or cannot be scattered."""
        spec = self.spec
        self.ink_boxes = ink_boxes(self.digits)
        largest = (self.ink_boxes[:, 2:] - self.ink_boxes[:, :2]).amax(0).double() * spec.scale[1]
        self.patch_size = int(largest.max().ceil()) + 1
        _check_fit(spec, *largest.tolist())
        spec.canvas.check_fit(self.digits[..., :1, :1], self.distractor_source)
        self.placements(range(min(len(self), 64)))  # raises if they cannot be scattered

    def __getitems__(self, indices: list[int]) -> list[tuple[Tensor, ...]]:
        """Return several canvases with the fields of a batch for each."""
        return list(zip(*self.draw(indices), strict=True))

    def draw(self, indices: Sequence[int]) -> DigitSequenceBatch:
        """Return the batch of canvases with these indices."""
        placed = self.placements(indices)
        height, width = self.spec.canvas.size
        # Patches are larger than their ink: they extend into a margin that is cut off, and over
        # neighbors, whose ink survives their black border as the maximum is taken.
        margin = self.patch_size
        canvases = self.digits.new_zeros((len(indices), 1, height + margin, width + margin))
        patches = self._resized_digits(placed)
        for patch, corners in zip(patches.unbind(1), placed.corners.unbind(1), strict=True):
            paste(canvases, patch, corners, torch.maximum)
        canvases = canvases[..., :height, :width].contiguous()
        canvas, sources = self.spec.canvas, self.distractor_source
        if count := canvas.num_distractors:
            seed = mix_seed(self.seed, _CLUTTER_STREAM)
            distractors = canvas.distractors(per_sample_uniforms(seed, indices, 5 * count), sources)
            distractors.paste(canvases, sources, canvas.distractor_size)
        corners = placed.corners.float()
        boxes = torch.cat((corners, corners + placed.sizes), -1)[..., [1, 0, 3, 2]].float()
        labels, lengths = self._labels(placed)
        return DigitSequenceBatch(
            canvases,
            labels,
            lengths,
            boxes * self._present(placed.num_digits).unsqueeze(-1),
            placed.num_digits,
        )

    def placements(self, indices: Sequence[int]) -> DigitPlacements:
        """Return the digits of the canvases with these indices, and their positions."""
        spec = self.spec
        count = spec.max_digits
        uniforms = per_sample_uniforms(self.seed, indices, 2 + 4 * count)
        num_digits = (spec.min_digits + uniforms[:, 0] * (count - spec.min_digits + 1)).long()
        per_digit = uniforms[:, 2:].view(-1, 4, count).unbind(1)
        sources = (per_digit[0] * len(self)).long()
        scales = spec.scale[0] + per_digit[1] * (spec.scale[1] - spec.scale[0])
        boxes = self.ink_boxes[sources].double()
        sizes = (boxes[..., 2:] - boxes[..., :2]) * scales.unsqueeze(-1)
        if spec.layout == "row":
            gaps = (spec.gap[0] + per_digit[3] * (spec.gap[1] - spec.gap[0] + 1)).floor()
            corners = self._row_corners(num_digits, sizes, gaps, per_digit[2], uniforms[:, 1])
            return DigitPlacements(num_digits, sources, scales, corners, sizes)
        corners = self._scattered_corners(indices, num_digits, sizes)
        middle = (corners + sizes / 2)[..., 1].masked_fill(~self._present(num_digits), torch.inf)
        order = middle.argsort(dim=1, stable=True)
        sources = sources.gather(1, order)
        scales = scales.gather(1, order)
        order = order.unsqueeze(-1).expand(-1, -1, 2)
        return DigitPlacements(
            num_digits, sources, scales, corners.gather(1, order), sizes.gather(1, order)
        )

    def _present(self, num_digits: Int[Tensor, " b"]) -> Bool[Tensor, "b n"]:
        return torch.arange(self.spec.max_digits) < num_digits[:, None]

    def _labels(self, placed: DigitPlacements) -> tuple[Int[Tensor, "b t"], Int[Tensor, " b"]]:
        present = self._present(placed.num_digits)
        labels = self.labels[placed.sources]
        if self.spec.target == "addition":
            sums = (labels * present).sum(1, keepdim=True)
            return sums, torch.ones_like(placed.num_digits)
        return labels.masked_fill(~present, IGNORE_LABEL), placed.num_digits

    def _row_corners(
        self,
        num_digits: Int[Tensor, " b"],
        sizes: Float[Tensor, "b n 2"],
        gaps: Float[Tensor, "b n"],
        height_uniforms: Float[Tensor, "b n"],
        left_uniforms: Float[Tensor, " b"],
    ) -> Int[Tensor, "b n 2"]:
        height, width = self.spec.canvas.size
        present = self._present(num_digits)
        # A row is as wide as its digits and the gaps between them; `free` is what remains on both
        # sides. Three digits:
        #
        #     |  left  | digit gap digit gap digit |  right  |      left + right = free
        tops = height_uniforms * (height - sizes[..., 0])
        extents = (sizes[..., 1] + gaps) * present
        last_gap = gaps.gather(1, num_digits[:, None] - 1)
        free = width - (extents.sum(1, keepdim=True) - last_gap)
        lefts = left_uniforms[:, None] * free + extents.cumsum(1) - extents
        return (torch.stack((tops, lefts), -1) * present.unsqueeze(-1)).long()

    def _scattered_corners(
        self,
        indices: Sequence[int],
        num_digits: Int[Tensor, " b"],
        sizes: Float[Tensor, "b n 2"],
    ) -> Int[Tensor, "b n 2"]:
        """Sample positions uniformly, on condition that no two digits overlap.

        All digits of a canvas are resampled together until they do not overlap.
        """
        count = self.spec.max_digits
        corners = torch.zeros(len(indices), count, 2, dtype=torch.long)
        left = torch.arange(len(indices))
        for attempt in range(_ROUNDS):
            seed = mix_seed(self.seed, _TRIES_STREAM, attempt)
            uniforms = per_sample_uniforms(
                seed, [indices[row] for row in left.tolist()], _TRIES * count * 2
            ).view(-1, _TRIES, count, 2)
            own_sizes = sizes[left].unsqueeze(1)
            free = torch.tensor(self.spec.canvas.size) - own_sizes.ceil() + 1
            tries = (uniforms * free).long()
            present = self._present(num_digits[left]).unsqueeze(1)
            valid = self._apart(tries, own_sizes, present)
            first = valid.int().argmax(1)
            done = valid.any(1)
            corners[left[done]] = tries[torch.arange(len(left)), first][done]
            left = left[~done]
            if not len(left):
                return corners * self._present(num_digits).unsqueeze(-1)
        raise ValueError(
            f"{int(num_digits[left[0]])} digits could not be scattered without overlap on a canvas "
            f"of {self.spec.canvas.size} in {_TRIES * _ROUNDS} attempts; use a larger canvas, a "
            "smaller scale, or fewer digits"
        )

    def _apart(
        self,
        corners: Int[Tensor, "b k n 2"],
        sizes: Float[Tensor, "b 1 n 2"],
        present: Bool[Tensor, "b 1 n"],
    ) -> Bool[Tensor, "b k"]:
        """Return whether no two digits overlap and all are at least `min_offset` apart."""
        ends = corners + sizes
        before = ends.unsqueeze(3) <= corners.unsqueeze(2)  # digit i ends before digit j starts
        disjoint = (before | before.transpose(2, 3)).any(-1)
        middle = (corners + sizes / 2)[..., 1]
        offset = (middle.unsqueeze(3) - middle.unsqueeze(2)).abs() >= self.spec.min_offset
        pairs = present.unsqueeze(3) & present.unsqueeze(2)
        pairs = pairs & torch.ones_like(pairs).triu(1)
        return (disjoint & offset | ~pairs).all(-1).all(-1)

    def _resized_digits(self, placed: DigitPlacements) -> UInt8[Tensor, "b n 1 p p"]:
        """Return each digit, resized, with the corner of its ink at the corner of its patch."""
        boxes = self.ink_boxes[placed.sources].double()
        digits = self.digits[placed.sources, 0].double()
        vertical, horizontal = (
            resize_weights(boxes[..., axis], placed.scales, self.patch_size, digits.shape[2 + axis])
            for axis in (0, 1)
        )
        patches = (vertical @ digits @ horizontal.mT).round()
        present = self._present(placed.num_digits)[:, :, None, None]
        return (patches * present).to(torch.uint8).unsqueeze(2)


def _check_fit(spec: DigitSequenceSpec, height: float, width: float) -> None:
    """Raise if the largest digits do not fit on the canvas."""
    needed = width
    if spec.layout == "row":
        needed = spec.max_digits * width + (spec.max_digits - 1) * spec.gap[1]
    if height > spec.canvas.size[0] or needed > spec.canvas.size[1]:
        raise ValueError(
            f"{spec.max_digits} digits of up to {height:.4g} x {width:.4g} pixels need a canvas of "
            f"at least {height:.4g} x {needed:.4g} (height x width) for the layout "
            f"{spec.layout!r}, got {spec.canvas.size}; use a larger canvas, a smaller scale, "
            "smaller gaps or fewer digits"
        )


@dataclass
class DigitCanvases(DigitSource):
    """Several MNIST digits on one canvas, labeled from left to right.

    Each split has as many canvases as digits; every epoch has its own canvases. Other options as in
    `DigitSource`.

    Args:
        spec: Canvas, number, size and positions of the digits.
    """

    spec: DigitSequenceSpec = field(default_factory=DigitSequenceSpec)

    def __post_init__(self) -> None:
        self.class_names = tuple(map(str, range(self.spec.num_classes)))

    def __call__(self, split: Split) -> DigitSequences:
        """Return the canvases of a split."""
        return DigitSequences(**self.digits(split), spec=self.spec)
