"""Detections of DETR, with the attention of each query."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from visattn.images.reader import ImageLike
from visattn.images.resize import ResizeMode, ResizeSpec, resize_to_input
from visattn.images.sources import read_images
from visattn.models.detr import DETR, BoxPrediction, PredictedObjects
from visattn.models.loaded import loaded_with
from visattn.recording.frozen import eval_mode
from visattn.recording.recorder import record
from visattn.results.attention_map import AttentionMap
from visattn.results.info import MapInfo
from visattn.results.values import DetectedObject, Detections


class DetectorAttention(NamedTuple):
    """Predictions of a detector, with the attention of each query."""

    prediction: BoxPrediction
    """Of the last decoder layer."""
    maps: Float[Tensor, "b n y x"]
    """Cross-attention to each cell, mean over layers and heads."""
    layers: tuple[int, ...]
    """Decoder layers whose attention was averaged."""


@torch.no_grad()
def detector_attention(
    model: DETR,
    images: UInt8[Tensor, "b 3 y x"] | Float[Tensor, "b 3 y x"],
    *,
    layers: int | Sequence[int] = -1,
) -> DetectorAttention:
    """Return the predictions of a detector and the cross-attention of its queries.

    The model must be in evaluation mode. Several layers are averaged.

    Raises:
        ValueError: If there is no such layer.

    Example:
        >>> from visattn.models.base import SmallEncoder
        >>> model = DETR(("cat",), SmallEncoder((16, 24), channels=8), dim=8, num_queries=3).eval()
        >>> detector_attention(model, torch.zeros(2, 3, 16, 24, dtype=torch.uint8)).maps.shape
        torch.Size([2, 3, 2, 3])
    """
    count = model.num_decoder_layers
    listed = [layers] if isinstance(layers, int) else list(layers)
    if wrong := [layer for layer in listed if not -count <= layer < count]:
        raise ValueError(f"layers must be from {-count} to {count - 1}, got {wrong[0]}")
    chosen = tuple(layer % count for layer in listed)
    sites = [f"decoder_layers.{layer}.cross_attn.tap" for layer in chosen]
    with record(model, layers=sites) as recording:
        logits, boxes = model.decode(model.encode(images))
    weights = torch.stack([each.values for each in recording.maps])
    prediction = BoxPrediction(logits[-1], boxes[-1])
    return DetectorAttention(prediction, weights.mean((0, 2)), chosen)


@torch.no_grad()
def detect(
    model: nn.Module,
    images: Iterable[ImageLike] | ImageLike,
    *,
    threshold: float = 0.5,
    max_detections: int = 100,
    layers: int | Sequence[int] = -1,
    resize_mode: ResizeMode | None = None,
) -> list[Detections]:
    """Return the objects in each image, with the attention of each query.

    The training mode is restored.

    Args:
        model: A trained detector, as `load` returns it.
        images: One image or several, or folders, as for `visattn.caption`.
        threshold: Minimum score of a detection.
        max_detections: Maximum number of detections per image.
        layers: Index of the decoder layer whose cross-attention is shown, -1 for the last; the
            mean of several indices.
        resize_mode: How images get the shape of the input: `pad` keeps all of the image, `squash`
            ignores the aspect ratio, `crop` takes the center; by default as in the training of the
            model, or `pad` if that is unknown.

    Raises:
        TypeError: If the model is not a detector of visattn.
        ImageError: If an image cannot be read.
        ValueError: If an argument is out of range, or the model outputs NaN.

    Example:
        >>> import numpy as np
        >>> from visattn.models import SmallEncoder
        >>> model = DETR(("cat", "dog"), SmallEncoder((16, 24), channels=8), dim=8, num_queries=3)
        >>> [result] = detect(model, np.zeros((60, 80, 3), np.uint8), threshold=0.0)
        >>> len(result.objects), result.maps.values.shape
        (3, torch.Size([3, 2, 3]))
    """
    if not isinstance(model, DETR):
        raise TypeError(f"the model must be a detector such as DETR, got {type(model).__name__}")
    resize_mode = resize_mode or loaded_with(model).resize_mode or "pad"
    resize = ResizeSpec(model.img_size, mode=resize_mode)
    results: list[Detections] = []
    with eval_mode(model):
        for image in read_images(images):
            pixels, geometry = resize_to_input(image, resize)
            inputs = pixels[None].to(model.query_content.device)
            attention = detector_attention(model, inputs, layers=layers)
            selected = model.select(attention.prediction, max_detections=max_detections)
            predicted = PredictedObjects(*(tensor[0].cpu() for tensor in selected))
            if not (predicted.scores.isfinite().all() and predicted.boxes.isfinite().all()):
                raise ValueError("the model outputs NaN or infinity: its weights are damaged")
            boxes = geometry.boxes_to_image(predicted.boxes.double())
            visible = (boxes[:, 2:] > boxes[:, :2]).all(1)  # without boxes on the padding
            (kept,) = ((predicted.scores >= threshold) & visible).nonzero(as_tuple=True)
            objects = tuple(
                DetectedObject(
                    model.class_names[int(predicted.labels[index])],
                    float(predicted.scores[index]),
                    tuple(boxes[index].tolist()),
                    int(predicted.queries[index]),
                )
                for index in kept.tolist()
            )
            queries = predicted.queries[kept]
            values = attention.maps[0].float().cpu()[queries]
            info = MapInfo(
                model=type(model).__name__,
                image=image.name,
                layer=", ".join(map(str, attention.layers)),
                outside=(1 - values.sum((1, 2))).clamp(min=0).tolist(),
                more={"heads": "mean", "queries": queries.tolist()},
            )
            several = len(attention.layers) > 1
            site = "decoder_layers" if several else f"decoder_layers.{info.layer}.cross_attn.tap"
            labels = tuple(detected.label for detected in objects)
            maps = AttentionMap(values, site, "queries", geometry, info, labels)
            results.append(Detections(objects, maps))
    return results
