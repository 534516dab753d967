"""The bottleneck of a dense model: the last features of its encoder on the coarsest grid."""

from math import prod

from torch import nn

from visattn.recording.feature_layers import resizes_images, resolve_feature_layer
from visattn.recording.frozen import frozen, unrounded
from visattn.recording.interception import probing
from visattn.recording.model_info import FeatureLayer
from visattn.recording.score_trace import LayerOutput, gradients_of
from visattn.recording.subject import Subject


@unrounded()
def bottleneck_layer(subject: Subject) -> FeatureLayer:
    """Return the layer that class activation maps of a dense model use by default.

    It is the last layer on the coarsest grid in the part of the model that reaches this grid first,
    such as the encoder; for torchvision's detectors all levels of the feature pyramid.

    Raises:
        ValueError: If there is none; then a layer must be named.

    Example:
        >>> from visattn.attribution.analysis import describe_model
        >>> encoder = nn.Sequential(nn.Conv2d(3, 5, 4, 4), nn.ReLU())
        >>> model = nn.Sequential(encoder, nn.Conv2d(5, 2, 1), nn.Upsample(scale_factor=4))
        >>> bottleneck_layer(describe_model(model, (24, 40))).site
        '0'
    """
    return subject.once("bottleneck", lambda: _find(subject))


def _find(subject: Subject) -> FeatureLayer:
    name = subject.info.name
    if resizes_images(subject.model):
        if not hasattr(subject.model, "backbone"):
            raise ValueError(f"{name} has no module backbone; name a layer by layers=")
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
            f"{name} has no layer whose features lie on a grid; name a layer by layers="
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
    """Whether an output is a map or normalized tokens, and on the way from image to scores."""
    module, shape = output.module, output.tensor.shape
    if len(shape) == 3:
        return isinstance(module, nn.LayerNorm) and output.layer is not None
    # depthwise convolutions are beside the residual stream
    depthwise = isinstance(module, nn.Conv2d) and 1 < module.groups == module.in_channels
    return len(shape) == 4 and min(shape[2:]) > 1 and not depthwise
