"""One probe of all layers: which tensors of a model have positions on the image, and where.

The model runs on a photo and on copies with noise (see `places`). Attention is replaced in these
runs, so that tokens keep their own content for any weights: self-attention by the identity,
attention to another grid by attention to the nearest key.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import one_hot

from visattn.blocks.tap import RecordRequest, Tap
from visattn.io.messages import user_code_location
from visattn.recording.attention_call import AttentionCall
from visattn.recording.frozen import first_weight, without_grad
from visattn.recording.interception import (
    attention_calls,
    in_this_run,
    probing,
)
from visattn.recording.model_config import forward_function
from visattn.recording.model_info import AttentionLayer, FeatureLayer
from visattn.recording.outputs import OutputLayout, detect_output_layout, first_tensor
from visattn.recording.places import (
    CLEAR,
    IMAGES,
    CellStrides,
    Grid,
    Places,
    fits,
    lie_at,
    moments,
    place_planes,
    place_tokens,
    probe_images,
    shows_whole,
)

_NOISES = 8
_UPRIGHT = 0.9  # correlation of few rows with their centers that no other order reaches
_COARSE = 5  # rows from which on a map is large enough to be measured on images of half the size
_PREFIX_PARAMETERS = {
    "class": re.compile(r"(^|\.)(cls|class)_(token|embedding)s?(_\d+)?(\.\d+)?$"),
    "distillation": re.compile(r"(^|\.)(dist|distillation)_token$"),
    "register": re.compile(r"(^|\.)(reg|register|storage)_tokens?$"),
}
_NO_PLACE = "it attends to channels, or to tokens without their own position on the image"
_NO_QUERIES = "its queries have no position on the image"
_NOT_IN_ORDER = "its tokens are not in the order of their grid"
_CUT = (
    "it crops, pads or shifts its images before its first layer; move that out of the model, and "
    "pass images as the layer gets them"
)


@dataclass(frozen=True, eq=False)
class ObservedTokens:
    """Positions of the tokens of one attention call.

    Args:
        layer: Metadata of the layer.
        key_prefix_tokens: Kinds of the keys outside of the grid.
        windows: Index of the token in each slot, for tokens in windows or not in the order of the
            grid; tokens outside of the grid come first, -1 is padding. Else None.
        counts: Numbers of queries and keys, in a window.
    """

    layer: AttentionLayer
    key_prefix_tokens: tuple[str, ...]
    windows: Int[Tensor, "w p"] | None = None
    counts: tuple[int, int] = (0, 0)


@dataclass(eq=False)
class _Output:
    """Output of a module, with sums over the runs, for channels last and channels second.

    Args:
        tokens: Moments of its tokens, for three axes.
        planes: How clearly it is a map of the image, for four axes.
        placed: Its feature layer and the positions of its tokens, once they were needed.
    """

    site: str
    shape: tuple[int, ...]
    tokens: list[Float[Tensor, "5 n"]] = field(default_factory=list)
    planes: list[float] = field(default_factory=list)
    placed: tuple[FeatureLayer | None, Places | None] | None = None


@dataclass(eq=False)
class _Attention:
    """One attention call, and the moments of its tokens, by window.

    Args:
        reason: Why it cannot be recorded; "" if no reason is known.
        count: Number of softmaxes in the call of its module.
        source: Name of the module whose output it gets.
        output: Shape of the output of its module.
    """

    site: str
    shape: Sequence[int]
    reason: str = ""
    keys: Float[Tensor, "5 w m"] | None = None
    queries: Float[Tensor, "5 w n"] | None = None
    count: int = 0
    source: str = ""
    output: tuple[int, ...] = ()
    tap: Tap | None = None


@dataclass(eq=False)
class Probe:
    """Measurements from runs of a model on a photo with noise.

    They hold no reference to the model, so that they can outlive it.

    Args:
        size: Height and width of the images.
        outputs: Outputs of all modules, in the order in which they ran.
        attention: All attention calls, by module and number of the call.
        runs: Number of runs.
        layouts: For each module that computes attention and each of its calls, the positions of its
            tokens, or why it cannot be recorded.
        query_layers: Layers in which queries without positions attend to a grid, as in the decoder
            of DETR, by module.
        sure: Whether more noise would not change the result.
        strides: Strides of the feature maps.
        output: Location of the class scores in the output of the model.
        cut: Why no positions are valid; "" if they are.
        looked: Whether the input of the first layer was compared with the images.
        kinds: Kinds of prefix tokens, by the names of parameters.
        error: Why the model could not be run; "" if it could.
    """

    size: tuple[int, int]
    outputs: list[_Output] = field(default_factory=list)
    attention: dict[tuple[str, int], _Attention] = field(default_factory=dict)
    runs: int = 0
    layouts: dict[str, list[ObservedTokens | str]] = field(default_factory=dict)
    query_layers: dict[str, ObservedTokens] = field(default_factory=dict)
    sure: bool = True
    strides: CellStrides = field(default_factory=CellStrides)
    output: OutputLayout = field(default_factory=OutputLayout)
    cut: str = ""
    looked: bool = False
    kinds: tuple[str, ...] = ()
    error: str = ""

    @property
    def attention_modules(self) -> set[str]:
        """Modules that compute attention, supported or not."""
        calls = self.attention.values()
        around = {e.site.rpartition(".")[0] for e in calls if e.tap and e.tap.kind == "tokens"}
        return {*self.layouts, *self.query_layers, *around}

    @property
    def attention_layers(self) -> list[AttentionLayer]:
        """Attention layers that can be recorded, in the order in which they run."""
        first_calls = (calls[0] for calls in self.layouts.values())
        return [layout.layer for layout in first_calls if isinstance(layout, ObservedTokens)]

    @property
    def unsupported_layers(self) -> list[tuple[str, str]]:
        """Attention layers that cannot be recorded, and why."""
        first_calls = ((site, calls[0]) for site, calls in self.layouts.items())
        return [(site, reason) for site, reason in first_calls if isinstance(reason, str)]

    @property
    def attention_inputs(self) -> list[str]:
        """Names of the modules whose output is the input of attention that can be recorded."""
        read = {layer.site for layer in self.attention_layers if not layer.single_query}
        calls = (call for call in self.attention.values() if call.site in read)
        return list(dict.fromkeys(call.source for call in calls))

    def layout_of(self, site: str, index: int) -> ObservedTokens | str | None:
        """Return the positions of the tokens of a call; None if the module did not run.

        Images may run one after the other: index 3 of a module that runs twice per image is its
        second call on the second image.
        """
        calls = self.layouts.get(site)
        return calls[index % len(calls)] if calls else None

    def layers_of(self, site: str) -> list[FeatureLayer | None]:
        """Return the feature layer of each call of a module; None if it has no positions.

        It is computed on demand, since most outputs are never asked for.
        """
        calls = (index for index, each in enumerate(self.outputs) if each.site == site)
        return [self._placed(index)[0] for index in calls]

    def once(self, site: str) -> FeatureLayer | None:
        """Return the feature layer of a module, if it runs once."""
        layers = self.layers_of(site)
        return layers[0] if len(layers) == 1 else None

    def _placed(self, index: int) -> tuple[FeatureLayer | None, Places | None]:
        output = self.outputs[index]
        if output.placed is None:
            output.placed = (None, None) if self.cut else self._place(output, index)
        return output.placed

    def _place(self, output: _Output, index: int) -> tuple[FeatureLayer | None, Places | None]:
        """Return the feature layer of an output, and the positions of its tokens."""
        grid = _grid_of(output, self.runs)
        if grid is not None:
            layout = "b c y x" if output.planes[1] >= output.planes[0] else "b y x c"
            places = Places(grid, torch.arange(prod(grid)))
            return FeatureLayer(output.site, layout, grid), places
        for axis, layout in enumerate(("b n c", "b c n")) if output.tokens else ():
            count, places = output.shape[1 + axis], place_tokens(output.tokens[axis], self.size)
            if places is None or not places.likely:  # try the positions of an earlier output
                earlier = (self._placed(before)[1] for before in reversed(range(index)))
                alike = (e for e in earlier if e and len(e.cells) + len(e.free) == count)
                moment = output.tokens[axis]
                places = next((e for e in alike if lie_at(moment, e.grid, e.cells)), None)
            if places is not None:
                cells = places.cells.tolist()
                in_order = cells == list(range(cells[0], cells[0] + len(cells)))
                beside = (cells[0], count - len(cells) - cells[0]) if in_order else (0, 0)
                order = () if in_order else tuple(cells)
                layer = FeatureLayer(output.site, layout, places.grid, *beside, order=order)
                return layer, places
        return None, None

    def run(self, model: nn.Module, forward: Callable[[Tensor], Any], images: Tensor) -> Any:
        """Run the model on images with new noise, and return its output."""
        self.kinds = prefix_tokens_of(model)
        self.at = 0  # number of outputs in this run
        with ExitStack() as stack:
            stack.enter_context(attention_calls(model, self._on_call))
            for site, module in model.named_modules():
                if isinstance(module, Tap) and module.unsupported:
                    known = _Attention(site, (), module.unsupported, tap=module)
                    self.attention[site, 0] = known
                elif isinstance(module, Tap):
                    hook = in_this_run(partial(self._on_tap, site))
                    request = RecordRequest(differentiable=module.kind == "tokens")
                    stack.enter_context(module.listening(request, hook))
                else:
                    hook = in_this_run(partial(self._on_output, site))
                    stack.callback(module.register_forward_hook(hook).remove)
            output = forward(images)
        self.runs += 1
        return output

    def _on_call(self, call: AttentionCall) -> Tensor | None:
        """Measure the tokens of attention; return weights with which they keep their content."""
        key = call.site, call.index
        if key not in self.attention:
            source = self._source(call.site)
            known = _Attention(call.site, call.shape, call.unsupported, source=source)
            self.attention[key] = known
        found = self.attention[key]
        found.count += self.runs == 0
        if call.unsupported:
            return None
        groups, _, num_queries, num_keys = call.shape
        call.heads_mixed = False  # tokens keep their content even if heads are mixed
        queries, _, values = call.inputs
        if groups % IMAGES:
            found.reason = "its groups of tokens are not those of single images"
        elif found.count == 1:
            # If values differ in size from the keys, only the weights show where the keys are.
            same = values.shape[:1] + values.shape[2:3] == (groups, num_keys)
            keys = _token_moments(values if same else call.weights().transpose(-2, -1))
            found.keys = _sum(found.keys, keys)
            if queries is not None and num_queries > 1:
                found.queries = _sum(found.queries, _token_moments(queries))
            elif num_queries not in (1, num_keys) and groups == IMAGES:
                # the model computed the weights: the last output of this size holds its queries
                found.queries = next(self._tokens_of(num_queries), None)
        if num_queries == num_keys:
            return torch.eye(num_keys).to(values)
        if groups != IMAGES or found.keys is None or found.queries is None:
            return None
        if not bool((found.queries[0] > 0).all()):
            return None
        # to another grid: each query reads the nearest key
        key_at, query_at = ((each[1:3, 0] / each[0, 0]).T for each in (found.keys, found.queries))
        nearest = torch.cdist(query_at.to(key_at), key_at.nan_to_num(9.0)).argmin(1)
        return one_hot(nearest, num_keys).to(values)

    def _source(self, site: str) -> str:
        """Return the name of the module that ran last before this one and its parts."""
        earlier = (each for each in reversed(self.outputs) if each.tokens or each.planes)
        outside = (each.site for each in earlier if site and not each.site.startswith(f"{site}."))
        return next(outside, "")

    def _tokens_of(self, count: int) -> Iterator[Float[Tensor, "5 1 n"]]:
        """Yield the moments of outputs with as many tokens, or cells, the last one first."""
        for output in reversed(self.outputs[: self.at]):
            if output.tokens and output.shape[1] == count:
                yield output.tokens[0][:, None]
            grid = _grid_of(output, self.runs + 1)
            if grid is not None and prod(grid) == count:
                y, x = ((torch.arange(side) + 0.5) / side for side in grid)
                y, x = y.repeat_interleave(grid[1]), x.repeat(grid[0])
                yield torch.stack([torch.ones(count), y, x, y * y, x * x])[:, None]

    def _on_tap(self, site: str, tap: Any, _: Any, weights: Tensor) -> Tensor | None:
        if self.runs == 0:
            index = sum(known == site for known, _ in self.attention)
            source = self._source(site.rpartition(".")[0])
            call = _Attention(site, tuple(weights.shape), source=source, tap=tap)
            self.attention[site, index] = call
        if tap.kind == "tokens" and weights.ndim > 2 and weights.shape[-1] == weights.shape[-2]:
            return torch.eye(weights.shape[-1]).to(weights).expand_as(weights)
        return None

    def _on_output(self, site: str, module: nn.Module, args: Any, output: Any) -> None:
        tensor = _first(output)
        if self.runs == 0:
            self.outputs.append(_Output(site, tuple(tensor.shape)))
            for call in self.attention.values():
                if call.site == site and not call.output:
                    call.output = tuple(tensor.shape)
        found = self.outputs[min(self.at, len(self.outputs) - 1)]
        self.at += 1
        known = found.site == site and found.shape == tuple(tensor.shape)
        on_batch = tensor.ndim in (3, 4) and len(tensor) == IMAGES and tensor.numel()
        if not known or not on_batch or not tensor.is_floating_point():
            return
        with torch._C.DisableTorchFunction():  # noqa: SLF001 - the measurement is not attention
            if tensor.ndim == 3:
                both = [moments(tensor, 2), moments(tensor, 1)]
                found.tokens = list(map(_sum, found.tokens or [None] * 2, both))
            else:
                second, last = place_planes(tensor, self.size), 0.0
                usual = fits(_sides(tensor, 2), self.size) and not fits(
                    _sides(tensor, 1), self.size
                )
                if second < CLEAR or not usual:
                    last = place_planes(tensor.movedim(-1, 1), self.size)
                before = found.planes or (0.0, 0.0)
                found.planes = [before[0] + last, before[1] + second]
            if self.runs == 0 and not self.looked and args:
                self._look_at_pixels(module, args[0])

    def _look_at_pixels(self, module: nn.Module, pixels: Tensor) -> None:
        """Check whether the first layer gets the whole image."""
        if not isinstance(module, nn.Conv2d | nn.Linear):
            return
        pixels = pixels if isinstance(module, nn.Conv2d) else pixels.movedim(-1, 1)
        of_image = pixels.ndim == 4 and len(pixels) == IMAGES and min(pixels.shape[2:]) > 1
        if of_image and bool((pixels[1] != pixels[0]).any()):
            self.looked = True
            step = module.stride if isinstance(module, nn.Conv2d) else (1, 1)
            self.cut = "" if shows_whole(pixels, self.size, (step[0], step[1])) else _CUT

    def locate(self) -> None:
        """Locate the tokens of all attention calls, from the runs so far."""
        self.sure, self.layouts, self.query_layers = True, {}, {}
        for call in self.attention.values():
            layout = self._tapped(call, call.tap) if call.tap else self.cut or self._layout(call)
            if isinstance(layout, ObservedTokens) and layout.layer.num_queries:
                self.query_layers[call.site] = layout
                layout = None if call.tap else _NO_QUERIES
            if layout is not None:
                self.layouts.setdefault(call.site, []).append(layout)

    def _place_calls(self, moment: Tensor | None) -> Places | None:
        """Return the positions of tokens; None if they have none, or none that is certain yet."""
        places = None if moment is None else place_tokens(moment, self.size)
        if places is not None and not places.sure:
            self.sure = False
            return None
        return places

    def _layout(self, call: _Attention) -> ObservedTokens | str:
        """Return the positions of the tokens of attention, or why it cannot be recorded."""
        if call.reason:
            return call.reason
        if call.count > 1:
            return "it combines several softmaxes, none of which alone is its attention"
        groups, heads, num_queries, num_keys = call.shape
        windows = groups // IMAGES
        keys = self._place_calls(call.keys)
        if keys is None or (windows > 1 and num_queries != num_keys):
            return _NO_PLACE
        prefix = self._kinds(len(keys.free)) if windows == 1 else ()
        order = _order(keys, windows, num_keys)
        inside = {slot % num_keys for slot in keys.free}
        if windows > 1 and inside and len(keys.free) == len(inside) * windows:  # not padding
            return "its windows contain tokens that are not part of the grid"
        layer = AttentionLayer(call.site, keys.grid, heads, prefix)
        observed = ObservedTokens(layer, prefix, order, (num_queries, num_keys))
        if num_queries == 1 < num_keys:
            layer = replace(layer, single_query=True)
            return _NOT_IN_ORDER if order is not None else replace(observed, layer=layer)
        if num_queries == num_keys:
            if call.queries is not None and not lie_at(call.queries, keys.grid, keys.cells):
                return _NO_PLACE
        elif call.queries is None or order is not None:
            return _NO_PLACE if order is None else _NOT_IN_ORDER
        else:
            queries = self._place_calls(call.queries)
            if queries is None:
                return replace(observed, layer=replace(layer, num_queries=num_queries))
            if _order(queries, 1, num_queries) is not None:
                return _NOT_IN_ORDER
            other = None if queries.grid == keys.grid else keys.grid
            kinds = self._kinds(len(queries.free))
            layer = replace(layer, grid=queries.grid, prefix_tokens=kinds, key_grid=other)
        if len(call.output) < 3:
            layer = replace(layer, pools=True)
        return replace(observed, layer=layer)

    def _kinds(self, count: int) -> tuple[str, ...]:
        """Return the kinds of tokens outside of the grid, by name or else by order."""
        names = self.kinds
        kinds = (tuple(name for name in names if name == kind) for kind in dict.fromkeys(names))
        unnamed = ("class", *["register"] * (count - 1))[:count]
        return next((each for each in (names, *kinds) if len(each) == count), unnamed)

    def _tapped(self, call: _Attention, tap: Tap) -> ObservedTokens | str | None:
        """Return the positions of the tokens of a block that states them."""
        if call.reason or tap.grid is None:
            return call.reason or None
        heads, single = call.shape[1] if len(call.shape) > 2 else None, tap.single_query
        layer = AttentionLayer(call.site, tap.grid, heads, tap.roles, single_query=single)
        if tap.kind == "queries":
            layer = replace(layer, num_queries=call.shape[2])
        elif tap.fulfilled is None and not single:  # it computed no map in this run
            return None
        return ObservedTokens(layer, tap.roles)


def probe_model(
    model: nn.Module,
    size: tuple[int, int],
    channels: int,
    forward: Callable[[Float[Tensor, "b c y x"]], Any] | None = None,
) -> Probe:
    """Return the positions of the activations of a model, with more noise until they are certain.

    The model runs in evaluation mode, and is restored afterwards.

    Args:
        forward: Calls the model, if it takes more than images.
    """
    probe = Probe(size)
    with without_grad(model), probing(), probe.strides.watching(model):
        try:
            while probe.runs == 0 or not (probe.sure or probe.runs == _NOISES):
                images = probe_images(channels, size, first_weight(model), probe.runs)
                output = probe.run(model, forward or forward_function(model), images)
                probe.locate()
                probe.output = detect_output_layout(output, IMAGES)
        except Exception as error:  # noqa: BLE001 - any exception of the user's model is reported
            location = user_code_location(error)
            where = f" in {location}" if location else ""
            return Probe(size, error=f"{type(error).__name__}{where}: {error}")
    return probe


def layer_by_shape(site: str, shape: Sequence[int], size: Grid) -> FeatureLayer | None:
    """Return the feature layer of a map if its shape fits images of a size; else None.

    Example:
        >>> layer_by_shape("stage", (1, 7, 9, 64), (224, 288)).layout
        'b y x c'
    """
    if len(shape) != 4:
        return None
    _, rows, columns, last = shape
    second = FeatureLayer(site, "b c y x", (columns, last))
    both = second, FeatureLayer(site, "b y x c", (rows, columns))
    return next((each for each in both if fits(each.grid, size) and max(each.grid) > 1), None)


def lie_as_shaped(
    model: nn.Module,
    forward: Callable[[Tensor], Any],
    image: Float[Tensor, "1 c y x"],
    layers: Sequence[FeatureLayer],
) -> bool:
    """Return whether positions in maps follow from their shapes, by noise on half-size images.

    False if uncertain: a network may take images of one size only, or resize them itself.
    """
    full = image.shape[2], image.shape[3]
    by = 2 if min(layers[-1].grid) >= _COARSE else 1
    size = -(-full[0] // by), -(-full[1] // by)
    clear = {layer.site: list[bool]() for layer in layers}

    def hook(layer: FeatureLayer, _: nn.Module, __: Any, output: Any) -> None:
        tensor = _first(output)
        channels = layer.layout.split().index("c")
        maps = tensor.movedim(channels, 1) if tensor.ndim == 4 else tensor
        near = (
            abs(by * one - whole) < by
            for one, whole in zip(maps.shape[2:], layer.grid, strict=True)
        )
        alike = maps.ndim == 4 and len(maps) == IMAGES and all(near)
        clear[layer.site].append(alike and place_planes(maps, size) > _UPRIGHT)

    with without_grad(model), probing(), ExitStack() as stack:
        for layer in layers:
            module = model.get_submodule(layer.site)
            handle = module.register_forward_hook(in_this_run(partial(hook, layer)))
            stack.callback(handle.remove)
        with suppress(Exception):  # from a network that does not take images of this size
            forward(probe_images(image.shape[1], size, image))
    return all(each == [True] for each in clear.values())


def _first(output: Any) -> Tensor:
    """Return the first tensor of an output; an empty one if it has none."""
    first = first_tensor(output)
    return torch.empty(0) if first is None else first[1]


def _grid_of(output: _Output, runs: int) -> Grid | None:
    """Return rows and columns of an output; None if it is not a map of the image."""
    if max(output.planes, default=0) < CLEAR * runs:
        return None
    last, second = output.planes
    sides = output.shape[2:] if second >= last else output.shape[1:3]
    return sides[0], sides[1]


def _sides(tensor: Tensor, start: int) -> Grid:
    return tensor.shape[start], tensor.shape[start + 1]


def _token_moments(tokens: Float[Tensor, "g h m d"]) -> Float[Tensor, "5 w m"]:
    return moments(tokens.unflatten(0, (IMAGES, -1)), 2, 4)


def _sum(known: Tensor | None, other: Tensor) -> Tensor:
    return other.cpu() if known is None else known + other.cpu()


def _order(places: Places, windows: int, slots: int) -> Int[Tensor, "w p"] | None:
    """Return the token of each slot, those outside of the grid first; None if in order."""
    free = len(places.free) if windows == 1 else 0
    tokens = torch.full((windows * slots,), -1)
    if free:
        tokens[list(places.free)] = torch.arange(free)
    tokens[places.cells] = torch.arange(len(places.cells)) + free
    in_order = windows == 1 and torch.equal(tokens, torch.arange(slots))
    return None if in_order else tokens.view(windows, slots)


def prefix_tokens_of(model: nn.Module) -> tuple[str, ...]:
    """Return the kinds of the prefix tokens of a model, by the names of its parameters.

    Example:
        >>> model = nn.Module()
        >>> model.cls_token, model.reg_token = (nn.Parameter(torch.zeros(1, n, 8)) for n in (1, 2))
        >>> prefix_tokens_of(model)
        ('class', 'register', 'register')
    """
    counts = dict.fromkeys(_PREFIX_PARAMETERS, 0)
    for name, weight in model.named_parameters():
        for kind, pattern in _PREFIX_PARAMETERS.items():
            if pattern.search(name):
                count = weight.shape[-2] if weight.ndim > 1 else 1
                counts[kind] = max(counts[kind], count if kind == "register" else 1)
    return tuple(kind for kind, count in counts.items() for _ in range(count))
