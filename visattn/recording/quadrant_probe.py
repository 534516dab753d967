"""Locates activations on the image by changing one quadrant of the image at a time.

Names of modules and shapes of tensors say little about where 1,536 tokens lie; pixels do. A model
runs on four images that differ in one quadrant each (A is noise, B other noise):

    image 0      image 1      image 2      image 3       what the top left cell of a grid shows
    B A          A B          A A          A A           another value for image 0 alone
    A A          A A          B A          A B

Compared are cells with each other, never a cell with a threshold: in each column of a candidate
grid an upper cell should respond more to the upper two quadrants than a lower cell does, in each
row a left cell more to the left two. Tokens of another order, or of a grid of other sides, do so
in half of the pairs.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import interpolate

from visattn.recording.attention_call import AttentionCall
from visattn.recording.interception import attention_calls, in_this_run, probing
from visattn.recording.model_info import FeatureLayer, FeatureLayout
from visattn.recording.token_grid import Grid, covers, fits

QUADRANTS = 4  # top left, top right, bottom left, bottom right
_COARSE_CELLS = 16  # of the coarse noise, which averaging over small neighborhoods does not remove
_MIN_SCORE = 0.8  # share of correctly ordered pairs of cells; 0.5 by chance
_MIN_EXPLAINED = 0.7  # 0.9 for the grid of a network; up to 0.5 for others of as many cells
_MIN_PAIRS = 4  # as in a grid of 2 x 2
_MAX_CHANNELS = 32  # that are compared, evenly spaced
_MAX_POOLED = 2  # first tokens that are computed from all others
_UNRESPONSIVE = 1e-8  # share of the largest squared change below which a position is unresponsive
PASS_THROUGH = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


def quadrant_images(
    channels: int, image_size: tuple[int, int], like: Tensor
) -> Float[Tensor, "4 c {image_size[0]} {image_size[1]}"]:
    """Return four copies of a noise image, each with different noise in another quadrant.

    All noise has the same variance, so that global statistics change little and local activations
    change much.

    Example:
        >>> images = quadrant_images(3, (10, 14), torch.zeros(1))
        >>> [(images[0] != other)[0].nonzero().amax(0).tolist() for other in images[1:]]
        [[4, 13], [9, 6], [9, 13]]
    """
    random = torch.Generator().manual_seed(0)
    # Pooling by a large stride averages fine noise away; coarse noise survives it.
    coarse_size = [min(_COARSE_CELLS, side) for side in image_size]
    coarse = torch.randn(2, channels, *coarse_size, generator=random)
    fine = torch.randn(2, channels, *image_size, generator=random)
    base, changed = 0.5 * fine + interpolate(coarse, image_size)
    rows, columns = (torch.arange(side) >= side // 2 for side in image_size)
    quadrant = 2 * rows[:, None].long() + columns.long()
    selected = quadrant == torch.arange(QUADRANTS)[:, None, None, None]
    return torch.where(selected, changed, base).to(like)


def squared_deviations(activations: Tensor, *, dim: tuple[int, ...]) -> Float[Tensor, "4 ..."]:
    """Return squared deviations of each image's activations from the mean of all four.

    Example:
        >>> squared_deviations(torch.eye(4), dim=(1,))
        tensor([0.7500, 0.7500, 0.7500, 0.7500])
    """
    activations = activations.detach().float()
    return (activations - activations.mean(0)).square().sum(dim)


def unresponsive(deviations: Float[Tensor, "4 ..."]) -> Bool[Tensor, "..."]:
    """Return which positions change with no quadrant.

    Example:
        >>> unresponsive(torch.tensor([[0.0, 1.0], [0.0, 2.0], [0.0, 3.0], [0.0, 4.0]]))
        tensor([ True, False])
    """
    largest = deviations.amax(0)
    return ~(largest > _UNRESPONSIVE * largest.max())


@dataclass(frozen=True)
class GridAlignment:
    """How well the cells of a grid respond to the image half in which they lie.

    Args:
        row_score: Share of pairs of cells in one column, one of the upper and one of the lower
            half, whose upper cell responds more to changes of the upper half; 0.5 by chance.
        column_score: The same for pairs of cells in one row.
        num_pairs: Number of pairs.
        aligned: Whether the scores prove that the cells lie on the image in this order.
        explained: How much of what tells the upper from the lower half lies between rows, and of
            what tells left from right between columns, as a share of the variance; the smaller of
            both. Another grid of as many cells mixes them.
    """

    row_score: float
    column_score: float
    num_pairs: int
    aligned: bool
    explained: float = 0.0

    @property
    def score(self) -> float:
        """The smaller of both scores."""
        return min(self.row_score, self.column_score)


def grid_alignment(activations: Float[Tensor, "4 c gy gx"]) -> GridAlignment:
    """Return whether each cell of a grid responds to its position in the image.

    A model may mix positions, so that every quadrant changes every cell. Therefore cells are
    compared with each other, also after subtracting the mean change of all cells.

    Example:
        >>> upright = torch.eye(4).view(4, 1, 2, 2)
        >>> grid_alignment(upright).aligned, grid_alignment(upright.flip(2)).aligned
        (True, False)
    """
    channels = activations.shape[1]
    activations = activations.detach()[:, :: -(-channels // _MAX_CHANNELS)].float()
    change = activations - activations.mean(0)
    # Global pooling inside a model (a squeeze, a class token) adds the same change to all cells.
    local = change - change.mean((2, 3), keepdim=True)
    alignments = [_alignment(values.square().sum(1)) for values in (change, local)]
    return max(alignments, key=lambda alignment: alignment.score)


def is_grid(alignment: GridAlignment, grid: Grid, image_size: tuple[int, int]) -> bool:
    """Return whether activations lie on a grid of an image.

    Cells that are not square need stronger evidence, since there are many such grids.

    Example:
        >>> is_grid(GridAlignment(1.0, 0.9, 98, True, 0.02), (98, 2), (224, 224))
        False
    """
    certain = alignment.explained >= _MIN_EXPLAINED and covers(grid, image_size)
    return alignment.aligned and (certain or fits(grid, image_size))


def _alignment(deviations: Float[Tensor, "4 gy gx"]) -> GridAlignment:
    floor = _UNRESPONSIVE * deviations.max()  # keeps the ratios of silent cells at 1
    if not bool(deviations.isfinite().all()) or float(floor) == 0:
        return GridAlignment(0.5, 0.5, 0, aligned=False)
    top_left, top_right, bottom_left, bottom_right = deviations + floor
    vertical = ((top_left + top_right) / (bottom_left + bottom_right)).log()
    horizontal = ((top_left + bottom_left) / (top_right + bottom_right)).log()
    ordered = _ordered_pairs(vertical), _ordered_pairs(horizontal.mT)
    num_pairs = ordered[0].numel() + ordered[1].numel()
    row_score, column_score = (
        float(pairs.float().mean()) if pairs.numel() else 1.0 for pairs in ordered
    )
    aligned = num_pairs >= _MIN_PAIRS and min(row_score, column_score) >= _MIN_SCORE
    explained = min(_explained(vertical), _explained(horizontal.mT))
    return GridAlignment(row_score, column_score, num_pairs, aligned=aligned, explained=explained)


def _explained(values: Float[Tensor, "gy gx"]) -> float:
    """Return the variance between rows as a share of all variance; 1 for a single row.

    It is adjusted for chance, which explains the more the shorter rows are: about 0 for noise.
    """
    rows, columns = values.shape
    if rows == 1 or columns == 1:
        return float(rows == 1)
    inside = values.var(1, correction=1).mean()
    total = values.var(correction=1).clamp(min=torch.finfo(values.dtype).tiny)
    return 1 - float(inside / total)


def _ordered_pairs(values: Float[Tensor, "gy gx"]) -> Bool[Tensor, "upper lower gx"]:
    """Return for each cell of the first and second half of a column if the first is larger."""
    half = len(values) // 2
    return values[:half, None] > values[None, len(values) - half :]


@dataclass(frozen=True, eq=False)
class AttentionTokens:
    """Contents of the tokens of one attention call for quadrant images."""

    keys: Float[Tensor, "4 w c m"]
    queries: Float[Tensor, "4 w _ n"] | None


@dataclass(eq=False)
class QuadrantProbeResult:
    """Result of a run on quadrant images.

    Args:
        feature_layers: Modules whose output is aligned with the image, in the order of the run.
        num_calls: Number of calls of each module.
        num_prefix_tokens: For each sequence length, how many tokens are before the grid where that
            length first occurs: they respond to no quadrant, because they are computed from
            parameters, or are computed from the whole grid.
        attention_tokens: Token contents of each attention call, by module and call index.
        attention_modules: Modules that computed attention, supported or not.
    """

    feature_layers: dict[str, FeatureLayer] = field(default_factory=dict)
    num_calls: Counter[str] = field(default_factory=Counter)
    num_prefix_tokens: dict[int, int] = field(default_factory=dict)
    attention_tokens: dict[tuple[str, int], AttentionTokens] = field(default_factory=dict)
    attention_modules: set[str] = field(default_factory=set)

    @property
    def grids(self) -> list[Grid]:
        """Grids of the feature layers."""
        return list(dict.fromkeys(layer.grid for layer in self.feature_layers.values()))

    def position(self, site: str) -> int:
        """Return the position of a module among the feature layers; -1 if it is none."""
        return list(self.feature_layers).index(site) if site in self.feature_layers else -1


class QuadrantProbe:
    """Runs a model on quadrant images and records which activations respond to which quadrant.

    Self-attention is replaced by the identity, so that a change stays at its tokens, whatever the
    weights of the model are.
    """

    def __init__(self, model: nn.Module, image_size: tuple[int, int]) -> None:
        self.model = model
        self.image_size = image_size
        self.result = QuadrantProbeResult()

    def run(self, forward: Callable[[], Any]) -> QuadrantProbeResult:
        """Return what was recorded while the model runs."""
        with ExitStack() as stack:
            stack.enter_context(probing())
            for site, module in self.model.named_modules():
                hook = in_this_run(self._forward_hook(site))
                handle = module.register_forward_hook(hook, with_kwargs=True)
                stack.callback(handle.remove)
            stack.enter_context(attention_calls(self.model, self._on_call))
            forward()
        return self.result

    def _on_call(self, attention: AttentionCall) -> Tensor | None:
        """Store the contents of the tokens of an attention call."""
        self.result.attention_modules.add(attention.site)
        if attention.unsupported:
            return None
        groups, _, num_queries, keys = attention.shape
        queries, _, values = attention.inputs
        # Values of other sizes than the keys say nothing of the keys; the weights, as columns, do.
        if values.shape[:1] + values.shape[2:3] != (groups, keys):
            values = attention.weights().transpose(-2, -1)
        if groups == QUADRANTS:
            self._count_prefix_tokens(values.transpose(1, 2).flatten(2))
        if groups % QUADRANTS == 0:
            self.result.attention_tokens[attention.site, attention.index] = AttentionTokens(
                _token_contents(values), None if queries is None else _token_contents(queries)
            )
        return torch.eye(keys).to(attention.inputs[2]) if num_queries == keys else None

    def _forward_hook(self, site: str) -> Callable[..., None]:
        def hook(
            module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
        ) -> None:
            self.result.num_calls[site] += 1
            for argument in (*args, *kwargs.values()):
                if isinstance(argument, Tensor) and argument.ndim == 3:
                    self._count_prefix_tokens(argument)
            tensor = output[0] if isinstance(output, tuple) and output else output
            # Layers that pass on what they get would hide the layer that computed it.
            if not isinstance(tensor, Tensor) or isinstance(module, PASS_THROUGH):
                return
            first_call = self.result.num_calls[site] == 1
            layer = self._feature_layer(site, tensor) if first_call else None
            # A module that runs twice has two outputs: it is no layer by which a map can be named.
            self.result.feature_layers.pop(site, None)
            if layer is not None:
                self.result.feature_layers[site] = layer

        return hook

    def _count_prefix_tokens(self, tokens: Tensor) -> None:
        """Count first tokens that are no cells, where a sequence length first occurs."""
        if not _is_probe_batch(tokens) or tokens.shape[1] in self.result.num_prefix_tokens:
            return
        constant = unresponsive(squared_deviations(tokens, dim=(2,))).tolist()
        count = constant.index(False) if False in constant else 0
        self.result.num_prefix_tokens[tokens.shape[1]] = count or self._count_pooled_tokens(tokens)

    def _count_pooled_tokens(self, tokens: Float[Tensor, "4 n c"]) -> int:
        """Count first tokens that are computed from all others, such as their mean.

        They respond to every quadrant, as cells with large receptive fields do. But the others are
        aligned with the image only without them.
        """
        deviations = squared_deviations(tokens, dim=(2,))
        for count in range(min(_MAX_POOLED + 1, tokens.shape[1])):
            if count and float(deviations[:, count - 1].min()) <= _UNRESPONSIVE * deviations.max():
                return 0
            for grid in candidate_grids(tokens.shape[1] - count, self.image_size):
                alignment = grid_alignment(tokens[:, count:].mT.unflatten(-1, grid))
                if is_grid(alignment, grid, self.image_size):
                    return count
        return 0

    def _feature_layer(self, site: str, activations: Tensor) -> FeatureLayer | None:
        """Return layout and grid of activations; None if no layout is aligned with the image."""
        if not _is_probe_batch(activations):
            return None
        if activations.ndim == 3:
            self._count_prefix_tokens(activations)
        options = self._token_layouts if activations.ndim == 3 else self._plane_layouts
        layers: list[tuple[Any, FeatureLayer]] = []
        for layer, plane in options(activations):
            alignment = grid_alignment(plane)
            if is_grid(alignment, layer.grid, self.image_size):
                certain = alignment.explained >= _MIN_EXPLAINED
                evidence = certain, fits(layer.grid, self.image_size), alignment.score
                layers.append((evidence, replace(layer, site=site)))
        return max(layers, key=lambda pair: pair[0], default=(None, None))[1]

    def _plane_layouts(self, activations: Tensor) -> Iterator[tuple[FeatureLayer, Tensor]]:
        options: tuple[tuple[Tensor, FeatureLayout], ...] = (
            (activations, "b c y x"),
            (activations.movedim(-1, 1), "b y x c"),
        )
        for plane, layout in options:
            grid = plane.shape[2], plane.shape[3]
            if grid != (1, 1) and is_candidate(grid, self.image_size):
                yield FeatureLayer("", layout, grid), plane

    def _token_layouts(self, tokens: Tensor) -> Iterator[tuple[FeatureLayer, Tensor]]:
        count = tokens.shape[1]
        known = self.result.num_prefix_tokens
        for prefix in dict.fromkeys((known[count], *known.values())):
            for grid in candidate_grids(count - prefix, self.image_size):
                plane = tokens[:, prefix:].mT.unflatten(-1, grid)
                yield FeatureLayer("", "b n c", grid, prefix), plane


def tokens_aligned(
    tokens: Float[Tensor, "4 w c m"],
    grid: Grid,
    num_prefix_tokens: int,
    windows: Int[Tensor, "w m"] | None,
) -> bool:
    """Return whether the tokens of attention are aligned with the image as cells of a grid.

    Args:
        windows: Token indices of each group, -1 for empty slots; None for one group of all.

    Example:
        >>> tokens = torch.eye(4).view(4, 1, 1, 4)
        >>> tokens_aligned(tokens, (2, 2), 0, None), tokens_aligned(tokens.flip(3), (2, 2), 0, None)
        (True, False)
    """
    groups = tokens.shape[1]
    slots = tokens.shape[3]
    if (groups, slots) != ((1, slots) if windows is None else tuple(windows.shape)):
        return False
    count = num_prefix_tokens + grid[0] * grid[1]
    if windows is None:
        cells = tokens[:, 0, :, num_prefix_tokens:]
        return slots == count and grid_alignment(cells.unflatten(-1, grid)).aligned
    dense = tokens.new_zeros(QUADRANTS, tokens.shape[2], count)
    occupied = windows >= 0
    dense[:, :, windows[occupied]] = tokens.movedim(2, 1)[:, :, occupied]
    return grid_alignment(dense[:, :, num_prefix_tokens:].unflatten(-1, grid)).aligned


def candidate_grids(num_cells: int, image_size: tuple[int, int]) -> Iterator[Grid]:
    """Yield the grids with this many cells that can cover an image, square cells first.

    Example:
        >>> list(candidate_grids(15, (48, 80))), list(candidate_grids(13, (48, 80)))
        ([(3, 5), (5, 3)], [])
    """
    grids = [(n, num_cells // n) for n in range(1, num_cells + 1) if num_cells % n == 0]
    grids = [grid for grid in grids if num_cells > 1 and is_candidate(grid, image_size)]
    yield from sorted(grids, key=lambda grid: not fits(grid, image_size))


def is_candidate(grid: Grid, image_size: tuple[int, int]) -> bool:
    """Whether a grid may be one of an image, square cells or not; then it is measured."""
    return fits(grid, image_size) or covers(grid, image_size)


def _is_probe_batch(tensor: Tensor) -> bool:
    matching = tensor.ndim in (3, 4) and len(tensor) == QUADRANTS
    return matching and tensor.is_floating_point() and tensor.numel() > 0


def _token_contents(tokens: Float[Tensor, "g h m d"]) -> Float[Tensor, "4 w c m"]:
    return tokens.detach().unflatten(0, (QUADRANTS, -1)).mT.flatten(2, 3)
