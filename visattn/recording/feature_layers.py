"""Feature layers: any module of a model, with the layout and the grid of its output."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from math import prod
from typing import Any, cast

import torch
from torch import Tensor, nn

from visattn.io.messages import did_you_mean
from visattn.recording.frozen import (
    first_weight,
    frozen,
    internal_geometry,
    unrounded,
    without_grad,
)
from visattn.recording.interception import in_this_run, probing
from visattn.recording.model_info import FeatureLayer
from visattn.recording.outputs import first_tensor
from visattn.recording.places import CLEAR, IMAGES, place_planes, probe_images
from visattn.recording.score_trace import LayerOutput, gradients_of
from visattn.recording.subject import Subject

Layer = int | str | nn.Module | FeatureLayer


def resolve_feature_layer(subject: Subject, layer: Layer) -> FeatureLayer:
    """Return the feature layer that a number, a module or a module name selects.

    Args:
        layer: Index into `info.feature_layers` (-1 is the last), a module, its qualified name, or
            a feature layer, which is returned unchanged.
            If a module is called several times, the last call counts, unless the name selects one:
            `layer4.2.relu#2` is the second call of `layer4.2.relu`.

    Raises:
        ValueError: If there is no such module or call, or its output has no positions on the image.

    Example:
        >>> from visattn.recording.subject import analyze_model
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 2, 2), nn.ReLU(), nn.Flatten(),
        ...                       nn.Linear(8 * 12 * 20, 2))
        >>> layer = resolve_feature_layer(analyze_model(model, (24, 40)), model[1])
        >>> layer.site, layer.layout, layer.grid
        ('1', 'b c y x', (12, 20))
    """
    known = subject.info.feature_layers
    if isinstance(layer, FeatureLayer):
        return layer
    if isinstance(layer, int):
        if -len(known) <= layer < len(known):
            return known[layer]
        raise ValueError(_unknown_layer_error(subject, layer))
    name = find_module_name(subject.model, layer) if isinstance(layer, nn.Module) else layer
    site, separator, number = name.partition("#")
    modules = dict(subject.model.named_modules())
    if site not in modules or (separator and not number.isdecimal()):
        raise ValueError(_unknown_layer_error(subject, name))
    call = int(number) if separator else None
    info = subject.info
    with unrounded():
        if info.resizes_images:
            calls = [subject.once(("pyramid", site), lambda: _pyramid(subject, site))]
        else:
            calls = subject.layers_of(site)
    title = f"{name} of {info.name}"
    sites = ", ".join(layer.site for layer in info.feature_layers[-3:])
    hint = f"suitable layers include {sites}" if sites else "no suitable layer is known"
    if call is not None and not 1 <= call <= len(calls):
        raise ValueError(
            f"the number after # must be a call of the module, {site}#1 to {site}#{len(calls)}; "
            f"got {site}#{call} of {info.name}"
        )
    found = calls[(call or 0) - 1] if calls else None
    if found is None:
        measured = "small changes of pixels show that they have none"
        why = subject.probe.cut or (measured if calls else "it does not run")
        raise ValueError(
            f"the cells or tokens in the output of {title} must have positions on the image, or "
            f"its map would be wrong; {why}; {hint}"
        )
    if subject.info.resizes_images:  # its cells cover the detector's canvas, without a margin
        return found if found.levels else replace(found, call=call)
    call = call or (len(calls) if len(calls) > 1 else None)
    return replace(found, call=call, margin=subject.margin(found.grid))


def find_module_name(model: nn.Module, module: nn.Module) -> str:
    """Return the qualified name of a module in a model.

    Raises:
        ValueError: If the module is not part of the model.

    Example:
        >>> model = nn.Sequential(nn.Linear(1, 1), nn.ReLU())
        >>> find_module_name(model, model[1])
        '1'
    """
    name = next((name for name, child in model.named_modules() if child is module), None)
    if name is None:
        raise ValueError(
            f"layer must be a module of the {type(model).__name__}, got a {type(module).__name__} "
            "that is not part of it"
        )
    return name


def _unknown_layer_error(subject: Subject, layer: int | str) -> str:
    sites = [layer.site for layer in subject.info.feature_layers]
    hint = f"the {len(sites)} layers with an index are {', '.join(sites) or 'none'}"
    if isinstance(layer, str):
        names = [name for name, _ in subject.model.named_modules() if name]
        hint = did_you_mean(layer.partition("#")[0], names)
    return f"layer must name a module of {subject.info.name}, got {layer!r}; {hint}"


def _pyramid(subject: Subject, site: str) -> FeatureLayer | None:
    """Return the layout of a module of a detector, or of the finest level of its pyramid."""
    outputs: list[Tensor] = []
    levels: tuple[str | int, ...] = ()

    def hook(_: nn.Module, __: Any, output: Any) -> None:
        nonlocal levels
        if (first := first_tensor(output)) is not None:
            outputs.append(first[1].clone())
        if isinstance(output, Mapping):
            parts = cast("Mapping[str | int, Tensor]", output)
            levels = tuple(key for key, level in parts.items() if level.ndim == 4)

    size, channels = subject.info.input_size, len(subject.info.mean)
    with without_grad(subject.model), ExitStack() as stack:
        module = subject.model.get_submodule(site)
        stack.callback(module.register_forward_hook(in_this_run(hook)).remove)
        for image in probe_images(channels, size, first_weight(subject.model)).split(1):
            subject.forward(image)
    if len(outputs) != IMAGES or outputs[0].ndim != 4:
        return None
    maps = torch.cat(outputs)
    grid = maps.shape[2], maps.shape[3]
    # without the padding of the canvas, which changes only with the mean of a map
    canvas = internal_geometry(subject.model, size)
    [(right, bottom)] = canvas.to_input(torch.tensor([[size[1], size[0]]]).double()).tolist()
    rows = round(bottom / canvas.input_size[0] * grid[0])
    columns = round(right / canvas.input_size[1] * grid[1])
    clear = place_planes(maps[:, :, :rows, :columns], (round(bottom), round(right))) > CLEAR
    return FeatureLayer(site, "b c y x", grid, levels=levels) if clear else None


@unrounded()
def bottleneck_layer(subject: Subject) -> FeatureLayer:
    """Return the layer that class activation maps of a dense model use by default.

    It is the last layer on the coarsest grid in the part of the model that reaches this grid first,
    such as the encoder; for torchvision's detectors, all levels of the feature pyramid.

    Raises:
        ValueError: If there is none; pass a layer to the method instead.

    Example:
        >>> from visattn.recording.subject import describe_model
        >>> encoder = nn.Sequential(nn.Conv2d(3, 5, 4, 4), nn.ReLU())
        >>> model = nn.Sequential(encoder, nn.Conv2d(5, 2, 1), nn.Upsample(scale_factor=4))
        >>> bottleneck_layer(describe_model(model, (24, 40))).site
        '0'
    """
    return subject.once("bottleneck", lambda: _find_bottleneck(subject))


def _find_bottleneck(subject: Subject) -> FeatureLayer:
    name = subject.info.name
    if subject.info.resizes_images:
        if not hasattr(subject.model, "backbone"):
            raise ValueError(f"{name} has no module backbone; select a layer with layers=")
        return resolve_feature_layer(subject, "backbone")
    with frozen(subject.model), probing():
        trace = subject.tracer().run(subject.probe_image())
        trace.place(subject.probe)
        outputs = [output for output in trace.outputs if _is_candidate(output)]
        gradients = gradients_of(trace.scores, [output.edge for output in outputs])
    pairs = zip(outputs, gradients, strict=True)
    read = [output for output, gradient in pairs if gradient is not None]
    areas = [_num_cells(output) for output in read if output.tensor.ndim == 4]
    if not areas:
        raise ValueError(
            f"{name} has no layer with features on a grid; select a layer with layers="
        )
    # Maps of a decoder may be coarser than the tokens of its encoder.
    sites = [
        output.site
        for output in read
        if _num_cells(output) == min(areas)
        or (output.tensor.ndim == 3 and _num_cells(output) > min(areas))
    ]
    part = sites[0].partition(".")[0]
    return resolve_feature_layer(
        subject, [site for site in sites if site.partition(".")[0] == part][-1]
    )


def _num_cells(output: LayerOutput) -> int:
    shape = output.tensor.shape
    return prod(shape[2:]) if len(shape) == 4 else shape[1]


def _is_candidate(output: LayerOutput) -> bool:
    """Whether an output is a feature map or normalized tokens on the main path of the model."""
    module, shape = output.module, output.tensor.shape
    if len(shape) == 3:
        return isinstance(module, nn.LayerNorm) and output.layer is not None
    # depthwise convolutions are inside residual branches
    depthwise = isinstance(module, nn.Conv2d) and 1 < module.groups == module.in_channels
    return len(shape) == 4 and min(shape[2:]) > 1 and not depthwise
