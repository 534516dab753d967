"""Reads or replaces the output of a layer while a model runs, and its gradients."""

from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd import grad
from torch.nn.functional import grid_sample

from visattn.attribution.targets import Target, target_values
from visattn.recording.feature_layers import has_layout, to_grid
from visattn.recording.frozen import frozen, internal_geometry
from visattn.recording.interception import in_this_run
from visattn.recording.model_info import FeatureLayer
from visattn.recording.outputs import first_tensor
from visattn.recording.subject import Subject

_NEAR = 0.9  # of a power of two: cells whose last row or column exceeds the canvas


@dataclass
class LayerCalls:
    """Calls of a layer inside `intercept_layer`.

    Args:
        last: Number of the last intercepted call, from 1; 0 if there was none.
    """

    count: int = 0
    last: int = 0


@contextmanager
def intercept_layer(
    subject: Subject, layer: FeatureLayer, function: Callable[[Tensor], Tensor]
) -> Iterator[LayerCalls]:
    """Pass the output of a layer through a function inside the block.

    For a layer that is called several times each call with its layout is intercepted, or only
    `layer.call`. The function turns the output, in the layout of the layer, into what the model
    continues with.

    Raises:
        ValueError: If the layer does not run inside the block, or its output has another layout.

    Example:
        >>> from visattn.recording.model_info import ModelInfo
        >>> info = ModelInfo("tiny", "other", (2, 3), (0.5,), (0.5,), "none")
        >>> model = nn.Sequential(nn.ReLU(), nn.Flatten())
        >>> with intercept_layer(
        ...     Subject(model, info, model), FeatureLayer("0", "b c y x", (2, 3)), torch.neg
        ... ):
        ...     model(torch.ones(1, 1, 2, 3))
        tensor([[-1., -1., -1., -1., -1., -1.]])
    """
    if layer.levels:
        raise ValueError(
            f"{layer.site} of {subject.info.name} returns {len(layer.levels)} levels of a "
            "feature pyramid; use gradcam, gradcam++, layercam or hirescam, which sum over levels, "
            "or name a layer by layer="
        )
    calls = LayerCalls()
    other_layouts = list[Tensor]()

    def hook(_: nn.Module, __: Any, output: Any) -> Any:
        calls.count += 1
        if layer.call not in (None, calls.count) or (first := first_tensor(output)) is None:
            return output
        if layer.call is None and not has_layout(first[1], layer):
            other_layouts.append(first[1])  # a call on another grid, as of a shared activation
            return output
        calls.last = calls.count
        return _replace_part(output, first[0], function(first[1]))

    handle = subject.model.get_submodule(layer.site).register_forward_hook(in_this_run(hook))
    try:
        yield calls
    finally:
        handle.remove()
    if other_layouts and not calls.last:
        to_grid(other_layouts[-1], layer)  # raises an error about the layout
    if not calls.last:
        got = f"ran {calls.count} times" if calls.count else "did not run"
        raise ValueError(
            f"the layer must run, but {layer.site} of {subject.info.name} {got}; choose another "
            "layer"
        )


def layer_activations(
    subject: Subject,
    images: Float[Tensor, "b c y x"],
    target: Target,
    layer: FeatureLayer,
) -> tuple[Float[Tensor, "b d gy gx"], FeatureLayer]:
    """Return the activations of a layer, and the layer with the call that they belong to.

    Without `layer.call` the last call counts.

    Raises:
        ValueError: If the layer does not run, or has another layout.
    """
    outputs: list[Tensor] = []

    def keep(output: Tensor) -> Tensor:
        outputs.append(output.clone())  # the model may overwrite it
        return output

    with frozen(subject.model), torch.no_grad(), intercept_layer(subject, layer, keep) as calls:
        target(subject.forward(images))
    return to_grid(outputs[-1], layer), replace(layer, call=calls.last)


def activations_and_gradients(
    subject: Subject,
    images: Float[Tensor, "b c y x"],
    target: Target,
    layer: FeatureLayer,
) -> list[tuple[Float[Tensor, "b d gy gx"], Float[Tensor, "b d gy gx"]]]:
    """Return the activations of a layer, and the gradient of a target with respect to them.

    The backward pass stops at the layer, and parameters get no gradient. For a layer that is called
    several times the last call counts, or `layer.call`. For a feature pyramid each level that the
    target depends on is an item of the list: a detection is read from one level.

    Raises:
        ValueError: If the layer does not run, or the target does not depend on it.

    Example:
        >>> from visattn.recording.model_info import ModelInfo
        >>> model = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Flatten(), nn.Linear(12, 5))
        >>> layer = FeatureLayer("0", "b c y x", (2, 3))
        >>> info = ModelInfo("tiny", "other", (2, 3), (0.5,), (0.5,), "none")
        >>> subject, target = Subject(model, info, model), lambda scores: scores[:, 4]
        >>> [(_, gradients)] = activations_and_gradients(
        ...     subject, torch.zeros(1, 1, 2, 3), target, layer)
        >>> torch.equal(gradients.flatten(), model[2].weight[4])
        True
    """
    with frozen(subject.model):
        with _leaves(subject, layer) as leaves:
            values = target_values(subject, images, target)
        leaves = leaves if layer.levels else leaves[-1:]
        gradients: Sequence[Tensor | None] = [None] * len(leaves)
        if values.requires_grad:
            gradients = grad(values.sum(), leaves, allow_unused=True)
    pairs = zip(leaves, gradients, strict=True)
    levels = [(leaf.detach(), each.detach()) for leaf, each in pairs if each is not None]
    if not levels:
        raise ValueError(
            "the target must depend on the layer of a class activation map, but it does not depend "
            f"on {layer.site or 'the output'} of {subject.info.name}; choose another layer"
        )
    if layer.levels:
        return levels
    return [(to_grid(leaf, layer), to_grid(each, layer)) for leaf, each in levels]


@contextmanager
def _leaves(subject: Subject, layer: FeatureLayer) -> Iterator[list[Tensor]]:
    """Start the graph at a layer inside the block; the list gets its outputs, or its levels."""
    leaves: list[Tensor] = []

    def replace_by_leaf(output: Tensor) -> Tensor:
        """Return a clone, which may be overwritten by in-place operations."""
        leaves.append(output.detach().requires_grad_())
        return leaves[-1].clone()

    def replace_levels(_: nn.Module, __: Any, output: Any) -> Any:
        leaves.clear()
        copied = type(output)(output)
        for key in layer.levels:
            copied[key] = replace_by_leaf(output[key])
        return copied

    if not layer.levels:
        with intercept_layer(subject, layer, replace_by_leaf):
            yield leaves
        return
    module = subject.model.get_submodule(layer.site)
    handle = module.register_forward_hook(in_this_run(replace_levels))
    try:
        yield leaves
    finally:
        handle.remove()


def sum_levels(
    maps: Sequence[Float[Tensor, "b _ _"]],
    subject: Subject,
    images: Float[Tensor, "b c y x"],
    layer: FeatureLayer,
) -> Float[Tensor, "b gy gx"]:
    """Return the sum of the maps of the levels of a pyramid, on the grid of the finest.

    A layer that is no pyramid has one map, which is returned.
    """
    if not layer.levels:
        [only] = maps
        return only
    canvas = internal_geometry(subject.model, (images.shape[2], images.shape[3])).input_size
    return torch.stack([resample_level(level, layer.grid, canvas) for level in maps]).sum(0)


def resample_level(
    values: Float[Tensor, "b y x"], grid: tuple[int, int], canvas: tuple[int, int]
) -> Float[Tensor, "b gy gx"]:
    """Return a map of one level on the grid of another, both of which cover a canvas.

    If the sides of the canvas are no multiple of the stride, the last cells of a level exceed it.

    Example:
        >>> resample_level(torch.tensor([[[0.0, 1.0]]]), (1, 4), (8, 16))
        tensor([[[0.0000, 0.2500, 0.7500, 1.0000]]])
        >>> resample_level(torch.arange(13.0)[None, None], (1, 2), (8, 100))  # cells of 8 pixels
        tensor([[[2.6250, 8.8750]]])
    """
    axes: list[Tensor] = []
    for count, length, side in zip(values.shape[1:], grid, canvas, strict=True):
        # Strides are powers of two. A canvas of 100 pixels has 13 cells of stride 8: 100 / 13 = 7.7
        # is near 8, and the cells cover 104 pixels. 4 cells on it (25 pixels each, far from 32)
        # have another stride, and are taken to cover the canvas exactly.
        stride = 2.0 ** torch.tensor(side / count).log2().ceil().item()
        extent = count * stride if side / count >= _NEAR * stride else float(side)
        centers = (torch.arange(length, dtype=torch.float64) + 0.5) * (side / length)
        axes.append((2 * centers / extent - 1).to(values))
    points = torch.stack(torch.meshgrid(axes[1], axes[0], indexing="xy"), -1)
    points = points.expand(len(values), -1, -1, -1)
    sampled = grid_sample(values[:, None], points, padding_mode="border", align_corners=False)
    return sampled[:, 0]


def _replace_part(output: Any, key: Any, tensor: Tensor) -> Any:
    """Return the output of a module with another tensor at a key; None is the output itself."""
    if key is None:
        return tensor
    if isinstance(output, MutableMapping):
        output[key] = tensor
        return output
    parts = list(output)
    parts[key] = tensor
    output_type = type(output)
    return output_type(*parts) if hasattr(output, "_fields") else output_type(parts)
