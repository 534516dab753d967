"""Images with marked quarters, and whether activations answer to each mark in its place."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import interpolate

QUARTERS = 4  # top left, top right, bottom left, bottom right
_BLOCKS = 16  # coarse noise, that averaging over small neighborhoods does not remove
_SHARE = 0.8  # of the pairs of cells that are in order; by chance it is 0.5
_PAIRS = 4  # as a grid of 2 x 2 has
_CHANNELS = 32  # that are looked at, evenly spread over all
_SILENT = 1e-8  # of the largest squared change, below which a place does not answer


def marked_images(
    channels: int, size: tuple[int, int], like: Tensor
) -> Float[Tensor, "4 c {size[0]} {size[1]}"]:
    """Return one noise four times, each time with other noise in another quarter.

    Marks are as loud as what they replace, so that what a model does to the whole image changes
    little and what changes is local.

    Args:
        channels: Of the images.
        size: Height and width.
        like: Of which type, and on which device.

    Example:
        >>> marked = marked_images(3, (10, 14), torch.zeros(1))
        >>> [(marked[0] != other)[0].nonzero().amax(0).tolist() for other in marked[1:]]
        [[4, 13], [9, 6], [9, 13]]
    """
    random = torch.Generator().manual_seed(0)
    coarse = torch.randn(2, channels, *(min(_BLOCKS, side) for side in size), generator=random)
    fine = torch.randn(2, channels, *size, generator=random)
    usual, other = 0.5 * fine + interpolate(coarse, size)
    rows, columns = (torch.arange(side) >= side // 2 for side in size)
    quarter = 2 * rows[:, None].long() + columns.long()
    chosen = quarter == torch.arange(QUARTERS)[:, None, None, None]
    return torch.where(chosen, other, usual).to(like)


def responses(found: Tensor, *, over: tuple[int, ...]) -> Float[Tensor, "4 ..."]:
    """Return how far each image's activations are from the mean of all four, squared.

    Args:
        found: Activations, with the four images along the first axis.
        over: Axes that are summed over.

    Example:
        >>> responses(torch.eye(4), over=(1,))
        tensor([0.7500, 0.7500, 0.7500, 0.7500])
    """
    own = found.detach().float()
    return (own - own.mean(0)).square().sum(over)


def silent(answers: Float[Tensor, "4 ..."]) -> Bool[Tensor, "..."]:
    """Return which places answer to no mark.

    Args:
        answers: As `responses` gives them.

    Example:
        >>> silent(torch.tensor([[0.0, 1.0], [0.0, 2.0], [0.0, 3.0], [0.0, 4.0]]))
        tensor([ True, False])
    """
    most = answers.amax(0)
    return ~(most > _SILENT * most.max())


@dataclass(frozen=True)
class Agreement:
    """How well the cells of a grid answer to the halves of the image in which they lie.

    Args:
        rows: Share of pairs of cells in one column, of the upper and of the lower half, of which
            the upper cell answers more to marks in the upper half; 0.5 by chance.
        columns: The same of cells in one row, of the left and of the right half.
        pairs: How many pairs there are.
        certain: Whether this leaves no doubt that the cells lie on the image in this order.
    """

    rows: float
    columns: float
    pairs: int
    certain: bool

    @property
    def share(self) -> float:
        """The smaller one of both shares."""
        return min(self.rows, self.columns)


def agreement(found: Float[Tensor, "4 c gy gx"]) -> Agreement:
    """Return whether each cell of a grid answers to its place in the image.

    A model may mix places, so that each mark changes every cell: what counts is which cells a mark
    changes more than others, beyond what it changes everywhere.

    Args:
        found: Activations for `marked_images`.

    Example:
        >>> straight = torch.eye(4).view(4, 1, 2, 2)
        >>> agreement(straight).certain, agreement(straight.flip(2)).certain
        (True, False)
    """
    channels = found.shape[1]
    own = found.detach()[:, :: -(-channels // _CHANNELS)].float()
    change = own - own.mean(0)
    local = change - change.mean((2, 3), keepdim=True)
    return max((_agreement(one.square().sum(1)) for one in (change, local)), key=_share)


def _share(agreed: Agreement) -> float:
    return agreed.share


def _agreement(answers: Float[Tensor, "4 gy gx"]) -> Agreement:
    floor = _SILENT * answers.max()
    if not bool(answers.isfinite().all()) or float(floor) == 0:
        return Agreement(0.5, 0.5, 0, certain=False)
    left_top, right_top, left_low, right_low = answers + floor
    upper = ((left_top + right_top) / (left_low + right_low)).log()
    left = ((left_top + left_low) / (right_top + right_low)).log()
    down, across = _ordered(upper), _ordered(left.mT)
    pairs = down.numel() + across.numel()
    rows, columns = (float(one.float().mean()) if one.numel() else 1.0 for one in (down, across))
    certain = pairs >= _PAIRS and min(rows, columns) >= _SHARE
    return Agreement(rows, columns, pairs, certain=certain)


def _ordered(values: Float[Tensor, "gy gx"]) -> Bool[Tensor, "top low gx"]:
    """Return of each cell of the first and of the second half of a column which is larger."""
    half = len(values) // 2
    return values[:half, None] > values[None, len(values) - half :]
