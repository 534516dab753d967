"""Pictures with marked quarters, and whether activations answer to each mark in its place."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import interpolate

from visattn.maps.token_places import Grid

QUARTERS = 4  # top left, top right, bottom left, bottom right
_BLOCKS = 16  # coarse noise, that averaging over small neighborhoods does not remove
_SHARE = 0.7  # of the cells that answer most to their own quarter; by chance it is 0.25
_FEW = 6  # cells, below which all of them must
_CHANNELS = 32  # that are looked at, evenly spread over all
_SILENT = 1e-8  # of the largest squared change, below which a place does not answer


def marked_pictures(
    channels: int, size: tuple[int, int], like: Tensor
) -> Float[Tensor, "4 c {size[0]} {size[1]}"]:
    """Return one faint noise four times, each time with louder noise in another quarter.

    Args:
        channels: Of the pictures.
        size: Height and width.
        like: Of which type, and on which device.

    Example:
        >>> marked = marked_pictures(3, (10, 14), torch.zeros(1))
        >>> [(marked[0] != other)[0].nonzero().amax(0).tolist() for other in marked[1:]]
        [[4, 13], [9, 6], [9, 13]]
    """
    random = torch.Generator().manual_seed(0)
    faint = 0.3 * torch.randn(channels, *size, generator=random)
    coarse = torch.randn(1, channels, *(min(_BLOCKS, side) for side in size), generator=random)
    loud = torch.randn(channels, *size, generator=random) + 1.5 * interpolate(coarse, size)[0]
    rows, columns = (torch.arange(side) >= side // 2 for side in size)
    quarter = 2 * rows[:, None].long() + columns.long()
    chosen = quarter == torch.arange(QUARTERS)[:, None, None, None]
    return torch.where(chosen, loud, faint).to(like)


def responses(found: Tensor, *, over: tuple[int, ...]) -> Float[Tensor, "4 *places"]:
    """Return how far each picture's activations are from the mean of all four, squared.

    Args:
        found: Activations, with the four pictures along the first axis.
        over: Axes that are summed over.

    Example:
        >>> responses(torch.eye(4), over=(1,))
        tensor([0.7500, 0.7500, 0.7500, 0.7500])
    """
    own = found.detach().float()
    return (own - own.mean(0)).square().sum(over)


def silent(answers: Float[Tensor, "4 *places"]) -> Bool[Tensor, "*places"]:
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
    """How well the cells of a grid answer to the quarters of the picture in which they lie.

    Args:
        hits: Cells that answer most to the quarter in which they lie.
        cells: Cells that lie in one quarter or one half of the picture, and answer at all.
        certain: Whether so many do that they lie on the picture in this order.
    """

    hits: int
    cells: int
    certain: bool

    @property
    def share(self) -> float:
        """Share of the cells that answer to their own quarter."""
        return self.hits / max(self.cells, 1)


def agreement(found: Float[Tensor, "4 c gy gx"]) -> Agreement:
    """Return whether each cell of a grid answers to its place in the picture.

    A model may mix places, so that each mark changes every cell: what counts is to which mark a
    cell answers most, beyond what this mark changes everywhere and what any mark changes here.

    Args:
        found: Activations for `marked_pictures`.

    Example:
        >>> straight = torch.eye(4).view(4, 1, 2, 2)
        >>> agreement(straight).certain, agreement(straight.flip(2)).certain
        (True, False)
    """
    channels, rows, columns = found.shape[1:]
    own = found.detach()[:, :: -(-channels // _CHANNELS)].float()
    change = own - own.mean(0)
    answers = (change - change.mean((2, 3), keepdim=True)).square().sum(1)
    speaking = ~silent(answers)
    if not bool(answers.isfinite().all()) or 2 * int(speaking.sum()) < rows * columns:
        return Agreement(0, rows * columns, certain=False)
    floor = _SILENT * answers.max()
    level = (answers + floor).log()
    beyond = level - level[:, speaking].mean(1)[:, None, None] - level.mean(0)
    allowed = _quarters((rows, columns)).to(answers.device)
    counted = speaking & (allowed.sum(0) < QUARTERS)
    hits = allowed.gather(0, beyond.argmax(0, keepdim=True))[0] & counted
    right, cells = int(hits.sum()), int(counted.sum())
    chance = float((allowed.sum(0)[counted] / QUARTERS).log().sum().exp()) if cells else 1.0
    enough = right == cells if cells < _FEW else right >= _SHARE * cells
    return Agreement(right, cells, certain=enough and chance < 0.1)


def _quarters(grid: Grid) -> Bool[Tensor, "4 gy gx"]:
    """Return which quarters each cell of a grid touches."""
    sides = []
    for cells in grid:
        edges = torch.arange(cells + 1) / cells
        sides.append(torch.stack((edges[:-1] < 0.5 - 1e-6, edges[1:] > 0.5 + 1e-6)))
    rows, columns = sides
    return (rows[:, None, :, None] & columns[None, :, None, :]).flatten(0, 1)
