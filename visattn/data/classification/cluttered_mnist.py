"""Digits laid on larger canvases, alone or among pieces of others (Mnih et al. 2014)."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from visattn.data.classification.datasets import LabeledBatch, LabeledImages
from visattn.data.images.augment import Augmentation
from visattn.data.loading.sample_seed import numbered_uniforms

Combine = Literal["sum", "max", "overwrite", "blend"]


@dataclass(frozen=True)
class ClutterSpec:
    """How a digit is laid on a canvas, and what is laid over it.

    Args:
        size: Height and width of the canvas in pixels.
        pieces: How many pieces of other digits.
        piece: Height and width of a piece in pixels.
        combine: What becomes of a pixel on which a piece comes to lie: the `sum` of both, at most
            255; the brighter of both (`max`); the piece, black where it is black (`overwrite`);
            or white paint, as dense as the piece is bright, over what was there (`blend`).

    Raises:
        ValueError: If there is no such way to combine, or a number makes no sense.
    """

    size: tuple[int, int] = (60, 60)
    pieces: int = 0
    piece: int = 8
    combine: Combine = "sum"

    def __post_init__(self) -> None:
        if self.combine not in get_args(Combine):
            known = ", ".join(get_args(Combine))
            raise ValueError(f"combine must be one of {known}; got {self.combine!r}")
        if min(self.size) < 1 or self.pieces < 0 or self.piece < 1:
            raise ValueError(
                "size and piece must be at least 1 pixel, pieces at least 0; got "
                f"size={self.size}, piece={self.piece}, pieces={self.pieces}"
            )


@dataclass(frozen=True)
class Placements:
    """Where everything on some canvases lies; corners are top and left, in pixels.

    Args:
        digits: The corner of each canvas's digit on the canvas.
        sources: The numbers of the digits that the pieces are cut out of.
        cuts: The corner of each piece in its digit.
        pieces: The corner of each piece on the canvas.
    """

    digits: Int[Tensor, "b 2"]
    sources: Int[Tensor, "b p"]
    cuts: Int[Tensor, "b p 2"]
    pieces: Int[Tensor, "b p 2"]


class ClutteredMNIST(LabeledImages):
    """Digits at random places of black canvases, and over them pieces of other digits.

    The digit comes first, then one piece after the other; every place at which a digit or a piece
    lies wholly on the canvas is as likely as any other, and so is every piece of a digit.
    Canvas i depends on the seed and on i alone. Numbers go on behind the last digit: with n
    digits, i + n is digit i on another canvas, which is how every epoch gets canvases of its own.

    Args:
        digits: All of one size.
        labels: The class of each.
        plan: How they are laid.
        seed: Another seed, other canvases; at least 0.
        clutter: The digits that pieces are cut out of. If None, those that are laid; but never
            the same digit.
        augmentations: Applied to the digits of a batch before they are laid. They must keep their
            size.

    Raises:
        ValueError: If a digit does not fit on the canvas, or a piece not into digit and canvas, or
            there is no other digit to cut pieces out of.

    Example:
        >>> digits = torch.full((3, 1, 5, 5), 200, dtype=torch.uint8)
        >>> laid = ClutteredMNIST(digits, torch.arange(3), ClutterSpec((7, 11)))
        >>> images, labels = laid[[2, 0]]
        >>> tuple(images.shape), labels.tolist(), int((images > 0).sum())
        ((2, 1, 7, 11), [2, 0], 50)

    Source:
        Mnih et al. 2014, arXiv:1406.6247, section 4.1. How pieces are combined is not said there.
    """

    def __init__(
        self,
        digits: UInt8[Tensor, "n c y x"],
        labels: Int[Tensor, " n"],
        plan: ClutterSpec,
        *,
        seed: int = 0,
        clutter: UInt8[Tensor, "m c y2 x2"] | None = None,
        augmentations: Sequence[Augmentation] = (),
    ) -> None:
        super().__init__(labels, augmentations, seed=seed)
        self.digits, self.plan = digits, plan
        self.among_themselves = clutter is None
        self.clutter = digits if clutter is None else clutter
        if seed < 0:
            raise ValueError(f"seed must be at least 0, got {seed}")
        _check_sizes(plan, (digits.shape[2], digits.shape[3]))
        others = len(self.clutter) - self.among_themselves
        if plan.pieces and (others < 1 or plan.piece > min(*self.clutter.shape[2:], *plan.size)):
            raise ValueError(
                f"pieces of {plan.piece} pixels a side must fit into other digits and into the "
                f"canvas; got {others} other digits of {tuple(self.clutter.shape[2:])} and a "
                f"canvas of {plan.size}"
            )

    def __getitem__(self, numbers: list[int]) -> LabeledBatch:
        """Return the canvases with these numbers."""
        chosen = self.rows(numbers)
        digits = self.changed(self.digits[chosen], numbers)
        if digits.shape[2:] != self.digits.shape[2:]:
            raise ValueError(
                "augmentations of digits that are laid on a canvas must keep their size, "
                f"{tuple(self.digits.shape[2:])}; got {tuple(digits.shape[2:])}"
            )
        placed = self.placements(numbers)
        canvases = digits.new_zeros((*digits.shape[:2], *self.plan.size))
        lay(canvases, digits, placed.digits, "overwrite")
        if self.plan.pieces:
            for pieces, corners in zip(self._cut(placed), placed.pieces.unbind(1), strict=True):
                lay(canvases, pieces, corners, self.plan.combine)
        return LabeledBatch(canvases, self.labels[chosen])

    def placements(self, numbers: Sequence[int]) -> Placements:
        """Return where everything on the canvases with these numbers lies."""
        pieces, piece = self.plan.pieces, self.plan.piece
        drawn = numbered_uniforms(self.seed, numbers, 2 + 5 * pieces)
        of_pieces = drawn[:, 2:].view(len(numbers), pieces, 5)
        canvas = torch.tensor(self.plan.size)
        digit = torch.tensor(self.digits.shape[2:])
        cut = torch.tensor(self.clutter.shape[2:])
        sources = (of_pieces[..., 0] * (len(self.clutter) - self.among_themselves)).long()
        if self.among_themselves:
            sources += sources >= self.rows(numbers)[:, None]  # skips itself
        return Placements(
            (drawn[:, :2] * (canvas - digit + 1)).long(),
            sources,
            (of_pieces[..., 1:3] * (cut - piece + 1)).long(),
            (of_pieces[..., 3:] * (canvas - piece + 1)).long(),
        )

    @cached_property
    def centers(self) -> Float[Tensor, "n 2"]:
        """The middle of each digit on its first canvas: x and y, from -1 to 1 across the canvas."""
        corners = self.placements(range(len(self))).digits
        middles = corners + torch.tensor(self.digits.shape[2:]) / 2
        return (2 * middles / torch.tensor(self.plan.size) - 1).flip(1)

    def digest(self) -> str:
        """Return the SHA-256 of all first canvases and their classes, as hexadecimal digits."""
        found = hashlib.sha256(repr((len(self), *self.plan.size)).encode())
        for some in torch.arange(len(self)).split(512):
            images, labels = self[some.tolist()]
            found.update(images.numpy().tobytes())
            found.update(labels.numpy().astype("<i8").tobytes())
        return found.hexdigest()

    def _cut(self, placed: Placements) -> UInt8[Tensor, "p b c h w"]:
        """Return the first piece of each canvas, then the second, and so on."""
        side = self.plan.piece
        squares = self.clutter.unfold(2, side, 1).unfold(3, side, 1)
        rows, columns = placed.cuts.unbind(-1)
        return squares[placed.sources.T, :, rows.T, columns.T]


def lay(
    canvases: UInt8[Tensor, "b c y x"],
    patches: UInt8[Tensor, "b c h w"],
    corners: Int[Tensor, "b 2"],
    combine: Combine,
) -> None:
    """Lay a patch on each canvas, which is changed.

    Args:
        canvases: Contiguous.
        patches: One for each canvas.
        corners: Top and left of each, in pixels; they must lie wholly on the canvas.
        combine: What becomes of the pixels below, as `ClutterSpec` says.

    Example:
        >>> canvas = torch.tensor([[[[0, 200, 100]]]], dtype=torch.uint8)
        >>> lay(canvas, canvas[..., 1:].clone(), torch.tensor([[0, 0]]), "sum")
        >>> canvas.flatten().tolist()
        [200, 255, 100]
    """
    height, width = patches.shape[2:]
    wide = canvases.shape[3]
    square = (torch.arange(height)[:, None] * wide + torch.arange(width)).flatten()
    pixels = (corners[:, :1] * wide + corners[:, 1:] + square)[:, None]
    pixels = pixels.expand(-1, canvases.shape[1], -1)
    flat, over = canvases.view(*canvases.shape[:2], -1), patches.flatten(2)
    if combine != "overwrite":
        over = _combined(flat.gather(2, pixels), over, combine)
    flat.scatter_(2, pixels, over)


def _combined(
    below: UInt8[Tensor, "b c p"], over: UInt8[Tensor, "b c p"], combine: Combine
) -> UInt8[Tensor, "b c p"]:
    if combine == "max":
        return torch.maximum(below, over)
    room = 255 - below
    if combine == "sum":
        return below + torch.minimum(room, over)
    return below + ((room.int() * over + 127) // 255).to(torch.uint8)


def _check_sizes(plan: ClutterSpec, digit: tuple[int, int]) -> None:
    if digit[0] > plan.size[0] or digit[1] > plan.size[1]:
        raise ValueError(
            f"a digit of {digit} pixels must fit on the canvas; got a canvas of {plan.size}"
        )
