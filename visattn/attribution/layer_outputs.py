"""Reads or replaces the output of a layer while a model runs."""

from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.attribution.targets import Target
from visattn.recording.feature_layers import first_tensor, has_layout, to_grid
from visattn.recording.frozen_model import frozen
from visattn.recording.model_info import ExplainedModel, FeatureLayer


@dataclass
class LayerCalls:
    """Calls of a layer inside `intercept_layer`.

    Args:
        count: Calls of the module.
        last: Number of the last intercepted call, from 1; 0 if there was none.
    """

    count: int = 0
    last: int = 0


@contextmanager
def intercept_layer(
    explained: ExplainedModel, layer: FeatureLayer, function: Callable[[Tensor], Tensor]
) -> Iterator[LayerCalls]:
    """Pass the output of a layer through a function inside the block.

    For a layer that is called several times each call with its layout is intercepted, or only
    `layer.call`.

    Args:
        explained: The model.
        layer: The layer.
        function: From the output of the layer, in its layout, to what the model continues with.

    Raises:
        ValueError: If the layer does not run inside the block, or its output has another layout.

    Example:
        >>> from visattn.recording.model_info import ModelInfo
        >>> info = ModelInfo("tiny", "other", (2, 3), (0.5,), (0.5,), "none")
        >>> model = nn.Sequential(nn.ReLU(), nn.Flatten())
        >>> with intercept_layer(
        ...     ExplainedModel(model, info, model), FeatureLayer("0", "b c y x", (2, 3)), torch.neg
        ... ):
        ...     model(torch.ones(1, 1, 2, 3))
        tensor([[-1., -1., -1., -1., -1., -1.]])
    """
    if layer.levels:
        raise ValueError(
            f"{layer.site} of {explained.info.name} returns {len(layer.levels)} levels of a "
            "feature pyramid; use gradcam, gradcam++, layercam or hirescam, which sum over levels, "
            "or name a layer by layer="
        )
    calls, other_layouts = LayerCalls(), list[Tensor]()

    def hook(_: nn.Module, __: Any, output: Any) -> Any:
        calls.count += 1
        if layer.call not in (None, calls.count) or (first := first_tensor(output)) is None:
            return output
        if layer.call is None and not has_layout(first[1], layer):
            other_layouts.append(first[1])  # a call on another grid, as of a shared activation
            return output
        calls.last = calls.count
        return _replace_part(output, first[0], function(first[1]))

    handle = explained.model.get_submodule(layer.site).register_forward_hook(hook)
    try:
        yield calls
    finally:
        handle.remove()
    if other_layouts and not calls.last:
        to_grid(other_layouts[-1], layer)  # raises an error about the layout
    if not calls.last:
        got = f"ran {calls.count} times" if calls.count else "did not run"
        raise ValueError(
            f"the layer must run, but {layer.site} of {explained.info.name} {got}; choose another "
            "layer"
        )


def layer_activations(
    explained: ExplainedModel,
    images: Float[Tensor, "b c y x"],
    target: Target,
    layer: FeatureLayer,
) -> tuple[Float[Tensor, "b d gy gx"], FeatureLayer]:
    """Return the activations of a layer, and the layer with the call that they belong to.

    Args:
        explained: The model.
        images: Normalized.
        target: Called with the output.
        layer: The layer; without `call`, the last call counts.

    Raises:
        ValueError: If the layer does not run, or has another layout.
    """
    outputs: list[Tensor] = []

    def keep(output: Tensor) -> Tensor:
        outputs.append(output.clone())  # the model may overwrite it
        return output

    with frozen(explained.model), torch.no_grad(), intercept_layer(explained, layer, keep) as calls:
        target(explained.forward(images))
    return to_grid(outputs[-1], layer), replace(layer, call=calls.last)


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
