"""What each head of each layer of a model looked at in one image, small enough to be kept."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from visattn.recording.attention_map import AttentionMap
from visattn.recording.model_info import AttentionLayer, ExplainedModel
from visattn.recording.recorder import record

ROOM = 16_000_000  # weights that a page holds; it is then some 20 MB long
_AT_ONCE = 48_000_000  # weights that are recorded in one go


@dataclass(frozen=True, eq=False)
class SeenLayer:
    """The attention of one layer to one image.

    Args:
        number: Of the layer, counted from 0.
        site: Path of the module.
        weights: Of each head, from each token that asks to each cell that is looked at.
        heads: The numbers of the heads.
        grid: Rows and columns of the tokens that ask.
        askers: Roles of the tokens that ask before those on the grid.
        before: How many more tokens are looked at, which lie nowhere on the image.
    """

    number: int
    site: str
    weights: Float[Tensor, "h q y x"]
    heads: tuple[int, ...]
    grid: tuple[int, int]
    askers: tuple[str, ...]
    before: int

    def row(self, pooling: str) -> Float[Tensor, "h y x"]:
        """Return what was looked at for the answer: by the class token, or by all patches."""
        if pooling in ("class", "distilled") and "class" in self.askers:
            return self.weights[:, self.askers.index("class")]
        patches = self.weights[:, len(self.askers) :]
        return patches.mean(1) if patches.shape[1] else self.weights.mean(1)


def seen_layers(
    subject: ExplainedModel,
    pixels: Float[Tensor, "1 c y x"],
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    room: int = ROOM,
) -> list[SeenLayer]:
    """Return the attention of all layers to one image.

    Where there are more weights than there is room for, patches that lie together ask together:
    their rows are averaged. No layer and no head is left out.

    Args:
        subject: The model.
        pixels: One image, normalized.
        layers: Numbers of layers, -1 for the last; None for all.
        heads: Numbers of heads; None for all.
        room: For so many weights, about.

    Raises:
        ValueError: If the model has no attention among tokens, or no such layers or heads.
    """
    card = subject.card
    if card.refusal or not card.layers:
        raise ValueError(
            f"{card.name} has no heads to show: {card.refusal or 'no attention among tokens'}"
        )
    count = len(card.layers)
    if wrong := [number for number in layers or () if not -count <= number < count]:
        raise ValueError(f"there are {count} layers, counted from 0, got {wrong[0]}")
    numbers = range(count) if layers is None else sorted({number % count for number in layers})
    each = room // len(numbers)
    found: list[SeenLayer] = []
    for chunk in _chunks(numbers, card.layers):
        with record(subject.model, layers=chunk, heads=heads) as seen, torch.no_grad():
            subject.forward(pixels)
        tokens = [one for one in seen.maps if one.kind == "tokens"]
        for number, one in zip(chunk, tokens, strict=True):
            found.append(_thinned(_layer(number, one, card.layers[number], heads), each))
    return found


def _chunks(numbers: Sequence[int], layers: Sequence[AttentionLayer]) -> list[list[int]]:
    """Return layers by the lot, so that those of one lot fit into memory together."""
    lots: list[list[int]] = []
    held = _AT_ONCE + 1
    for number in numbers:
        size = _size(layers[number])
        if held + size > _AT_ONCE:
            lots.append([])
            held = 0
        lots[-1].append(number)
        held += size
    return lots


def _size(layer: AttentionLayer) -> int:
    before, keys = len(layer.roles), layer.keys or layer.grid
    asking = layer.grid[0] * layer.grid[1] + before
    return (layer.heads or 1) * asking * (keys[0] * keys[1] + before)


def _layer(
    number: int, one: AttentionMap, layer: AttentionLayer, heads: Sequence[int] | None
) -> SeenLayer:
    weights = one.values[0].float().cpu()
    weights = weights[:, None] if weights.ndim == 3 else weights
    count, patches = weights.shape[1], layer.grid[0] * layer.grid[1]
    before = tuple(one.made.get("before", layer.roles))
    asking = before if count in (len(before), len(before) + patches) else ()
    numbers = tuple(range(weights.shape[0])) if heads is None else tuple(heads)
    return SeenLayer(number, layer.site, weights, numbers, layer.grid, asking, len(before))


def _thinned(layer: SeenLayer, room: int) -> SeenLayer:
    """Return a layer in which patches that lie together ask together, if there is no room."""
    heads, count, rows, columns = layer.weights.shape
    first = len(layer.askers)
    y, x = layer.grid
    if layer.weights.numel() <= room or count - first != y * x:
        return layer
    times = 2
    while heads * (first + -(-y // times) * -(-x // times)) * rows * columns > room:
        if times >= max(y, x):
            break
        times += 1
    grid = (-(-y // times), -(-x // times))
    asked = layer.weights[:, first:].flatten(2).mT.unflatten(-1, layer.grid)
    thin = adaptive_avg_pool2d(asked, grid).flatten(2).mT.unflatten(-1, (rows, columns))
    weights = torch.cat([layer.weights[:, :first], thin], dim=1)
    return SeenLayer(
        layer.number, layer.site, weights, layer.heads, grid, layer.askers, layer.before
    )
