"""Change blocks of pixels one after the other, and see where a model answers to them."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from visattn.attribution.cam import on_grid
from visattn.attribution.explained_model import subject_of
from visattn.recording.marked_probe import MarkedReader
from visattn.recording.model_info import ExplainedModel, ModelInfo
from visattn.recording.recorder import record


@dataclass(frozen=True)
class Marked:
    """What blocks of pixels that were changed showed.

    Args:
        name: Of the model.
        layer: The default layer of class activation maps, or why there is none.
        features: Blocks to which the cells of that layer at their place answer most, and all.
        attention: Blocks at whose place the keys of the first and last layer change most, and all.
    """

    name: str
    layer: str
    features: tuple[int, int]
    attention: tuple[int, int]

    def row(self) -> str:
        """Return the line of the table."""
        right = [f"{hits} of {marks}" if marks else "" for hits, marks in
            (self.features, self.attention)]  # fmt: skip
        return f"| {self.name} | {self.layer} | {right[0]} | {right[1]} |"


def marked(name: str, model: nn.Module, size: tuple[int, int] | None = None) -> Marked:
    """Return where changes of single blocks of pixels show.

    Tokens attend to themselves alone while features are looked at, so that random weights do not
    carry a change everywhere.

    Args:
        name: Of the model.
        model: Itself, in evaluation mode.
        size: Height and width of its images; None for what it is made for.
    """
    subject = subject_of(model.double(), size)  # random weights may leave little of a change
    card = subject.card
    attention = (0, 0)
    if card.layers:
        ends = dict.fromkeys((card.layers[0].site, card.layers[-1].site))
        attention = _sums(_keys_that_answer(subject, site) for site in ends)
    if not card.features:
        return Marked(name, card.no_features, (0, 0), attention)
    site = card.features[-1]
    blocks = _blocks(site.grid)
    with torch.no_grad(), _changed(model, site.site) as put_out:
        subject.scores(_changed_images(card, site.grid, blocks))
    laid = on_grid(put_out[0], site)
    change = (laid[1:] - laid[:1]).square().sum(1)
    layer = f"{site.site}, {site.grid[0]} x {site.grid[1]}"
    return Marked(name, layer, _hits(change, blocks), attention)


def _keys_that_answer(subject: ExplainedModel, site: str) -> tuple[int, int]:
    layer = next(one for one in subject.card.layers if one.site == site)
    grid = layer.keys or layer.grid
    blocks = _blocks(grid)
    blocks = blocks if layer.window is not None else blocks[:3]
    images = _changed_images(subject.card, grid, blocks)
    if layer.window is None:  # the values, as four images at once give them
        reader = MarkedReader(subject.model, (1, 1))
        with torch.no_grad(), reader.apart():
            subject.scores(images)
        values = reader.reading.attention[site, 0].keys[:, 0]
        values = values[..., -grid[0] * grid[1] :].unflatten(-1, grid)
    else:
        with torch.no_grad(), record(subject.model, layers=[site]) as seen:
            subject.scores(images)
        values = seen.maps[0].values.flatten(1, -3)
    return _hits((values[1:] - values[:1]).square().sum(1), blocks)


def _blocks(grid: tuple[int, int]) -> list[tuple[int, int]]:
    """Return some cells of a grid, none of them the mirror image of another."""
    shares = ((0.15, 0.3), (0.3, 0.85), (0.7, 0.1), (0.85, 0.6), (0.5, 0.45))
    cells = ((int(rows * grid[0]), int(columns * grid[1])) for rows, columns in shares)
    return list(dict.fromkeys(cells))


def _reach(grid: tuple[int, int]) -> tuple[int, int]:
    """Return how many cells a block reaches beyond that in its middle."""
    return (grid[0] + 1) // 8, (grid[1] + 1) // 8


def _changed_images(
    card: ModelInfo, grid: tuple[int, int], blocks: list[tuple[int, int]]
) -> torch.Tensor:
    """Return noise, and the same with other noise in each block."""
    height, width = card.size
    random = torch.Generator().manual_seed(3)
    usual, other = torch.randn(2, len(card.mean), height, width, generator=random)
    images = [usual]
    for block in blocks:
        image = usual.clone()
        (top, low), (left, right) = (
            (int((at - reach) * side / cells), -int(-(at + reach + 1) * side // cells))
            for at, reach, side, cells in zip(block, _reach(grid), card.size, grid, strict=True)
        )
        place = slice(max(top, 0), low), slice(max(left, 0), right)
        image[:, *place] = 2 * other[:, *place]
        images.append(image)
    return torch.stack(images).double()


@contextmanager
def _changed(model: nn.Module, site: str) -> Iterator[list[torch.Tensor]]:
    """Let tokens attend to themselves alone, and catch what a module puts out."""
    put_out: list[torch.Tensor] = []
    reader = MarkedReader(model, (1, 1))

    def keep(_: nn.Module, __: object, output: torch.Tensor | tuple[torch.Tensor, ...]) -> None:
        put_out.append(output[0] if isinstance(output, tuple) else output)

    handle = model.get_submodule(site).register_forward_hook(keep)
    with reader.apart():
        yield put_out
    handle.remove()


def _hits(change: torch.Tensor, blocks: list[tuple[int, int]]) -> tuple[int, int]:
    """Return of how many blocks the cell answers most to its own block, and all.

    What a block changes everywhere, and what every block changes at a cell, is taken off.
    """
    level = (change + 1e-9 * change.max()).double().log()
    level -= level.flatten(1).mean(1)[:, None, None]
    down, across = _reach((change.shape[1], change.shape[2]))
    parts = [
        level[:, max(row - down, 0) : row + down + 1, max(column - across, 0) : column + across + 1]
        for row, column in blocks
    ]
    here = torch.stack([part.flatten(1).mean(1) for part in parts], 1)
    most = (here - here.mean(0)).argmax(0)
    return int((most == torch.arange(len(blocks))).sum()), len(blocks)


def _sums(counts: Iterable[tuple[int, int]]) -> tuple[int, int]:
    hits, marks = zip(*counts, strict=True)
    return sum(hits), sum(marks)
