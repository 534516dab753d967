"""Reads or replaces the output of a layer while a model runs, and its gradients."""

from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd import grad

from visattn.attribution.targets import Target
from visattn.recording.feature_layers import has_layout, to_grid
from visattn.recording.frozen import frozen
from visattn.recording.interception import in_this_run
from visattn.recording.model_info import FeatureLayer
from visattn.recording.outputs import first_tensor
from visattn.recording.subject import Subject


@contextmanager
def replaced_output(
    subject: Subject, layer: FeatureLayer, function: Callable[[Tensor], Tensor]
) -> Iterator[list[int]]:
    """Pass the output of a layer through a function inside the block; the list gets the calls.

    For a layer that is called several times each call with its layout is passed, or only
    `layer.call`; of a feature pyramid each level. Calls are counted from 1. The function turns the
    output, in the layout of the layer, into what the model continues with.

    Raises:
        ValueError: If the layer does not run inside the block, or its output has another layout.

    Example:
        >>> from visattn.recording.model_info import ModelInfo
        >>> info = ModelInfo("tiny", "other", (2, 3), (0.5,), (0.5,), "none")
        >>> model = nn.Sequential(nn.ReLU(), nn.Flatten())
        >>> layer = FeatureLayer("0", "b c y x", (2, 3))
        >>> with replaced_output(Subject(model, info, model), layer, torch.neg):
        ...     model(torch.ones(1, 1, 2, 3))
        tensor([[-1., -1., -1., -1., -1., -1.]])
    """
    count, calls, others = 0, list[int](), list[Tensor]()

    def hook(_: nn.Module, __: Any, output: Any) -> Any:
        nonlocal count
        count += 1
        if layer.levels:
            calls.append(count)
            copied = type(output)(output)
            for key in layer.levels:
                copied[key] = function(output[key])
            return copied
        if layer.call not in (None, count) or (first := first_tensor(output)) is None:
            return output
        if layer.call is None and not has_layout(first[1], layer):
            others.append(first[1])  # a call on another grid, as of a shared activation
            return output
        calls.append(count)
        return _replace_part(output, first[0], function(first[1]))

    handle = subject.model.get_submodule(layer.site).register_forward_hook(in_this_run(hook))
    try:
        yield calls
    finally:
        handle.remove()
    if others and not calls:
        to_grid(others[-1], layer)  # raises an error about the layout
    if not calls:
        got = f"ran {count} times" if count else "did not run"
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
        ValueError: If the layer is a feature pyramid, does not run, or has another layout.
    """
    if layer.levels:
        raise ValueError(
            f"{layer.site} of {subject.info.name} returns {len(layer.levels)} levels of a "
            "feature pyramid; use gradcam, gradcam++, layercam or hirescam, which sum over levels, "
            "or name a layer by layers="
        )
    outputs: list[Tensor] = []

    def keep(output: Tensor) -> Tensor:
        outputs.append(output.clone())  # the model may overwrite it
        return output

    with frozen(subject.model), torch.no_grad(), replaced_output(subject, layer, keep) as calls:
        target(subject.forward(images))
    return to_grid(outputs[-1], layer), replace(layer, call=calls[-1])


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
    leaves: list[Tensor] = []

    def start_graph(output: Tensor) -> Tensor:
        leaves.append(output.detach().requires_grad_())
        return leaves[-1].clone()  # in-place operations may overwrite it

    with frozen(subject.model):
        with replaced_output(subject, layer, start_graph):
            values = target(subject.forward(images))
        leaves = leaves[-max(len(layer.levels), 1) :]
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
