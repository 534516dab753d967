"""The bottleneck of a dense model: the last features of its encoder on the coarsest grid."""

from typing import Any

import torch
from torch import Tensor, nn

from visattn.recording.feature_layers import (
    resizes_images,
    resolve_feature_layer,
    to_grid,
)
from visattn.recording.frozen import first_weight, frozen, unrounded, with_grad
from visattn.recording.interception import in_this_run
from visattn.recording.model_info import FeatureLayer
from visattn.recording.outputs import first_tensor, output_tensors
from visattn.recording.places import fits
from visattn.recording.subject import Subject

_MAX_TESTED = 8  # modules whose position on the image is measured
_MAX_EXTRA_TOKENS = 128


@unrounded()
def bottleneck_layer(explained: Subject) -> FeatureLayer:
    """Return the layer that class activation maps of a dense model use by default.

    It is the last layer on the coarsest grid in the part of the model that reaches this grid first,
    such as the encoder; for torchvision's detectors all levels of the feature pyramid.

    Raises:
        ValueError: If there is none; then a layer must be named.

    Example:
        >>> from visattn.attribution.explained_model import describe_model
        >>> encoder = nn.Sequential(nn.Conv2d(3, 5, 4, 4), nn.ReLU())
        >>> model = nn.Sequential(encoder, nn.Conv2d(5, 2, 1), nn.Upsample(scale_factor=4))
        >>> bottleneck_layer(describe_model(model, (24, 40))).site
        '0'
    """
    key = ("bottleneck", explained.info.input_size)
    if key not in explained.measures:
        explained.measures[key] = _find(explained)
    return explained.measures[key]


def _find(explained: Subject) -> FeatureLayer:
    name = explained.info.name
    if resizes_images(explained.model):
        if not hasattr(explained.model, "backbone"):
            raise ValueError(f"{name} has no module backbone; name a layer by layer=")
        return resolve_feature_layer(explained, "backbone")
    outputs, scores = _run(explained)
    grids = [tensor.shape[2:] for _, tensor in outputs if tensor.ndim == 4]
    if not grids:
        raise ValueError(
            f"{name} has no layer whose features lie on a grid; name a layer by layer="
        )
    coarsest = min(grids, key=lambda grid: grid[0] * grid[1])
    fitting = [pair for pair in outputs if _on_grid(pair[1], tuple(coarsest))]
    part = fitting[0][0].partition(".")[0]
    inside = [pair for pair in fitting if pair[0].partition(".")[0] == part]
    gradients = torch.autograd.grad(scores, [tensor for _, tensor in inside], allow_unused=True)
    pairs = reversed(list(zip(inside, gradients, strict=True)))
    reason = ""
    for (site, _), gradient in [pair for pair in pairs if pair[1] is not None][:_MAX_TESTED]:
        try:
            layer = resolve_feature_layer(explained, site)
        except ValueError as error:
            reason = str(error)
            continue
        if gradient is not None and bool(to_grid(gradient, layer).any()):
            return layer
    raise ValueError(
        f"the bottleneck of {name} could not be found: name a layer by layer=. {reason}"
    )


def _run(explained: Subject) -> tuple[list[tuple[str, Tensor]], Tensor]:
    """Return the outputs of modules that may be a bottleneck, and a sum of squared scores."""
    outputs: list[tuple[str, Tensor]] = []
    info = explained.info

    def hook(site: str, module: nn.Module) -> Any:
        def store(_: nn.Module, __: Any, output: Any) -> None:
            first = first_tensor(output)
            alone = first is not None and first[0] is None  # not also part of another output
            if first is not None and alone and _is_candidate(module, first[1], info.input_size):
                outputs.append((site, first[1]))

        return module.register_forward_hook(in_this_run(store))

    handles = [hook(name, module) for name, module in explained.model.named_modules() if name]
    random = torch.Generator().manual_seed(0)
    image = torch.randn(1, len(info.mean), *info.input_size, generator=random)
    try:
        with frozen(explained.model):
            output = explained.forward(with_grad(image.to(first_weight(explained.model))))
            scores = [tensor for tensor in output_tensors(output) if tensor.requires_grad]
            return outputs, torch.stack([tensor.square().sum() for tensor in scores]).sum()
    finally:
        for handle in handles:
            handle.remove()


def _is_candidate(module: nn.Module, tensor: Tensor, size: tuple[int, int]) -> bool:
    if not tensor.requires_grad or not tensor.is_floating_point():
        return False
    if tensor.ndim == 3:
        return isinstance(module, nn.LayerNorm)
    if isinstance(module, nn.Conv2d) and 1 < module.groups == module.in_channels:
        return False  # depthwise: beside the residual stream
    if tensor.ndim != 4 or min(tensor.shape[2:]) < 2:
        return False
    return fits((tensor.shape[2], tensor.shape[3]), size)


def _on_grid(tensor: Tensor, grid: tuple[int, ...]) -> bool:
    if tensor.ndim == 4:
        return tuple(tensor.shape[2:]) == grid
    return 0 <= tensor.shape[1] - grid[0] * grid[1] <= _MAX_EXTRA_TOKENS
