"""The last layer with positions on the image before a model pools them: the default of CAMs.

image -> stem -> ... -> last -> pool -> head -> scores       everything passes through `last`
image -> ... -> block -+-> norm -> attention -+-> head       class token: all patches reach it
                       +----- its own row ----+              through `norm`
"""

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from visattn.recording.frozen import frozen
from visattn.recording.interception import probing
from visattn.recording.model_info import FeatureLayer
from visattn.recording.outputs import OutputLayout
from visattn.recording.places import Grid
from visattn.recording.probe import Probe, layer_by_shape, lie_as_shaped
from visattn.recording.score_evidence import last_layers, reaches
from visattn.recording.score_trace import (
    LayerOutput,
    Reading,
    ScoreTracer,
    Trace,
    gradients_of,
    measured_reading,
)

_NEAR = 24  # layer outputs before the scores, which are searched first
_MAX_TESTED = 4  # last outputs that may carry all patches to a class token
_VECTOR_POSITIONS = 3  # at most, of a pooled vector: several pools, or prefix tokens
_ROUNDING = 1e-4  # relative rounding error when gradients of some paths are subtracted
_NOWHERE = "its scores have a gradient at several positions of no layer"


@dataclass(eq=False)
class PooledFeatures:
    """The features and the attention that the scores of a model are computed from.

    Args:
        layers: Layers with a grid, from the image to the scores; the last one is pooled. Empty if
            it could not be determined.
        error: Why it could not be determined.
        differentiable: Whether the scores have a gradient with respect to the image.
        reading: What the scores read of the attention of the model; None if that was not measured,
            the output has no scores, or they do not depend on attention.
        output: Location of the class scores, by how they are computed; None if unknown.
        probe: Positions of the activations, if they had to be measured.
    """

    layers: tuple[FeatureLayer, ...] = ()
    error: str = ""
    differentiable: bool = False
    reading: Reading | None = None
    output: OutputLayout | None = None
    probe: Probe | None = None


def pooled_features(
    tracer: ScoreTracer, image: Tensor, kept: Trace, probe: Probe
) -> PooledFeatures:
    """Return the features and the attention that the scores of a model are computed from.

    Args:
        kept: A run on the image.
        probe: Positions of the activations of the model.
    """
    trace = tracer.run(image) if kept.detached else kept
    reading = measured_reading(tracer, image, kept, probe)
    if not trace.scores or not trace.bypassed():
        reason = "its scores have no gradient with respect to the image"
        return PooledFeatures((), reason, reading=reading, output=kept.layout, probe=probe)
    trace.place(probe)
    layers, error = pooled_layers(trace, probe.attention_modules)
    if error == _NOWHERE:  # zero-initialized heads (ViT, fine-tuning) stop all gradients
        trace = tracer.kept(image, unzeroed=True)
        trace.place(probe)
        layers, error = pooled_layers(trace, probe.attention_modules)
    if probe.cut:
        layers, error = (), probe.cut
    if layers:
        sites = [output.site for output in probe.outputs]
        before = sites[: sites.index(layers[-1].site)]
        inputs = (probe.once(site) for site in probe.attention_inputs if site in before)
        earlier = [layer for layer in inputs if layer is not None]
        layers = (*earlier, layers[-1]) if earlier else layers
    return PooledFeatures(
        layers, error, differentiable=True, reading=reading, output=kept.layout, probe=probe
    )


def pooled_maps(
    tracer: ScoreTracer, image: Tensor, kept: Trace, size: Grid
) -> PooledFeatures | None:
    """Return the features of a plain CNN without a probe of all layers; None for other models.

    The positions in its maps follow from their shapes; small noise on smaller images confirms that.
    """
    if kept.attends or kept.detached or not (kept.whole and kept.scores and kept.bypassed()):
        return None
    for output in kept.outputs:
        output.layer = layer_by_shape(output.site, output.tensor.shape, size)
    layers, _ = pooled_layers(kept, (), placed=True)
    if not (layers and lie_as_shaped(tracer.model, tracer.forward, image, layers)):
        return None
    return PooledFeatures(layers, differentiable=True, output=kept.layout)


def pooled_layers(
    trace: Trace, attention: Collection[str], *, placed: bool = False
) -> tuple[tuple[FeatureLayer, ...], str]:
    """Return the layer that the scores are pooled from, after the last one of each larger grid.

    Args:
        attention: Modules that compute attention; their submodules do not count as features.
        placed: Whether that layer and all later ones must have positions on the image.

    Returns:
        The layers, and the reason if there are none.
    """
    outputs = [each for each in trace.outputs if not _is_inside(each.site, attention)]
    if trace.scores and trace.scores[0].ndim == 4:  # dense scores are not features
        head, after = last_layers(trace.scores)
        outputs = [each for each in outputs if each.edge[:2] not in (*head, *after)]
    last, spread = None, []
    # Most models pool within their last few layers; a longer search needs a longer backward pass.
    for start in (max(len(outputs) - _NEAR, 0), 0):
        gradients = gradients_of(trace.scores, [each.edge for each in outputs[start:]])
        spread = [
            (each, gradient)
            for each, gradient in zip(outputs[start:], gradients, strict=True)
            if gradient is not None and is_spread(gradient, each.layer)
        ]
        if last := _last_bottleneck(trace, [each for each, _ in spread]):
            break
    if last is None:
        several = "no layer with positions on the image is on all paths from image to scores"
        return (), several if spread else _NOWHERE
    later = spread[[each.site for each, _ in spread].index(last.site) + 1 :]
    if placed and any(each.layer is None for each, _ in later):
        return (), _NOWHERE
    tested = [pair for pair in later if pair[0].layer is not None and pair[0].unmodified]
    for output, gradient in reversed(tested[-_MAX_TESTED:]):
        if _carries(trace, output, gradient):
            return _with_earlier(trace, outputs, output), ""
    head = {edge for edges in last_layers(trace.scores) for edge in edges}
    weighted = [each.site for each, _ in later if each.edge[:2] not in head and _has_weights(each)]
    if weighted:
        return (), (
            f"its scores are computed from {last.site}, but through several later layers "
            f"({', '.join(weighted[-3:])}) that run in parallel or have no positions on the image"
        )
    return _with_earlier(trace, outputs, last), ""


def _carries(trace: Trace, output: LayerOutput, gradient: Tensor) -> bool:
    """Whether all patches reach the scores through a layer; other tokens may bypass it."""
    if output.source is None or trace.bypassed(output.source):
        return False
    [whole] = gradients_of(trace.scores, [output.source])
    # Gradients add up over paths: subtract those through the layer.
    [through] = torch.autograd.grad(
        [output.edge], [output.source], [gradient], retain_graph=True, allow_unused=True
    )
    if whole is None or through is None or whole.shape != gradient.shape:
        return False
    rest = whole - through
    rest = torch.where(rest.abs() > _ROUNDING * whole.abs().max(), rest, 0)
    return not is_spread(rest, output.layer)


def _last_bottleneck(trace: Trace, outputs: Sequence[LayerOutput]) -> LayerOutput | None:
    """Return the last output with positions on the image that all paths pass through."""
    planes: list[LayerOutput] = []
    for output in reversed(outputs):
        if not output.unmodified or trace.bypassed(output.edge):
            continue
        if output.layer is None:
            planes.append(output)
            continue
        layers = ((each, _plane(each, output)) for each in planes)
        return next((replace(each, layer=layer) for each, layer in layers if layer), output)
    return None


def followed_layer(
    tracer: ScoreTracer, image: Tensor, probe: Probe, site: str
) -> FeatureLayer | None:
    """Return the layout of a map whose receptive fields are too large for the probe.

    Its rows and columns are traced back to the nearest earlier map with known positions.
    """
    with suppress(RuntimeError, NotImplementedError), frozen(tracer.model), probing():
        trace = tracer.kept(image)
        trace.place(probe)
        outputs = [each for each in trace.outputs if each.tensor.ndim == 4]
        sites = [each.site for each in outputs]
        if site in sites:
            chosen = outputs[sites.index(site)]
            placed = [each for each in outputs[: sites.index(site)] if each.layer is not None]
            sources = (each for each in reversed(placed) if reaches([chosen.edge], each.edge))
            source = next(sources, None)
            return None if source is None else _plane(chosen, source)
    return None


def _plane(output: LayerOutput, source: LayerOutput) -> FeatureLayer | None:
    """Return the layout of a map that is too small or too weak for the probe.

    Its rows and columns must be computed from those of a placed layer, in the same order.
    """
    shape = output.tensor.shape
    if len(shape) != 4 or source.tensor.ndim != 4 or len(output.tensor) != len(source.tensor):
        return None
    for axis in (2, 3):
        centers: list[Tensor] = []
        for line in range(shape[axis]):
            chosen = torch.zeros_like(output.tensor)
            chosen.select(axis, line).fill_(1)
            [gradient] = torch.autograd.grad(
                [output.edge], [source.edge], [chosen], retain_graph=True
            )
            energy = gradient.square().sum([0, 1, 5 - axis])
            index = torch.arange(len(energy)).to(energy) - (len(energy) - 1) / 2
            centers.append((energy * index).sum() / energy.sum())
        found, step = torch.stack(centers), source.tensor.shape[axis] / len(centers)
        # in the same order, and from all of them: strides move the center by half a step at most
        if not bool((found.diff() > 0).all()) or not float(found.mean().abs()) <= step / 2 + 1e-3:
            return None
    return (
        FeatureLayer(output.site, "b c y x", (shape[2], shape[3])) if max(shape[2:]) > 1 else None
    )


def is_spread(gradient: Tensor, layer: FeatureLayer | None) -> bool:
    """Whether a gradient is nonzero at more positions than a pooled vector has.

    Example:
        >>> layer = FeatureLayer("net", "b n c", (1, 2), num_prefix_tokens=1)
        >>> is_spread(torch.tensor([[[1.0], [1.0], [0.0]]]), layer)
        False
    """
    if layer is not None and layer.fits(gradient):
        return int((layer.to_grid(gradient) != 0).any(1).sum()) > 1
    if gradient.ndim < 3:
        return False
    return min(int((gradient != 0).any(axis).sum()) for axis in (1, -1)) > _VECTOR_POSITIONS


def _is_inside(site: str, modules: Collection[str]) -> bool:
    return any(site.startswith(f"{module}.") for module in modules if module)


def _has_weights(output: LayerOutput) -> bool:
    weight = getattr(output.module, "weight", None)
    return isinstance(weight, Tensor) and weight.ndim > 1


def _with_earlier(
    trace: Trace, outputs: Sequence[LayerOutput], chosen: LayerOutput
) -> tuple[FeatureLayer, ...]:
    """Return the last bottleneck on each grid before an output, and the layer of the output."""
    index = [output.site for output in outputs].index(chosen.site)
    found: dict[Any, FeatureLayer] = {}
    for output in (chosen, *reversed(outputs[:index])):
        layer = output.layer
        if layer is None or (layer.grid, layer.layout) in found:
            continue
        if output is chosen or (output.unmodified and not trace.bypassed(output.edge)):
            found[layer.grid, layer.layout] = layer
    return tuple(reversed(found.values()))
