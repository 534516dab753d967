"""Maps of the gates of spatial and combined attention blocks."""

import torch
from jaxtyping import Float
from torch import Tensor

from visattn.attribution.registry import method
from visattn.attribution.targets import Target
from visattn.io.messages import format_names
from visattn.recording.model_info import ModelInfo
from visattn.recording.recorder import record
from visattn.recording.subject import Subject

_BARS = (
    "channel gates have no spatial map; record them with visattn.record(model) and plot them as "
    "bars with visattn.figure"
)


def gates_error(info: ModelInfo) -> str:
    """Return why a model has no spatial gates; "" if it has any.

    Example:
        >>> info = ModelInfo("net", "other", (8, 8), (0.5,), (0.5,), "none")
        >>> gates_error(info)[:25]
        'it has no attention gates'
    """
    if info.gates:
        return ""
    if info.channel_gates:
        return f"its gates ({format_names(info.channel_gates)}) are channel gates: {_BARS}"
    return "it has no attention gates; visattn.insert(model, 'cbam', ...) inserts blocks with gates"


def resolve_gate(info: ModelInfo, layer: int | str) -> str:
    """Return the name of a gate's tap from its index, its name or that of an enclosing module.

    Raises:
        ValueError: If no spatial gate matches, or several do.

    Example:
        >>> gates = ("a.tap", "b.tap")
        >>> info = ModelInfo("net", "other", (8, 8), (0.5,), (0.5,), "none", gates=gates)
        >>> resolve_gate(info, -1), resolve_gate(info, "a")
        ('b.tap', 'a.tap')
    """
    names, listed = info.gates, ", ".join(info.gates)
    if isinstance(layer, int) and -len(names) <= layer < len(names):
        return names[layer]
    inside = [name for name in names if f"{name}.".startswith(f"{layer}.")]
    if len(inside) == 1:
        return inside[0]
    of_channels = any(f"{name}.".startswith(f"{layer}.") for name in info.channel_gates)
    raise ValueError(
        f"layers must select one of the spatial gates by index or name, got {layer!r}"
        + (f": {_BARS}" if of_channels and not inside else "")
        + f"; the gates are {listed}"
    )


@method(
    "gates",
    title="Attention gate",
    paper="of the block",
    needs="gates",
    kind="gate",
    check=lambda subject, _: gates_error(subject.info),
)
def gates(
    subject: Subject,
    images: Float[Tensor, "b c y x"],
    _: Target,
    *,
    layers: int | str = -1,
) -> Float[Tensor, "b gy gx"]:
    """Return the spatial gate that an attention block multiplies its features by.

    Gates with a value per channel and position (BAM, coordinate attention, triplet attention,
    SimAM) are averaged over channels. Channel gates (squeeze-and-excitation, ECA) have no spatial
    map. If a module runs several times, its last call counts.

    Args:
        subject: A model with attention blocks or attention gates.
        images: Normalized images.
        layers: Index of the gate in module order (-1 is the last), or the name of its block or of
            the module that the block was inserted after.

    Raises:
        ValueError: If there is no such gate.

    Example:
        >>> import visattn as va
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.Flatten(), nn.Linear(128, 2))
        >>> x = torch.zeros(1, 3, 8, 8)
        >>> _ = va.insert(model, "cbam", position="0", example=x, reduction=2, init="paper")
        >>> [gate] = va.explain(model, torch.zeros(30, 40, 3).byte().numpy(), "gates", input_size=8)
        >>> gate.site, gate.kind, gate.geometry.image_size, tuple(gate.values.shape)
        ('0.visattn.cbam.spatial_tap', 'gate', (30, 40), (4, 4))

    Source:
        Woo et al. 2018, arXiv:1807.06521, equation 3, for CBAM; see the other blocks for theirs.
    """
    site = resolve_gate(subject.info, layers)
    with torch.no_grad(), record(subject, layers=[site]) as recording:
        subject.forward(images)
    values = recording.maps[-1].values
    return values.flatten(1, -3).mean(1) if values.ndim > 3 else values
