"""Where the tokens of a network lie on its grid, found by sending their numbers through it."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import inf, log

import torch
from jaxtyping import Float, Int
from torch import Tensor

Grid = tuple[int, int]
_DIGIT = 128  # what half precision of either kind holds exactly
_DIGITS = 3
_CODE = _DIGITS + 1  # and the number of the image, from 1


def fits(grid: Grid, size: tuple[int, int]) -> bool:
    """Whether a grid of square cells can cover an image, to a cell.

    Args:
        grid: Rows and columns.
        size: Height and width of the image.

    Example:
        >>> fits((3, 5), (48, 80)), fits((15, 1), (48, 80))
        (True, False)
    """
    if not all(1 <= cells <= length for cells, length in zip(grid, size, strict=True)):
        return False
    least = max(length / (cells + 1) for cells, length in zip(grid, size, strict=True))
    most = min(
        length / (cells - 1) if cells > 1 else inf for cells, length in zip(grid, size, strict=True)
    )
    return least < most


def grid_of(count: int, size: tuple[int, int], seen: Iterable[Grid]) -> Grid | None:
    """Return rows and columns of a number of tokens; None if they are no grid of the image.

    They are a grid that was seen in the network, or one that is coarser by a whole number; where
    none was seen, one of square cells that fill the image.

    Args:
        count: How many there are.
        size: Height and width of the image.
        seen: Grids that were seen.

    Example:
        >>> grid_of(15, (48, 80), [(6, 10)]), grid_of(16, (48, 80), [(6, 10)])
        ((3, 5), None)
    """
    grids = list(dict.fromkeys(seen))
    same = [grid for grid in grids if grid[0] * grid[1] == count]
    if same:
        return min(same, key=lambda grid: _squareness(grid, size))
    if not grids:
        steps = (step for step in range(2, min(size)) if not size[0] % step and not size[1] % step)
        grids = [(size[0] // step, size[1] // step) for step in steps]
        return next((grid for grid in grids if grid[0] * grid[1] == count), None)
    coarser = {
        (-(-rows // step), -(-columns // step)) for rows, columns in grids for step in range(2, 9)
    }
    found = [grid for grid in coarser if grid[0] * grid[1] == count and fits(grid, size)]
    return min(found, key=lambda grid: _squareness(grid, size), default=None)


def _squareness(grid: Grid, size: tuple[int, int]) -> float:
    return abs(log(size[0] / grid[0] * grid[1] / size[1]))


def split_tokens(
    count: int, roles: Sequence[str], size: tuple[int, int], seen: Sequence[Grid]
) -> tuple[tuple[str, ...], Grid] | None:
    """Return the roles of the tokens before a grid, and the grid; None if there is none.

    Args:
        count: Tokens in all.
        roles: Of the tokens that the network adds; some layers may not have them, or not all.
        size: Height and width of the image.
        seen: Grids that were seen in the network.

    Example:
        >>> split_tokens(16, ("class",), (48, 80), [(3, 5)])
        (('class',), (3, 5))
    """
    kinds = dict.fromkeys(roles)
    options = [tuple(roles), (), *(tuple(r for r in roles if r == kind) for kind in kinds)]
    for coarse in (False, True):
        for before in options:
            left = count - len(before)
            known = [grid for grid in seen if coarse or grid[0] * grid[1] == left]
            if seen and not known:
                continue
            if left > 0 and (grid := grid_of(left, size, known)) is not None:
                return before, grid
    return None


def coded(like: Tensor, places: int, *, last: bool) -> Tensor:
    """Return a tensor that says of each place which one it is.

    Args:
        like: Of which shape; two images or more.
        places: How many there are in one image.
        last: Whether channels are its last axis, else they are its second.

    Example:
        >>> numbers_in(coded(torch.zeros(2, 2, 3, 7), 6, last=True), 2, 6)
        tensor([[ 0,  1,  2,  3,  4,  5],
                [ 6,  7,  8,  9, 10, 11]])
    """
    numbers = torch.arange(places, device=like.device)
    digits = [numbers // _DIGIT**power % _DIGIT for power in range(_DIGITS)]
    code = torch.stack(digits, -1).expand(len(like), -1, -1)
    images = torch.arange(1, len(like) + 1, device=like.device)[:, None, None]
    code = torch.cat((code, images.expand(-1, places, 1)), -1).to(like.dtype)
    spatial = like.shape[1:-1] if last else like.shape[2:]
    laid = code.unflatten(1, spatial)
    empty = torch.zeros_like(like)
    if last:
        empty[..., :_CODE] = laid
    else:
        empty[:, :_CODE] = laid.movedim(-1, 1)
    return empty


def numbers_in(tokens: Tensor, groups: int, slots: int) -> Int[Tensor, "g n"] | None:
    """Return the numbers that tokens carry, -1 for empty ones; None if they carry none.

    Those of the second image begin where those of the first end.

    Args:
        tokens: Of any layout.
        groups: How many groups of tokens there are.
        slots: How many tokens are in a group.
    """
    for codes in _layouts(tokens, groups, slots):
        digits, images = codes[..., :_DIGITS], codes[..., _DIGITS].round().long()
        held = images > 0
        powers = torch.tensor([_DIGIT**power for power in range(_DIGITS)], device=codes.device)
        numbers = (digits.round().long() * powers).sum(-1)
        exact = bool((codes[..., :_CODE] == codes[..., :_CODE].round()).all())
        if not exact or bool(codes[..., _CODE:].any()) or not bool(held.any()):
            continue
        count, used = int(numbers.max()) + 1, images[held]
        own = numbers[held] + (used - 1) * count
        every = int(used.max()) * count
        if int(used.min()) == 1 and own.numel() == every == own.unique().numel():
            return torch.where(held, numbers + (images - 1) * count, -1)
    return None


def _layouts(
    tokens: Tensor, groups: int, slots: int
) -> Iterable[Float[Tensor, "{groups} {slots} _"]]:
    """Return the ways in which tokens can be read as groups of slots, channels last."""
    count = groups * slots
    if tokens.ndim < 2 or not tokens.is_floating_point():
        return
    for channels in dict.fromkeys((-1, 1)):
        width = tokens.shape[channels]
        if width > _CODE and tokens.numel() == count * width:
            yield tokens.detach().float().movedim(channels, -1).reshape(groups, slots, width)


def holds_numbers(tokens: Tensor) -> bool:
    """Whether tokens carry numbers, in any layout."""
    images = len(tokens)
    return any(
        numbers_in(tokens, images, tokens[0].numel() // width) is not None
        for width in {tokens.shape[-1], tokens.shape[1]}
    )


def windows_of(numbers: Int[Tensor, "g n"], images: int) -> Int[Tensor, "w n"] | None:
    """Return the tokens that the windows of one image hold; None if images are not in order.

    Args:
        numbers: Of the tokens of all windows, -1 for empty slots.
        images: How many there are.
    """
    count = (int(numbers.max()) + 1) // images
    each = numbers.unflatten(0, (images, -1))
    own = torch.where(each < 0, each, each - torch.arange(images)[:, None, None].to(each) * count)
    alike = bool((own == own[:1]).all()) and int(own.max()) < count
    return own[0] if alike else None


def in_order(windows: Int[Tensor, "w n"]) -> bool:
    """Whether there is one window, which holds all tokens in their order.

    Example:
        >>> in_order(torch.tensor([[0, 1, 2]])), in_order(torch.tensor([[1, 2, 0]]))
        (True, False)
    """
    own = windows[0].tolist()
    return len(windows) == 1 and all(after == before + 1 for before, after in pairwise([-1, *own]))


def block_of(windows: Int[Tensor, "w n"], columns: int) -> Grid | None:
    """Return height and width of windows that are blocks of a grid; None if they are spread.

    Args:
        windows: Numbers of the tokens that each holds.
        columns: Of the grid.

    Example:
        >>> block_of(torch.tensor([[0, 1, 5, 6], [2, 3, 7, 8]]), 5)
        (2, 2)
    """
    full = [window for window in windows.tolist() if min(window) >= 0]
    blocks = set[Grid | None]()
    for window in full:
        rows = sorted({number // columns for number in window})
        across = sorted({number % columns for number in window})
        solid = rows[-1] - rows[0] + 1 == len(rows) and across[-1] - across[0] + 1 == len(across)
        blocks.add((len(rows), len(across)) if solid else None)
    whole = [block for block in blocks if block is not None]
    return max(whole, default=None)
