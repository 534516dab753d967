"""Cross-attention of the queries of a detector, dense (DETR) or sampled (Deformable DETR)."""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.transformer.deformable import deformable_splat
from visattn.recording.attention_call import AttentionCall
from visattn.recording.frozen import eval_mode
from visattn.recording.interception import AttentionInterceptor
from visattn.recording.module_calls import ModuleCall, ModuleCallStack

_SAMPLERS = ("MultiScaleDeformableAttention",)  # classes that get points and weights as arguments
_TOLERANCE = 1e-5  # of weights times values, relative to the largest output


@dataclass(frozen=True, eq=False)
class SampledPoints:
    """Points at which deformable attention read the feature maps of one image.

    Args:
        places: x and y in [0, 1], as shares of each feature map.
        weights: They sum to 1 over levels and points of a head.
        level_shapes: Rows and columns of each level.
    """

    places: Float[Tensor, "n h l p 2"]
    weights: Float[Tensor, "n h l p"]
    level_shapes: tuple[tuple[int, int], ...]


@dataclass(frozen=True, eq=False)
class QueryAttention:
    """Cross-attention of all queries in one decoder layer, for one image.

    Args:
        site: Qualified name of the module.
        weights: Of every cell; for sampled points, the share that each cell of the finest level
            contributes, and less than 1 in sum if points lie outside of the image.
        points: The points; None for dense attention.
    """

    site: str
    weights: Float[Tensor, "h n y x"]
    points: SampledPoints | None


def record_queries(
    model: nn.Module, inputs: Mapping[str, Tensor]
) -> tuple[Any, list[QueryAttention]]:
    """Run a detector on one image; return its output and the cross-attention of each layer.

    The grid of cells spans the network input, as the model's own position codes and sampling
    places take it. The order of cells is not assumed: the features must enter the encoder as the
    rows of the grid of a convolution, one after the other, which is compared value by value.

    Args:
        model: A detector whose output has `logits` `[1, n, k]` and `pred_boxes` `[1, n, 4]`.
        inputs: Its arguments, with `pixel_values` `[1, 3, y, x]`.

    Raises:
        ValueError: If the model does not return boxes of queries, attends to the image in a way
            that cannot be recorded, or the places of the cells are unknown.
    """
    listener = _Listener()
    calls = ModuleCallStack()
    with (
        eval_mode(model),
        torch.no_grad(),
        listener.listening(model),
        calls.hooked(model, listener.on_enter),
        AttentionInterceptor(calls, listener),
    ):
        output = _run(model, inputs)
    name = type(model).__name__
    logits, boxes = (getattr(output, key, None) for key in ("logits", "pred_boxes"))
    if not isinstance(logits, Tensor) or not isinstance(boxes, Tensor):
        raise ValueError(  # noqa: TRY004 (the model is wrong)
            f"{name} must return logits and pred_boxes of queries, as DETR does, to draw a map for "
            "each query; use other methods, such as gradcam"
        )
    count = logits.shape[1]
    layers = [
        _sampled(site, points) for site, points in listener.sampled if len(points.places) == count
    ] or [
        _dense(site, weights, listener.grids, name)
        for site, weights in listener.dense
        if weights.shape[1] == count
    ]
    if not layers:
        raise ValueError(_nothing_recorded(name, listener))
    return output, layers


def _run(model: nn.Module, inputs: Mapping[str, Tensor]) -> Any:
    """Run a detector, which must need nothing but the image."""
    required = [
        name
        for name, parameter in inspect.signature(type(model).forward).parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ][1:]
    texts = [name for name in required if name not in inputs]
    try:
        return model(**inputs)
    except (TypeError, ValueError, AttributeError) as error:
        if not texts and "input_ids" not in inspect.signature(type(model).forward).parameters:
            raise
        raise ValueError(
            f"{type(model).__name__} must detect objects from the image alone, but it also needs "
            f"{', '.join(texts) or 'input_ids'}: detectors that look for given texts are not "
            "supported; explain a box of it with a method that needs scores, such as occlusion"
        ) from error


@dataclass
class _Listener:
    """Collects cross-attention, sampled points, and grids of features that become tokens."""

    dense: list[tuple[str, Float[Tensor, "h n m"]]] = field(default_factory=list)
    sampled: list[tuple[str, SampledPoints]] = field(default_factory=list)
    grids: set[tuple[int, int]] = field(default_factory=set)
    unsupported: dict[str, str] = field(default_factory=dict)
    _features: dict[tuple[int, int], Tensor] = field(default_factory=dict)

    @contextmanager
    def listening(self, model: nn.Module) -> Iterator[None]:
        """Listen to convolutions and to modules that sample."""
        handles: list[Any] = []
        for site, module in model.named_modules():
            if isinstance(module, nn.Conv2d):
                handles.append(module.register_forward_hook(self._on_convolution))
            if type(module).__name__.endswith(_SAMPLERS) and _takes_points(module):
                handles.append(
                    module.register_forward_pre_hook(self._on_sampling(site), with_kwargs=True)
                )
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            self._features.clear()

    def _on_convolution(self, _: nn.Module, _args: Any, output: Tensor) -> None:
        self._features[(output.shape[2], output.shape[3])] = output

    def _on_sampling(self, site: str) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            bound = inspect.signature(module.forward).bind(*args, **kwargs).arguments
            shapes = torch.as_tensor(bound["value_spatial_shapes"]).tolist()
            points = SampledPoints(
                bound["sampling_locations"][0].detach().float().cpu(),
                bound["attention_weights"][0].detach().float().cpu(),
                tuple((int(rows), int(columns)) for rows, columns in shapes),
            )
            self.sampled.append((site, points))

        return hook

    def on_enter(self, _: ModuleCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Store the grids whose cells enter a module as tokens, row by row."""
        tensors = [arg for arg in (*args, *kwargs.values()) if isinstance(arg, Tensor)]
        for tensor in tensors:
            if tensor.ndim != 3 or 1 not in tensor.shape[:2]:
                continue
            tokens = tensor.flatten(0, 1)
            for grid, features in self._features.items():
                cells = features[0].flatten(1).T
                if tokens.shape == cells.shape and torch.equal(tokens, cells):
                    self.grids.add(grid)

    def on_attention(self, call: ModuleCall, attention: AttentionCall) -> None:
        """Store the weights of attention from queries to other tokens."""
        groups, heads, queries, keys = attention.shape
        if queries == keys:
            return
        everything = slice(None)
        weights = attention.compute_weights(everything, everything)
        if attention.output is not None:
            deviation = attention.deviation(weights, everything, everything)
            if deviation > _TOLERANCE * max(1.0, float(attention.output.abs().max())):
                self.on_unsupported(call, f"its weights do not give its output ({deviation:.1e})")
                return
        # some models fold the heads into the batch, which holds one image
        flat = weights.reshape(groups * heads, queries, keys)
        self.dense.append((call.site, flat.detach().float().cpu()))

    def on_unsupported(self, call: ModuleCall, reason: str) -> None:
        """Store why a layer cannot be recorded."""
        self.unsupported.setdefault(call.site, reason)


def _takes_points(module: nn.Module) -> bool:
    parameters = inspect.signature(module.forward).parameters
    return {"sampling_locations", "attention_weights", "value_spatial_shapes"} <= {*parameters}


def _nothing_recorded(name: str, listener: _Listener) -> str:
    reason = next((f" ({site}: {why})" for site, why in listener.unsupported.items()), "")
    return (
        f"no attention from the queries of {name} to the image can be recorded{reason}: it samples "
        "its keys in a function of its own, or its queries are tokens of the encoder; explain a "
        "box of it with a method that needs scores or gradients instead, such as occlusion or "
        "gradcam"
    )


def _dense(
    site: str,
    weights: Float[Tensor, "h n m"],
    grids: set[tuple[int, int]],
    name: str,
) -> QueryAttention:
    fitting = [grid for grid in grids if grid[0] * grid[1] == weights.shape[2]]
    if len(fitting) != 1:
        raise ValueError(
            f"the {weights.shape[2]} cells that the queries of {name} attend to at {site} must be "
            f"those of one grid of features; {len(fitting)} fit, so that their places are unknown"
        )
    [grid] = fitting
    return QueryAttention(site, weights.unflatten(2, grid), None)


def _sampled(site: str, points: SampledPoints) -> QueryAttention:
    """Return the contribution of each cell of the finest level."""
    shapes = points.level_shapes
    finest = max(shapes, key=lambda shape: shape[0] * shape[1])
    total = torch.zeros(points.weights.shape[1], len(points.weights), *finest)
    for level, shape in enumerate(shapes):
        places = points.places[None, :, :, level]
        weights = points.weights[None, :, :, level]
        [cells] = deformable_splat(places, weights, shape)
        down, across = (overlaps(*pair) for pair in zip(shape, finest, strict=True))
        total += down @ cells @ across.T
    return QueryAttention(site, total, points)


def overlaps(count: int, fine_count: int) -> Float[Tensor, "fine coarse"]:
    """Return the share of each of some equal cells of an axis that lies in each finer cell.

    Example:
        >>> overlaps(2, 3)
        tensor([[0.6667, 0.0000],
                [0.3333, 0.3333],
                [0.0000, 0.6667]])
    """
    coarse = torch.arange(count + 1) / count
    fine = torch.arange(fine_count + 1) / fine_count
    upper = torch.minimum(fine[1:, None], coarse[None, 1:])
    lower = torch.maximum(fine[:-1, None], coarse[None, :-1])
    return (upper - lower).clamp(min=0) * count
