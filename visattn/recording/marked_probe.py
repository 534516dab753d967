"""Where the activations and the tokens of a model lie, read off a run on marked images."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from visattn.recording.attention_call import AttentionCall
from visattn.recording.image_marks import QUARTERS, Agreement, agreement, responses, silent
from visattn.recording.model_info import FeatureLayout, FeatureSite
from visattn.recording.module_calls import ModuleCall, ModuleCalls, dry
from visattn.recording.multihead import hide, multihead_call, multihead_output, unhide
from visattn.recording.token_grid import Grid, fits
from visattn.recording.torch_function import Interception

_PASSING = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


@dataclass(frozen=True, eq=False)
class AttentionTokens:
    """What the tokens of one run of attention carry of the marks.

    Args:
        keys: Of each group of tokens, image by image.
        queries: The same of those that ask; None if they are not known.
    """

    keys: Float[Tensor, "4 w c m"]
    queries: Float[Tensor, "4 w c n"] | None


@dataclass(eq=False)
class MarkedReading:
    """What was read off a run on marked images.

    Args:
        sites: Modules whose output answers to each mark in its place, in the order of the run.
        runs: How often each module ran.
        prefixes: Of each number of tokens that came up, how many before the grid answer to no mark
            when they come up, because they are made of parameters alone.
        attention: Of each module that attends to something and each of its runs, the answers of
            its tokens.
        attending: Modules in which attention ran, whether it can be shown or not.
    """

    sites: dict[str, FeatureSite] = field(default_factory=dict)
    runs: Counter[str] = field(default_factory=Counter)
    prefixes: dict[int, int] = field(default_factory=dict)
    attention: dict[tuple[str, int], AttentionTokens] = field(default_factory=dict)
    attending: set[str] = field(default_factory=set)

    @property
    def grids(self) -> list[Grid]:
        """Grids on which activations lie."""
        return list(dict.fromkeys(site.grid for site in self.sites.values()))

    def order(self, site: str) -> int:
        """Return the number of a module among those in `sites`; -1 if it is none."""
        return list(self.sites).index(site) if site in self.sites else -1


class MarkedReader:
    """Run a model on marked images and see where the marks arrive.

    Where its tokens attend to each other, each is made to attend to itself alone, so that a mark
    stays at the tokens at which it arrived, whatever the weights of the model are.

    Args:
        model: To be read.
        size: Height and width of the images.
    """

    def __init__(self, model: nn.Module, size: tuple[int, int]) -> None:
        self.model, self.size = model, size
        self.calls = ModuleCalls(dry=True)
        self.reading = MarkedReading()

    def read(self, run: Callable[[], Any]) -> MarkedReading:
        """Return what is seen while the model runs.

        Args:
            run: Calls the model on `marked_images`.
        """
        with ExitStack() as stack:
            for site, module in self.model.named_modules():
                handle = module.register_forward_hook(self._hook(site), with_kwargs=True)
                stack.callback(handle.remove)
            stack.enter_context(self.apart())
            run()
        return self.reading

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Let tokens that attend to each other attend to themselves alone inside the block."""
        with (
            dry(),
            self.calls.watching(self.model, _entered, self._left),
            Interception(self.calls, self, apart=True),
        ):
            yield

    def saw(self, place: ModuleCall, attention: AttentionCall) -> None:
        """Keep how the tokens of attention answer to the marks."""
        self.reading.attending.add(place.site)
        groups, _, _, keys = attention.shape
        values, queries = attention.values, attention.queries
        if values is None or values.shape[:1] + values.shape[2:3] != (groups, keys):
            values = attention.rows(slice(None), slice(None)).transpose(-2, -1)
        if groups % QUARTERS == 0:
            self.reading.attention[place.site, place.number] = AttentionTokens(
                _by_token(values), None if queries is None else _by_token(queries)
            )

    def refused(self, place: ModuleCall, reason: str) -> None:  # noqa: ARG002 - of a protocol
        """Remember that a module attends to something."""
        self.reading.attending.add(place.site)

    def _left(
        self, call: ModuleCall, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> Any:
        layer = call.module
        if not isinstance(layer, nn.MultiheadAttention):
            return None
        try:
            attention = output and multihead_call(layer, args, kwargs, output)
            self.reading.attending.add(call.site)
            if not isinstance(attention, AttentionCall):
                return None
            self.saw(call, attention)
            queries, keys = attention.shape[2:]
            alone = torch.eye(keys).to(output[0])
            return multihead_output(layer, attention, alone, output) if queries == keys else None
        finally:
            unhide(call)

    def _hook(self, site: str) -> Callable[..., None]:
        def hook(
            module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
        ) -> None:
            self.reading.runs[site] += 1
            for one in (*args, *kwargs.values()):
                if isinstance(one, Tensor) and one.ndim == 3:
                    self._count_prefix(one)
            found = output[0] if isinstance(output, tuple) and output else output
            if not isinstance(found, Tensor) or isinstance(module, _PASSING):
                return
            feature = self._feature(site, found) if self.reading.runs[site] == 1 else None
            self.reading.sites.pop(site, None)
            if feature is not None:
                self.reading.sites[site] = feature

        return hook

    def _count_prefix(self, tokens: Tensor) -> None:
        """Remember how many tokens answer to no mark when so many tokens first come up."""
        if not _readable(tokens) or tokens.shape[1] in self.reading.prefixes:
            return
        quiet = silent(responses(tokens, over=(2,))).tolist()
        before = quiet.index(False) if False in quiet else 0
        self.reading.prefixes[tokens.shape[1]] = before

    def _feature(self, site: str, found: Tensor) -> FeatureSite | None:
        """Return how activations lie on the image; None if they do not, or nobody knows how."""
        if not _readable(found):
            return None
        if found.ndim == 3:
            self._count_prefix(found)
        best: tuple[Agreement, FeatureSite] | None = None
        for feature, laid in self._tokens(found) if found.ndim == 3 else self._planes(found):
            agreed = agreement(laid)
            if agreed.certain and (best is None or agreed.share > best[0].share):
                best = agreed, replace(feature, site=site)
        return None if best is None else best[1]

    def _planes(self, found: Tensor) -> Iterator[tuple[FeatureSite, Tensor]]:
        options: tuple[tuple[Tensor, FeatureLayout], ...] = (
            (found, "b c y x"),
            (found.movedim(-1, 1), "b y x c"),
        )
        for laid, layout in options:
            grid = laid.shape[2], laid.shape[3]
            if grid != (1, 1) and fits(grid, self.size):
                yield FeatureSite("", layout, grid), laid

    def _tokens(self, found: Tensor) -> Iterator[tuple[FeatureSite, Tensor]]:
        count, prefixes = found.shape[1], self.reading.prefixes
        for before in dict.fromkeys((prefixes[count], *prefixes.values())):
            for grid in grids_of(count - before, self.size):
                laid = found[:, before:].mT.unflatten(-1, grid)
                yield FeatureSite("", "b n c", grid, before), laid


def lie_on(
    tokens: Float[Tensor, "4 w c m"], grid: Grid, before: int, windows: Int[Tensor, "w m"] | None
) -> bool:
    """Return whether the tokens of attention lie on the image as cells of a grid.

    Args:
        tokens: What they carry of the marks.
        grid: Rows and columns.
        before: How many tokens stand before it.
        windows: Which tokens each group holds, -1 for empty slots; None for one group of all.

    Example:
        >>> tokens = torch.eye(4).view(4, 1, 1, 4)
        >>> lie_on(tokens, (2, 2), 0, None), lie_on(tokens.flip(3), (2, 2), 0, None)
        (True, False)
    """
    groups, slots = tokens.shape[1], tokens.shape[3]
    if (groups, slots) != ((1, slots) if windows is None else tuple(windows.shape)):
        return False
    count = before + grid[0] * grid[1]
    if windows is None:
        return slots == count and agreement(tokens[:, 0, :, before:].unflatten(-1, grid)).certain
    laid = tokens.new_zeros(QUARTERS, tokens.shape[2], count)
    held = windows >= 0
    laid[:, :, windows[held]] = tokens.movedim(2, 1)[:, :, held]
    return agreement(laid[:, :, before:].unflatten(-1, grid)).certain


def grids_of(count: int, size: tuple[int, int]) -> Iterator[Grid]:
    """Return the grids of square cells with so many places that can cover an image.

    Args:
        count: Of places.
        size: Height and width of the image.

    Example:
        >>> list(grids_of(15, (48, 80))), list(grids_of(16, (48, 80)))
        ([(3, 5)], [])
    """
    for rows in range(1, count + 1):
        if count % rows == 0 and count > 1 and fits((rows, count // rows), size):
            yield rows, count // rows


def _entered(call: ModuleCall, *_: Any) -> None:
    if isinstance(call.module, nn.MultiheadAttention):
        hide(call)


def _readable(found: Tensor) -> bool:
    several = found.ndim in (3, 4) and len(found) == QUARTERS
    return several and found.is_floating_point() and found.numel() > 0


def _by_token(tokens: Float[Tensor, "g h m d"]) -> Float[Tensor, "4 w c m"]:
    return tokens.detach().unflatten(0, (QUARTERS, -1)).mT.flatten(2, 3)
