"""Cross-attention of the queries of a detector."""

from typing import NamedTuple

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from visattn.blocks.transformer.deformable import SamplingPoints
from visattn.models.detr import DETR, BoxPrediction
from visattn.recording.recorder import record


class DetectorAttention(NamedTuple):
    """Predictions of a decoder layer, with what each query attended to."""

    prediction: BoxPrediction
    """Of the last decoder layer."""
    maps: Float[Tensor, "b n y x"]
    """Weight of each cell in the output of the cross-attention, mean over heads."""
    points: SamplingPoints | None
    """Points that deformable attention sampled; None for dense attention."""
    site: str
    """Name of the module that attended."""


@torch.no_grad()
def detector_attention(
    model: DETR, images: UInt8[Tensor, "b 3 y x"] | Float[Tensor, "b 3 y x"], *, layer: int = -1
) -> DetectorAttention:
    """Return the predictions of a detector and the cross-attention of its queries.

    Args:
        model: The detector, in evaluation mode.
        images: uint8, or normalized floats, of its input size.
        layer: Index of the decoder layer whose attention is recorded.

    Raises:
        ValueError: If there is no such layer.

    Example:
        >>> from visattn.models.base import SmallEncoder
        >>> model = DETR(("cat",), SmallEncoder((16, 24), channels=8), dim=8, num_queries=3).eval()
        >>> detector_attention(model, torch.zeros(2, 3, 16, 24, dtype=torch.uint8)).maps.shape
        torch.Size([2, 3, 2, 3])
    """
    count = model.num_decoder_layers
    if not -count <= layer < count:
        raise ValueError(f"layer must be from {-count} to {count - 1}, got {layer}")
    site = f"decoder_layers.{layer % count}.cross_attn.tap"
    with record(model, layers=[site]) as recording:
        output = model.decode(model.encode(images))
    logits, boxes = output.layers
    points = output.points[layer] if output.points else None
    [weights] = recording.maps
    prediction = BoxPrediction(logits[-1], boxes[-1])
    return DetectorAttention(prediction, weights.values.mean(1), points, site)
