"""One probe of all layers: which tensors of a model lie on the image, and how.

The model runs on a photo and on copies with noise (see `places`). Meanwhile attention is replaced,
so that a token keeps its own content, whatever the weights of the model are: self-attention by the
identity, attention to another grid by that to the nearest key.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import one_hot

from visattn.blocks.tap import RecordRequest, Tap
from visattn.io.messages import user_code_location
from visattn.recording.attention_call import AttentionCall
from visattn.recording.cell_strides import CellStrides
from visattn.recording.frozen import first_weight, without_grad
from visattn.recording.interception import (
    Running,
    attention_calls,
    in_this_run,
    probing,
    running_modules,
)
from visattn.recording.model_config import forward_function
from visattn.recording.model_info import AttentionLayer, FeatureLayer
from visattn.recording.outputs import OutputLayout, detect_output_layout, first_tensor
from visattn.recording.places import (
    CLEAR,
    IMAGES,
    SHIFTED,
    Grid,
    Places,
    lie_at,
    moments,
    place_planes,
    place_tokens,
    probe_images,
)

_NOISES = 8
_PREFIX_PARAMETERS = {
    "class": re.compile(r"(^|\.)(cls|class)_(token|embedding)s?(_\d+)?(\.\d+)?$"),
    "distillation": re.compile(r"(^|\.)(dist|distillation)_token$"),
    "register": re.compile(r"(^|\.)(reg|register|storage)_tokens?$"),
}
_NO_PLACE = "it attends to channels, or to tokens without a position of their own on the image"
_NO_QUERIES = "its queries have no position on the image"
_NOT_IN_ORDER = "its tokens are not in the order of their grid"
_CUT = (
    "it cuts, pads or shifts its images before its first layer; do that before, and pass images as "
    "the layer gets them"
)
_SAME = 1e-9  # relative difference of equal rows
_NO_OUTPUT = "its output does not lie on the positions of its queries"


@dataclass(frozen=True, eq=False)
class ObservedTokens:
    """Positions of the tokens of one attention call.

    Args:
        layer: Metadata of the layer.
        key_prefix_tokens: Kinds of the tokens beside the grid of the keys.
        windows: For tokens in windows or in another order than that of the grid: the index of the
            token in each slot, tokens beside the grid first; -1 for padding. Else None.
    """

    layer: AttentionLayer
    key_prefix_tokens: tuple[str, ...]
    windows: Int[Tensor, "w p"] | None = None


Layouts = Mapping[str, Sequence[ObservedTokens | str]]
"""Positions of the tokens of each call of each module, or why it cannot be recorded."""


def layout_of(layouts: Layouts, site: str, index: int) -> ObservedTokens | str | None:
    """Return the positions of the tokens of a call; None if the module did not run in the probe.

    Several images may have run one after the other: call 3 of a module that runs twice per image is
    its second.
    """
    calls = layouts.get(site)
    return calls[index % len(calls)] if calls else None


@dataclass(eq=False)
class ProbeResult:
    """Result of the probe runs of a model.

    Args:
        layers: For each module and each of its calls, how its output lies on the image; None if it
            does not.
        layouts: For each module that computes attention and each of its calls, the positions of its
            tokens, or why it cannot be recorded.
        query_layers: Layers in which queries that lie nowhere on the image attend to a grid, as in
            the decoder of DETR, by module.
        attention_inputs: Names of the modules whose output attention reads.
        attention_modules: Modules that computed attention, supported or not.
        output: Location of the class scores in the output of the model.
        strides: Pixels from one cell to the next.
        size: Height and width of the images.
        cut: Why nothing lies where it should on the images; "" if it does.
        error: Why the model could not be run; "" if it could.
    """

    layers: dict[str, list[FeatureLayer | None]] = field(default_factory=dict)
    layouts: dict[str, list[ObservedTokens | str]] = field(default_factory=dict)
    query_layers: dict[str, AttentionLayer] = field(default_factory=dict)
    attention_inputs: tuple[str, ...] = ()
    attention_modules: set[str] = field(default_factory=set)
    output: OutputLayout = field(default_factory=OutputLayout)
    strides: CellStrides = field(default_factory=CellStrides)
    size: tuple[int, int] = (0, 0)
    cut: str = ""
    error: str = ""

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

    def once(self, site: str) -> FeatureLayer | None:
        """Return how the output of a module lies on the image, if it runs once."""
        calls = self.layers.get(site, ())
        return calls[0] if len(calls) == 1 else None


def probe_model(
    model: nn.Module,
    size: tuple[int, int],
    channels: int,
    forward: Callable[[Float[Tensor, "b c y x"]], Any] | None = None,
) -> ProbeResult:
    """Return where the activations of a model lie; more noise decides where one noise does not.

    The model is in evaluation mode meanwhile, and is restored afterwards.

    Args:
        forward: Calls the model, if it takes more than images.
    """
    forward = forward or forward_function(model)
    runs: list[_Run] = []
    with without_grad(model), CellStrides().watching(model) as strides:
        try:
            while True:
                run = _Run(model, size, first=not runs)
                images = probe_images(channels, size, first_weight(model), len(runs))
                output = run.run(forward, images)
                runs.append(run)
                placing = _Placing(runs, size, prefix_tokens_of(model))
                result = placing.result()
                if placing.sure or len(runs) == _NOISES:
                    break
        except Exception as error:  # noqa: BLE001 - any exception of the user's model is reported
            location = user_code_location(error)
            where = f" in {location}" if location else ""
            return ProbeResult(error=f"{type(error).__name__}{where}: {error}")
    result.output = detect_output_layout(output, IMAGES)
    result.strides, result.size = strides, size
    return result


@dataclass(eq=False)
class _Seen:
    """Output of a module: with its channels last, and second.

    Args:
        tokens: Moments of tokens, of three axes.
        planes: How clearly a map is one of the image, of four.
        rows: A number for each token or cell of the photo, to find it elsewhere.
    """

    site: str
    shape: tuple[int, ...]
    tokens: list[Float[Tensor, "5 n"]] = field(default_factory=list)
    planes: list[float] = field(default_factory=list)
    rows: list[Float[Tensor, " n"]] = field(default_factory=list)


@dataclass(eq=False)
class _Attention:
    """One attention call: moments of its tokens, by window, and numbers that tell their order."""

    site: str
    shape: tuple[int, int, int, int] = (0, 0, 0, 0)
    reason: str = ""
    keys: Float[Tensor, "5 w m"] | None = None
    queries: Float[Tensor, "5 w n"] | None = None
    rows: list[tuple[int, Float[Tensor, " s"]]] = field(default_factory=list)
    count: int = 0
    output: tuple[int, ...] = ()
    tap: Tap | None = None
    tap_shape: tuple[int, ...] = ()


class _Run:
    """One run on a photo with one noise."""

    def __init__(self, model: nn.Module, size: tuple[int, int], *, first: bool) -> None:
        self.model = model
        self.size = size
        self.first = first
        self.outputs: list[_Seen] = []
        self.seen: list[tuple[int, Tensor]] = []  # rows of inputs, after so many outputs
        self.attention: dict[tuple[str, int], _Attention] = {}
        self.inputs: dict[str, str] = {}
        self._running: list[Running] = []
        self._norm = self._last = ""

    def run(self, forward: Callable[[Tensor], Any], images: Tensor) -> Any:
        """Run the model, and return its output."""
        with ExitStack() as stack:
            stack.enter_context(probing())
            stack.enter_context(attention_calls(self.model, self._on_call))
            running = running_modules(self.model, self._enter, self._leave)
            self._running = stack.enter_context(running)
            for site, module in self.model.named_modules():
                if isinstance(module, Tap):
                    hook = in_this_run(self._tap_hook(site))
                    request = RecordRequest(differentiable=module.kind == "tokens")
                    stack.enter_context(module.listening(request, hook))
                else:
                    hook = in_this_run(self._output_hook(site))
                    stack.callback(module.register_forward_hook(hook).remove)
            return forward(images)

    def _on_call(self, call: AttentionCall) -> Tensor | None:
        """Measure the tokens of attention; return weights by which they keep their content."""
        found = _Attention(call.site, call.shape, call.unsupported)
        known = self.attention.setdefault((call.site, call.index), found)
        known.count += 1
        groups, _, num_queries, num_keys = call.shape
        if call.unsupported:
            return None
        call.heads_mixed = False  # tokens keep their content also where heads are mixed
        queries, _, values = call.inputs
        if known is found and groups % IMAGES:
            found.reason = "its groups of tokens are not those of single images"
        elif known is found:
            # Values of other sizes than the keys say nothing of the keys; the weights do.
            same = values.shape[:1] + values.shape[2:3] == (groups, num_keys)
            found.keys = _token_moments(values if same else call.weights().transpose(-2, -1))
            if queries is not None and num_queries > 1:
                found.queries = _token_moments(queries)
            elif num_queries not in (1, num_keys) and groups == IMAGES:
                # the model computed the weights: the last output of this size holds its queries
                found.queries = next(self._tokens_of(num_queries), None)
            slots = groups * num_keys // IMAGES
            found.rows = [(at, rows) for at, rows in reversed(self.seen) if len(rows) == slots]
        if num_queries == num_keys:
            return torch.eye(num_keys).to(values)
        if groups != IMAGES or found.keys is None or found.queries is None:
            return None
        if not bool((found.queries[0] > 0).all()):
            return None
        # to another grid: each query reads the nearest key
        key, query = ((each[1:3, 0] / each[0, 0]).T for each in (found.keys, found.queries))
        nearest = torch.cdist(query, key.nan_to_num(9.0)).argmin(1)
        return one_hot(nearest, num_keys).to(values)

    def _tokens_of(self, count: int) -> Iterator[Float[Tensor, "5 1 n"]]:
        """Yield the moments of outputs with as many tokens, or cells, the last one first."""
        for output in reversed(self.outputs):
            if output.tokens and output.shape[1] == count:
                yield output.tokens[0][:, None]
            if max(output.planes, default=0) > CLEAR:
                last, second = output.planes
                rows, columns = output.shape[2:] if second >= last else output.shape[1:3]
                if rows * columns == count:
                    y = ((torch.arange(rows) + 0.5) / rows).repeat_interleave(columns)
                    x = ((torch.arange(columns) + 0.5) / columns).repeat(rows)
                    yield torch.stack([torch.ones(count), y, x, y * y, x * x])[:, None]

    def _enter(self, running: Running) -> None:
        if self.first:
            arguments = (*running.args, *running.kwargs.values())
            tensors = (each for each in arguments if isinstance(each, Tensor))
            for tensor in (each for each in tensors if each.ndim in (3, 4)):
                self.seen += [(len(self.outputs), rows) for rows in _rows(tensor)]
        # Methods explain what attention reads: the norm before it, not the residual stream.
        block = self._norm.rpartition(".")[0]
        inside = bool(block) and running.site.startswith(f"{block}.")
        outer = self._running[-2].state["last"] if len(self._running) > 1 else ""
        running.state["input"] = self._norm if inside else outer
        running.state["last"] = self._last

    def _leave(self, running: Running, output: Any) -> None:
        found = self.attention.get((running.site, running.index))
        if found is not None:
            found.output = tuple(_first(output).shape)
            self.inputs.setdefault(running.site, running.state["input"])

    def _output_hook(self, site: str) -> Callable[..., None]:
        def hook(module: nn.Module, _: Any, output: Any) -> None:
            tensor = _first(output)
            found = _Seen(site, tuple(tensor.shape))
            self.outputs.append(found)
            on_batch = tensor.ndim in (3, 4) and len(tensor) == IMAGES and tensor.numel()
            if not on_batch or not tensor.is_floating_point():
                return
            self._last = site
            self._norm = site if "Norm" in type(module).__name__ else self._norm
            with torch._C.DisableTorchFunction():  # noqa: SLF001 - what is measured is no attention
                if tensor.ndim == 3:
                    found.tokens = [moments(tensor, 2), moments(tensor, 1)]
                else:
                    maps = tensor.movedim(-1, 1), tensor
                    first = not any(each.planes for each in self.outputs)
                    found.planes = [place_planes(each, self.size, first=first) for each in maps]
                if self.first:
                    found.rows = _rows(tensor)

        return hook

    def _tap_hook(self, site: str) -> Callable[..., Any]:
        def hook(tap: Any, _: Any, weights: Tensor) -> Tensor | None:
            index = sum(known == site for known, _ in self.attention)
            found = _Attention(site, tap=tap, tap_shape=tuple(weights.shape))
            self.attention[site, index] = found
            if self._running:
                self.inputs.setdefault(site, self._running[-1].state["input"])
            if tap.kind == "tokens" and weights.ndim > 2 and weights.shape[-1] == weights.shape[-2]:
                return torch.eye(weights.shape[-1]).to(weights).expand_as(weights)
            return None

        return hook


class _Placing:
    """Places all activations of some runs."""

    def __init__(
        self, runs: Sequence[_Run], size: tuple[int, int], prefix_tokens: tuple[str, ...]
    ) -> None:
        self.runs = runs
        self.size = size
        self.prefix_tokens = prefix_tokens
        self.sure = True
        self.places: list[Places | None] = []
        self.layers: list[FeatureLayer | None] = []

    def result(self) -> ProbeResult:
        """Return where all activations lie."""
        result = ProbeResult()
        first = next((each for each in self.runs[0].outputs if each.planes), None)
        result.cut = _CUT if first is not None and SHIFTED in first.planes else ""
        for outputs in zip(*(run.outputs for run in self.runs), strict=False):
            layer = None if result.cut else self._layer(outputs)
            self.layers.append(layer)
            result.layers.setdefault(outputs[0].site, []).append(layer)
        for key, found in self.runs[0].attention.items():
            others = [run.attention[key] for run in self.runs if key in run.attention]
            layout = self._tapped(found) if found.tap else result.cut or self._layout(others)
            if isinstance(layout, AttentionLayer):
                result.query_layers[found.site] = layout
                layout = None if found.tap else _NO_QUERIES
            if layout is not None and not found.tap:
                result.attention_modules.add(found.site)
            if layout is not None:
                result.layouts.setdefault(found.site, []).append(layout)
        for site, module in self.runs[0].model.named_modules():
            if isinstance(module, Tap) and module.unsupported:
                result.layouts[site] = [module.unsupported]
        read = (layer.site for layer in result.attention_layers if not layer.single_query)
        inputs = (self.runs[0].inputs.get(site, "") for site in read)
        result.attention_inputs = tuple(dict.fromkeys(inputs))
        return result

    def _layer(self, outputs: Sequence[_Seen]) -> FeatureLayer | None:
        """Return how an output lies on the image; None if it does not."""
        first = outputs[0]
        if first.planes:
            clear, last = (sum(run.planes[i] for run in outputs) / len(outputs) for i in (1, 0))
            if max(clear, last) < CLEAR:
                self.places.append(None)
                return None
            self.places.append(None)
            sides = first.shape[2:] if clear >= last else first.shape[1:3]
            return FeatureLayer(
                first.site, "b c y x" if clear >= last else "b y x c", (sides[0], sides[1])
            )
        for index, layout in enumerate(("b n c", "b c n")) if first.tokens else ():
            places = self._tokens(_sum(run.tokens[index] for run in outputs))
            if places is not None:
                self.places.append(places)
                cells = places.cells.tolist()
                in_order = cells == list(range(cells[0], cells[0] + len(cells)))
                suffix = first.shape[1 + index] - len(cells) - cells[0]
                prefix = (cells[0], suffix) if in_order else (0, 0)
                order = () if in_order else tuple(cells)
                return FeatureLayer(first.site, layout, places.grid, *prefix, order=order)
        self.places.append(None)
        return None

    def _tokens(self, moment: Float[Tensor, "5 n"]) -> Places | None:
        """Return where tokens lie: in an order that is sure, or likely as in an earlier layer."""
        places = place_tokens(moment, self.size)
        if places is not None and (places.sure or places.likely):
            return places
        earlier = (each for each in reversed(self.places) if each is not None)
        alike = (each for each in earlier if len(each.cells) + len(each.free) == moment.shape[1])
        return next((each for each in alike if lie_at(moment, each.grid, each.cells)), None)

    def _place(self, moment: Any, rows: Sequence[tuple[int, Tensor]]) -> Places | None:
        """Return where tokens lie; None if nowhere, or if that is not sure yet."""
        places = place_tokens(moment, self.size, lambda count: self._known(rows, count))
        if places is not None and not places.sure:
            self.sure = False
            return None
        return places

    def _known(
        self, rows: Sequence[tuple[int, Tensor]], count: int
    ) -> tuple[Grid, Int[Tensor, " n"]] | None:
        """Return the grid of tokens that are those of an earlier layer, and their slots."""
        for at, slots in rows:
            for index in reversed(range(at)):
                layer, places = self.layers[index], self.places[index]
                if layer is None or layer.grid[0] * layer.grid[1] != count:
                    continue
                values = self.runs[0].outputs[index].rows[0 if layer.layout.endswith("c") else 1]
                found = _find(values if places is None else values[places.cells], slots)
                if found is not None:
                    return layer.grid, found
        return None

    def _layout(self, calls: Sequence[_Attention]) -> ObservedTokens | AttentionLayer | str:
        """Return the positions of the tokens of attention, or why it cannot be recorded.

        If only the keys lie on the image, it is an `AttentionLayer` of queries.
        """
        first = calls[0]
        if first.reason:
            return first.reason
        if first.count > 1:
            return "it combines several softmaxes, none of which alone is its attention"
        groups, heads, num_queries, num_keys = first.shape
        windows = groups // IMAGES
        keys = self._place(_sum(call.keys for call in calls), first.rows)
        if keys is None or (windows > 1 and num_queries != num_keys):
            return _NO_PLACE
        prefix = self._kinds(len(keys.free)) if windows == 1 else ()
        order = _order(keys, windows, num_keys)
        if windows > 1 and keys.free and _everywhere(keys.free, windows, num_keys):
            return "its windows contain tokens that are not part of the grid"
        layer = AttentionLayer(first.site, keys.grid, heads, prefix)
        if num_queries == 1 < num_keys:
            layer = replace(layer, single_query=True)
            return _NOT_IN_ORDER if order is not None else ObservedTokens(layer, prefix)
        if num_queries == num_keys:
            moment = None if first.queries is None else _sum(call.queries for call in calls)
            if moment is not None and not lie_at(moment, keys.grid, keys.cells):
                return _NO_PLACE
        elif first.queries is None or order is not None:
            return _NO_PLACE if order is None else _NOT_IN_ORDER
        else:
            queries = self._place(_sum(call.queries for call in calls), first.rows)
            if queries is None:
                return replace(layer, num_queries=num_queries)
            if _order(queries, 1, num_queries) is not None:
                return _NOT_IN_ORDER
            other = None if queries.grid == keys.grid else keys.grid
            kinds = self._kinds(len(queries.free))
            layer = replace(layer, grid=queries.grid, prefix_tokens=kinds, key_grid=other)
        tokens = num_queries if windows == 1 else keys.grid[0] * keys.grid[1]
        positions = _has_positions(first.output, groups * num_queries, IMAGES * tokens)
        if positions is False:
            return _NO_OUTPUT
        layer = replace(layer, pools=positions is None)
        if order is not None and windows > 1:
            size = _window_size(order, keys.grid[1])
            shift = divmod(max(int(order[0, 0]), 0), keys.grid[1]) if size else (0, 0)
            layer = replace(layer, window_size=size, shift_size=shift)
        return ObservedTokens(layer, prefix, order)

    def _kinds(self, count: int) -> tuple[str, ...]:
        """Return the kinds of tokens beside the grid; those without a name by their order."""
        names = self.prefix_tokens
        kinds = (tuple(name for name in names if name == kind) for kind in dict.fromkeys(names))
        unnamed = ("class", *["register"] * (count - 1))[:count]
        return next((each for each in (names, *kinds) if len(each) == count), unnamed)

    def _tapped(self, found: _Attention) -> ObservedTokens | AttentionLayer | None:
        """Return the positions of the tokens of a block that states them."""
        tap = found.tap
        if tap is None or tap.grid is None:
            return None
        shape = [*found.tap_shape]
        heads = shape[1] if len(shape) > 2 else None
        if tap.kind == "queries":
            return AttentionLayer(found.site, tap.grid, heads, num_queries=shape[2])
        if tap.fulfilled is None and not tap.single_query:  # it computed no map in this run
            return None
        single = tap.single_query
        layer = AttentionLayer(found.site, tap.grid, heads, tap.roles, single_query=single)
        return ObservedTokens(layer, tap.roles)


def _first(output: Any) -> Tensor:
    """Return the first tensor of an output; an empty one if it has none."""
    first = first_tensor(output)
    return torch.empty(0) if first is None else first[1]


def _token_moments(tokens: Float[Tensor, "g h m d"]) -> Float[Tensor, "5 w m"]:
    return moments(tokens.unflatten(0, (IMAGES, -1)), 2, 4)


def _rows(tensor: Tensor) -> list[Float[Tensor, " s"]]:
    """Return a number for each token or cell of the photo: equal rows have equal numbers.

    Channels are the last axis, and the second.
    """
    if len(tensor) % IMAGES or not tensor.is_floating_point():
        return []
    photo = tensor.detach()[: len(tensor) // IMAGES].double()
    numbers: list[Tensor] = []
    for axis in (-1, 1):
        mixture = torch.arange(1.0, tensor.shape[axis] + 1, dtype=torch.float64).cos()
        numbers.append((photo.movedim(axis, -1) @ mixture.to(photo.device)).flatten())
    return numbers


def _find(values: Float[Tensor, " n"], slots: Float[Tensor, " s"]) -> Int[Tensor, " n"] | None:
    """Return the slot of each value; None if one is missing, or not the only one."""
    scale = float(values.abs().max())
    ordered, order = slots.sort()
    near = torch.searchsorted(ordered, values - _SAME * scale).clamp(max=len(ordered) - 1)
    off = (ordered[near] - values).abs()
    found = order[near]
    unique = len(found.unique()) == len(found)
    return found if unique and bool((off < 2 * _SAME * scale).all()) else None


def _sum(parts: Iterable[Tensor | None]) -> Tensor:
    """Return the sum of the moments of all runs."""
    return torch.stack([part for part in parts if part is not None]).sum(0)


def _order(places: Places, windows: int, slots: int) -> Int[Tensor, "w p"] | None:
    """Return the token of each slot, those beside the grid first; None if they are in order."""
    free = len(places.free) if windows == 1 else 0
    tokens = torch.full((windows * slots,), -1)
    if free:
        tokens[list(places.free)] = torch.arange(free)
    tokens[places.cells] = torch.arange(len(places.cells)) + free
    in_order = windows == 1 and torch.equal(tokens, torch.arange(slots))
    return None if in_order else tokens.view(windows, slots)


def _everywhere(free: tuple[int, ...], windows: int, slots: int) -> bool:
    """Whether all windows have the same slots without a place: these are no padding."""
    inside = {slot % slots for slot in free}
    return len(free) == len(inside) * windows


def _window_size(windows: Int[Tensor, "w n"], columns: int) -> Grid | None:
    """Return height and width of windows that are rectangles of a grid; None if they are not.

    Example:
        >>> _window_size(torch.tensor([[0, 1, 5, 6], [2, 3, 7, 8]]), 5)
        (2, 2)
    """
    for window in (window for window in windows.tolist() if min(window) >= 0):
        ys, xs = {index // columns for index in window}, {index % columns for index in window}
        rectangle = max(ys) - min(ys) < len(ys) and max(xs) - min(xs) < len(xs)
        if rectangle and len(ys) * len(xs) == len(window):
            return len(ys), len(xs)
    return None


def _has_positions(shape: tuple[int, ...], slots: int, tokens: int) -> bool | None:
    """Whether the output of attention has a position for each query; None if it is pooled."""
    if len(shape) < 3:
        return None
    size = prod(shape)
    counts = {size // shape[-1]} | ({size // shape[1]} if len(shape) == 4 else set())
    return bool(counts & {slots, tokens})


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
