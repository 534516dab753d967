"""What a model does with its tokens, read off one run on images of zeros."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from visattn.blocks.tap import RecordRequest, Tap
from visattn.recording.attention_call import AttentionCall
from visattn.recording.grid_probe import IMAGES, GridProbe
from visattn.recording.marked_probe import MarkedReading, lie_on
from visattn.recording.model_info import AttentionLayer, FeatureSite
from visattn.recording.model_outputs import OutputLayout, output_layout
from visattn.recording.module_calls import ModuleCall, ModuleCalls, dry
from visattn.recording.multihead import asked_of, hide, multihead_call, unhide
from visattn.recording.token_grid import (
    block_of,
    in_order,
    numbers_in,
    split_tokens,
    windows_of,
)
from visattn.recording.torch_function import Interception

_CHANNELS = ("XCA", "ChannelAttention", "ChannelAttentionV2", "CrossCovarianceAttn")


@dataclass(frozen=True, eq=False)
class TokenPlace:
    """Where the tokens of one layer of attention lie.

    Args:
        layer: As it stands on the card.
        before: Roles of the tokens before the grid of the keys.
        windows: Which tokens the windows hold, -1 for empty slots; None if all see each other.
    """

    layer: AttentionLayer
    before: tuple[str, ...]
    windows: Tensor | None = None


@dataclass(eq=False)
class ProbeResult:
    """What was read off a run.

    Args:
        places: For each part of the model that computes attention and each of its runs, where its
            tokens lie, or why they cannot be shown.
        inputs: What goes into attention, where it lies on a grid.
        roles: Of the tokens that the model puts before its grid.
        marked: What was read off it on marked images.
        output: Where the class scores are in what the model returns.
        failure: Why the model could not be run; "" if it could.
    """

    places: dict[str, list[TokenPlace | str]] = field(default_factory=dict)
    inputs: tuple[FeatureSite, ...] = ()
    roles: tuple[str, ...] = ()
    marked: MarkedReading = field(default_factory=MarkedReading)
    output: OutputLayout = field(default_factory=OutputLayout)
    failure: str = ""

    @property
    def layers(self) -> list[AttentionLayer]:
        """Layers that can be shown, in the order in which they run."""
        firsts = (runs[0] for runs in self.places.values())
        return [place.layer for place in firsts if isinstance(place, TokenPlace)]

    @property
    def refused(self) -> list[tuple[str, str]]:
        """Layers that cannot be shown, and why."""
        firsts = ((site, runs[0]) for site, runs in self.places.items())
        return [(site, reason) for site, reason in firsts if isinstance(reason, str)]


class ModelProbe:
    """Run a model on zeros and see where its tokens go.

    Numbers travel through the network in place of activations: every block is given tokens that say
    which they are, norms let them pass, and where attention projects its tokens they are read
    again. So windows are found as the model itself cuts, moves and fills them. Whether the tokens
    that came in lie on the image in that order, a run on marked images has shown.

    Args:
        model: To be read.
        size: Height and width of the images.
        roles: Of the tokens that it may put before the grid.
        marked: What was read off it on marked images.
    """

    def __init__(
        self,
        model: nn.Module,
        size: tuple[int, int],
        roles: tuple[str, ...],
        marked: MarkedReading,
    ) -> None:
        self.model, self.size, self.roles, self.marked = model, size, roles, marked
        self.calls = ModuleCalls(dry=True)
        self.grids = GridProbe(size, roles, marked.grids)
        self.reading = ProbeResult(roles=roles, marked=marked)
        self.before_attention: dict[str, FeatureSite] = {}

    def read(self, run: Callable[[], Any]) -> ProbeResult:
        """Return what is seen while the model runs.

        Args:
            run: Calls the model on zeros.
        """
        with ExitStack() as stack:
            stack.enter_context(dry())
            stack.enter_context(self.calls.watching(self.model, self._entered, self._left))
            for site, module in self.model.named_modules():
                hook = self._tapped(site) if isinstance(module, Tap) else self.grids.hook(site)
                stack.callback(module.register_forward_hook(hook).remove)
                if isinstance(module, Tap) and module.kind == "tokens":
                    module.wishes.append(_FIRST)
                    stack.callback(module.wishes.remove, _FIRST)
            stack.enter_context(Interception(self.calls, self))
            self.reading.output = output_layout(run(), IMAGES)
        inputs = dict.fromkeys(site.site for site in self.before_attention.values())
        self.reading.inputs = tuple(
            self.marked.sites[site] for site in inputs if site in self.marked.sites
        )
        return self.reading

    def saw(self, place: ModuleCall, attention: AttentionCall) -> None:
        """Remember the attention of a module until it ends."""
        place.attentions += 1
        place.notes["shape"] = attention.shape

    def refused(self, place: ModuleCall, reason: str) -> None:
        """Remember why a module cannot be shown."""
        place.notes.setdefault("refusal", reason)

    def _entered(self, call: ModuleCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        call.notes["features"] = _nearest(self.grids.norm, call.site) or self._arrived()
        call.notes["arrived"] = self.grids.latest
        if isinstance(call.module, nn.MultiheadAttention):
            call.inputs.append(asked_of(args, kwargs)["query"])
            hide(call)
            return None
        if len(self.calls.stack) == 1:
            return None
        for at, given in enumerate(args):
            if isinstance(given, Tensor) and (code := self.grids.code(given)) is not None:
                return (*args[:at], code, *args[at + 1 :]), kwargs
        for name, given in kwargs.items():
            if isinstance(given, Tensor) and (code := self.grids.code(given)) is not None:
                return args, {**kwargs, name: code}
        return None

    def _arrived(self) -> FeatureSite | None:
        """Return what was put out last before the module around this one began."""
        stack = self.calls.stack
        return stack[-2].notes["arrived"] if len(stack) > 1 else None

    def _left(
        self, call: ModuleCall, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        if isinstance(call.module, nn.MultiheadAttention):
            attention = output and multihead_call(call.module, args, kwargs, output)
            unhide(call)
            if isinstance(attention, str):
                self.refused(call, attention)
            elif attention:  # unless an error came between
                self.saw(call, attention)
        if not call.foreign or not (call.attentions or "refusal" in call.notes):
            return
        place = self._placed(call, output)
        if isinstance(place, TokenPlace) and not _lies(self.marked, call, place):
            place = _ELSEWHERE
        self.reading.places.setdefault(call.site, []).append(place)
        if isinstance(place, TokenPlace):
            self._remember(call, call.site, lone=place.layer.lone)

    def _remember(self, call: ModuleCall, site: str, *, lone: bool) -> None:
        if not lone and call.notes["features"] is not None:
            self.before_attention.setdefault(site, call.notes["features"])

    def _placed(self, call: ModuleCall, output: Any) -> TokenPlace | str:
        """Return where the tokens of attention that has run lie."""
        if type(call.module).__name__ in _CHANNELS:
            return "it attends among channels, not among places"
        if "refusal" in call.notes:
            return call.notes["refusal"]
        if call.attentions > 1:
            return "it combines several softmaxes, none of which alone is its attention"
        groups, heads, queries, keys = call.notes["shape"]
        read = (numbers_in(given, groups, queries) for given in call.inputs)
        numbers = next((one for one in read if one is not None), None)
        windows = None
        if numbers is not None and queries == keys:
            windows = windows_of(numbers, IMAGES)
            if windows is None:
                return "the windows of several images do not follow one another"
        elif groups != IMAGES:
            return "where the tokens of its groups lie on the grid could not be followed"
        elif self.grids.shuffled:
            return "its tokens are out of the order of their grid"
        if windows is not None and not in_order(windows):
            place = self._in_windows(call.site, windows, heads)
        else:
            place = self._on_grid(call.site, heads, queries, keys)
        tokens = int(windows.max()) + 1 if windows is not None else queries
        if isinstance(place, TokenPlace) and not place.layer.lone:
            seen = place.layer.grid in self.grids.seen
            given = _gives(output, groups * queries, IMAGES * tokens)
            return place if (seen if given is None else given) else _NOT_PLACES
        return place

    def _in_windows(self, site: str, windows: Tensor, heads: int) -> TokenPlace | str:
        split = split_tokens(int(windows.max()) + 1, self.roles, self.size, self.grids.seen)
        if split is None:
            return _no_grid(int(windows.max()) + 1, self.roles)
        roles, grid = split
        if roles:
            return "its windows hold tokens that are not of the grid"
        start = int(windows[0, 0])
        shift = divmod(start, grid[1]) if start > 0 else (0, 0)
        window = block_of(windows, grid[1])
        layer = AttentionLayer(site, grid, heads, window=window, shift=shift if window else (0, 0))
        return TokenPlace(layer, (), windows)

    def _on_grid(self, site: str, heads: int, queries: int, keys: int) -> TokenPlace | str:
        lone = queries == 1 < keys
        offered = split_tokens(keys, self.roles, self.size, self.grids.seen)
        asking = offered
        if not lone and queries != keys:
            asking = split_tokens(queries, self.roles, self.size, self.grids.seen)
        if offered is None or asking is None:
            return _no_grid(keys if offered is None else queries, self.roles)
        (before, at), (roles, grid) = offered, asking
        other = None if at == grid else at
        layer = AttentionLayer(site, grid, heads, roles, other, lone=lone)
        return TokenPlace(layer, before)

    def _tapped(self, site: str) -> Callable[..., Any]:
        def hook(module: nn.Module, _: tuple[Any, ...], weights: Tensor) -> None:
            knows = isinstance(module, Tap) and (module.shown is not None or module.lone)
            if not knows or not isinstance(module, Tap) or module.grid is None:
                return
            heads = weights.shape[1] if weights.ndim > 2 else None
            window, shift = module.notes.get("window"), module.notes.get("shift", (0, 0))
            layer = AttentionLayer(
                site, module.grid, heads, module.roles, None, window, shift, module.lone
            )
            self.reading.places[site] = [TokenPlace(layer, module.roles)]
            if self.calls.current is not None:
                self._remember(self.calls.current, site, lone=module.lone)

        return hook


_FIRST = RecordRequest((0,))
_ELSEWHERE = "blocks of pixels that are changed show at other tokens than those of their places"
_NOT_PLACES = "what it puts out does not lie on the places of its queries"


def _lies(marked: MarkedReading, call: ModuleCall, place: TokenPlace) -> bool:
    """Whether the tokens of attention carry the marks of the places at which they are to lie."""
    tokens, layer = marked.attention.get((call.site, call.number)), place.layer
    if tokens is None:
        return False
    grid, before = layer.keys or layer.grid, len(place.before)
    if not lie_on(tokens.keys, grid, before, place.windows):
        return False
    if layer.lone or tokens.queries is None:
        return True
    return lie_on(tokens.queries, layer.grid, len(layer.roles), place.windows)


def _no_grid(count: int, roles: tuple[str, ...]) -> str:
    told = ", ".join(roles) or "none"
    return f"{count} tokens are no grid of the image (tokens before the grid: {told})"


def _gives(output: Any, slots: int, tokens: int) -> bool | None:
    """Whether what attention put out has a place for each query; None if it was pooled already."""
    found = output[0] if isinstance(output, tuple) and output else output
    if not isinstance(found, Tensor) or found.ndim < 3:
        return None
    counts = {found.numel() // found.shape[-1]}
    if found.ndim == 4:
        counts.add(found.numel() // found.shape[1])
    return bool(counts & {slots, tokens})


def _nearest(norm: FeatureSite | None, site: str) -> FeatureSite | None:
    """Return a norm if it stands in the block that holds the site."""
    block = "" if norm is None else norm.site.rpartition(".")[0]
    return norm if block and site.startswith(f"{block}.") else None
