"""Detections of DETR and of detectors of transformers, with the attention of their queries."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor, nn

from visattn.blocks.transformer.deformable import SamplingPoints
from visattn.geometry.affine import Box, Geometry
from visattn.geometry.placement import GridPlacement, align_of
from visattn.images.reader import ImageLike, LoadedImage, list_images, read_image
from visattn.images.resize import ResizeMode, ResizeSpec, resize_to_input
from visattn.io.argument_checks import checked_arguments
from visattn.models.backbones.huggingface import read_huggingface_model
from visattn.models.detr import DETR, BoxPrediction, PredictedObjects
from visattn.models.saving.weight_files import check_loaded_weights
from visattn.recording.frozen import eval_mode
from visattn.recording.probe_cache import probe_grids
from visattn.recording.query_attention import QueryAttention, record_queries
from visattn.recording.recorder import record
from visattn.results.attention_map import AttentionMap
from visattn.results.info import MapInfo
from visattn.results.values import DetectedObject, Detections


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
    """Return the predictions of a detector and the cross-attention of its queries in a layer.

    The model is in evaluation mode.

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


@checked_arguments(threshold=(0, 1), max_detections=(1, 1_000_000), layer=(-99, 99))
@torch.no_grad()
def detect(
    model: nn.Module,
    images: Iterable[ImageLike] | ImageLike,
    *,
    threshold: float = 0.5,
    max_detections: int = 100,
    layer: int = -1,
    resize_mode: ResizeMode = "pad",
) -> list[Detections]:
    """Return the objects in each image, with what each query attended to.

    The weights of deformable attention that fall outside of the feature map belong to no cell; the
    info of the maps has their sum for each detection (`outside`). The training mode is
    restored.

    Args:
        model: A trained detector, as `load_model` returns it.
        images: One image or several: files, bytes, PIL images or RGB arrays, of any size.
        threshold: Smallest score of a detection.
        max_detections: Largest number of detections per image.
        layer: Index of the decoder layer whose cross-attention is shown; -1 for the last.
        resize_mode: How images get the shape of the input: `pad` keeps all of the image, `squash`
            ignores the aspect ratio, `crop` takes the center.

    Raises:
        TypeError: If the model is not a detector of visattn.
        ImageError: If an image cannot be read.
        ValueError: If an argument is out of range, or the model outputs NaN.

    Example:
        >>> import numpy as np
        >>> from visattn.models import SmallEncoder
        >>> model = DETR(("cat", "dog"), SmallEncoder((16, 24), channels=8), dim=8, num_queries=3)
        >>> [result] = detect(model, np.zeros((60, 80, 3), np.uint8), threshold=0.0)
        >>> len(result.objects), result.maps.values.shape, result.points.shape
        (6, torch.Size([6, 2, 3]), torch.Size([6, 32, 3]))
    """
    if not isinstance(model, DETR):
        raise TypeError(f"the model must be a detector such as DETR, got {type(model).__name__}")
    resize = ResizeSpec(model.img_size, mode=resize_mode)
    with eval_mode(model):
        return [
            _detect_image(model, read_image(image), resize, threshold, max_detections, layer)
            for image in list_images(images)
        ]


def _detect_image(
    model: DETR,
    image: LoadedImage,
    resize: ResizeSpec,
    threshold: float,
    max_detections: int,
    layer: int,
) -> Detections:
    pixels, geometry = resize_to_input(image, resize)
    attention = detector_attention(model, pixels[None].to(model.query_content.device), layer=layer)
    predicted = model.select(attention.prediction, max_detections=max_detections)
    predicted = PredictedObjects(*(tensor[0].cpu() for tensor in predicted))
    if not (predicted.scores.isfinite().all() and predicted.boxes.isfinite().all()):
        raise ValueError("the model outputs NaN or infinity: its weights are damaged")
    boxes = geometry.boxes_to_image(predicted.boxes.double())
    visible = (boxes[:, 2:] > boxes[:, :2]).all(1)  # not on the padding
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
    placement = model.encoder.placement
    cells = geometry if placement is None else geometry.with_placement(placement)
    maps = _placed_maps(model, attention, objects, queries, cells, layer)
    points = None
    if attention.points is not None:
        locations, weights = (tensor[0].cpu()[queries] for tensor in attention.points)
        points = place_points(locations, weights, geometry)
    return Detections(objects, maps, points)


def _placed_maps(
    model: DETR,
    attention: DetectorAttention,
    objects: tuple[DetectedObject, ...],
    queries: Tensor,
    geometry: Geometry,
    layer: int,
) -> AttentionMap:
    values = attention.maps[0].float().cpu()[queries]
    info = MapInfo(
        model=type(model).__name__,
        layer=layer % model.num_decoder_layers,
        outside=(1 - values.sum((1, 2))).clamp(min=0).tolist(),
        align=align_of(geometry.placement),
        more={"heads": "mean", "queries": queries.tolist()},
    )
    labels = tuple(detected.label for detected in objects)
    return AttentionMap(values, attention.site, "queries", geometry, info, labels)


def place_points(
    locations: Float[Tensor, "d h p 2"], weights: Float[Tensor, "d h p"], geometry: Geometry
) -> Float[Tensor, "d p2 3"]:
    """Return x and y in pixels of the image and weight of each sampled point, over all heads.

    Locations are shares of the network's input; the weights of a head sum to 1.

    Example:
        >>> middle = torch.full((1, 2, 1, 2), 0.5)
        >>> place_points(middle, torch.ones(1, 2, 1), Geometry.identity((30, 40)))
        tensor([[[20.0000, 15.0000,  0.5000],
                 [20.0000, 15.0000,  0.5000]]], dtype=torch.float64)
    """
    height, width = geometry.input_size
    places = locations.reshape(-1, 2).double() * torch.tensor([width, height], dtype=torch.float64)
    shares = weights.flatten(1).double() / weights.shape[1]  # heads count alike
    flat = geometry.to_image(places).view(*shares.shape, 2)
    return torch.cat((flat, shares[..., None]), -1)


Queries = Literal["best"] | int | Sequence[int]
_MOST = 8  # maps of `best`
_SURE = 0.5  # score from which a box counts as found


def load_detector(directory: Path) -> tuple[nn.Module, Any]:
    """Return a detector of Hugging Face and its image processor, as `save_pretrained` wrote them.

    Raises:
        FileNotFoundError: If the directory or its config.json does not exist.
        ImportError: If transformers is not installed.
        ValueError: If it holds no detector, or no image processor.
    """
    library, _, model = read_huggingface_model(directory)
    if "ForObjectDetection" not in type(model).__name__ or _takes_text(model):
        raise ValueError(
            "the model must be a detector with queries, such as DetrForObjectDetection, but "
            f"{directory} holds a {type(model).__name__}"
        )
    check_loaded_weights(model, directory)
    names = ("preprocessor_config.json", "processor_config.json")
    if not any((directory / name).is_file() for name in names):
        raise ValueError(
            f"{directory} has no image processor (preprocessor_config.json): write it there with "
            "processor.save_pretrained(DIRECTORY)"
        )
    try:
        processor = library.AutoImageProcessor.from_pretrained(
            directory, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:
        raise ValueError(f"the image processor in {directory} cannot be built: {error}") from error
    return model.eval(), processor


def explain_queries(
    model: nn.Module,
    images: Iterable[ImageLike] | ImageLike,
    queries: Queries = "best",
    *,
    processor: Any = None,
    layer: int = -1,
    heads: Sequence[int] | None = None,
) -> list[Detections]:
    """Return a map for queries of a DETR-like detector, with its box and class, for each image.

    Dense cross-attention (DETR, Conditional DETR, DAB-DETR, Table Transformer) is the weight of
    each cell. Deformable attention (Deformable DETR, RT-DETR) samples points: its map is the
    weight with which each cell was read, and `points` holds the places.

    Args:
        model: A detector of Hugging Face.
        images: One image or several: files, bytes, PIL images or RGB arrays, of any size.
        queries: `best` for all boxes with a score of at least 0.5, up to 8, or else the best one;
            the number of best-scored queries; or their indices.
        processor: Its image processor.
        layer: Index of the decoder layer; -1 is the last.
        heads: Indices of heads; None for the mean of all.

    Raises:
        ImageError: If an image cannot be read.
        TypeError: If there is no processor.
        ValueError: If the model is no detector with queries, its attention cannot be placed, or
            there is no such layer, head or query.

    Source:
        Carion et al. 2020, arXiv:2005.12872, figure 6; points, Zhu et al. 2020, arXiv:2010.04159.
    """
    if not callable(processor):
        raise TypeError(
            "a detector needs its image processor: pass processor=, such as "
            f"transformers.AutoImageProcessor.from_pretrained(DIRECTORY); got {processor!r}"
        )
    return [
        _explain_image(model, read_image(image), queries, processor, layer, heads)
        for image in list_images(images)
    ]


def _explain_image(
    model: nn.Module,
    image: LoadedImage,
    queries: Queries,
    processor: Any,
    layer: int,
    heads: Sequence[int] | None,
) -> Detections:
    inputs, geometry = _prepare(image, processor, model)
    output, layers = record_queries(model, inputs)
    if not -len(layers) <= layer < len(layers):
        raise ValueError(f"layer must be below {len(layers)}, the decoder layers, got {layer}")
    attention = layers[layer]
    classes, scores = _scores(output.logits[0].detach().float().cpu(), model)
    indices = _select_queries(scores, queries)
    boxes = _to_image_boxes(output.pred_boxes[0][indices].detach().float().cpu(), image)
    labels = [classes[index] for index in indices]
    placement = _key_placement(model, inputs["pixel_values"], attention)
    cells = geometry if placement is None else geometry.with_placement(placement)
    weights = _select_heads(attention, heads)[indices]
    info = MapInfo(
        model=str(getattr(getattr(model, "config", None), "model_type", "")),
        layer=layer % len(layers),
        image=image.name,
        outside=(1 - weights.sum((1, 2))).clamp(min=0).tolist(),
        align=align_of(placement),
        more={"heads": "mean" if heads is None else list(heads), "queries": indices},
    )
    maps = AttentionMap(weights, attention.site, "queries", cells, info, tuple(labels))
    corners = cast("list[Box]", [tuple(box) for box in boxes.tolist()])
    objects = tuple(map(DetectedObject, labels, scores[indices].tolist(), corners, indices))
    return Detections(objects, maps, _selected_points(attention, indices, heads, geometry))


def _selected_points(
    attention: QueryAttention,
    indices: Sequence[int],
    heads: Sequence[int] | None,
    geometry: Geometry,
) -> Float[Tensor, "q p 3"] | None:
    """Return the sampled points of queries and heads on the image; None for dense attention."""
    points = attention.points
    if points is None:
        return None
    chosen = slice(None) if heads is None else list(heads)
    places, weights = (of[indices][:, chosen] for of in (points.places, points.weights))
    return place_points(places.flatten(2, 3), weights.flatten(2), geometry)


def _key_placement(
    model: nn.Module, pixels: Float[Tensor, "1 c y x"], attention: QueryAttention
) -> GridPlacement | None:
    """Return where the cells lie that queries attend to; None for sampled places, or if lost.

    Places that deformable attention samples are shares of the feature map, which the network learns
    as shares of the image.
    """
    if attention.points is not None:
        return None

    def forward(images: Tensor) -> Any:
        return model(pixel_values=images)

    size = (pixels.shape[2], pixels.shape[3])
    traced = probe_grids(model, size, pixels.shape[1], forward, cache_key="pixel_values")
    grid = (attention.weights.shape[-2], attention.weights.shape[-1])
    return traced.keys(attention.site, grid)


def _takes_text(model: nn.Module) -> bool:
    return getattr(model, "main_input_name", "") != "pixel_values" or hasattr(
        getattr(model, "config", None), "text_config"
    )


def _prepare(
    image: LoadedImage, processor: Any, model: nn.Module
) -> tuple[dict[str, Tensor], Geometry]:
    """Return the inputs of a detector, and their geometry on the image."""
    if getattr(processor, "do_center_crop", False):
        raise ValueError("an image processor that crops is not supported: set do_center_crop=False")
    batch = processor(images=Image.fromarray(image.pixels), return_tensors="pt")
    pixels = batch["pixel_values"]
    size = valid = (pixels.shape[2], pixels.shape[3])
    inputs = {"pixel_values": pixels}
    if "pixel_mask" in batch:
        mask = inputs["pixel_mask"] = batch["pixel_mask"]
        valid = (int(mask[0].any(1).sum()), int(mask[0].any(0).sum()))
        if not bool(mask[0, : valid[0], : valid[1]].all()):
            raise ValueError("the image processor must pad at the right and the bottom only")
    weight = next(model.parameters())
    inputs = {
        name: value.to(weight.device, weight.dtype if value.is_floating_point() else None)
        for name, value in inputs.items()
    }
    geometry = Geometry.identity(image.size, image.orientation).resized(valid)
    return inputs, geometry.padded(0, 0, size)


def _select_heads(attention: QueryAttention, heads: Sequence[int] | None) -> Float[Tensor, "n y x"]:
    count = len(attention.weights)
    if heads is not None and (not heads or any(not 0 <= head < count for head in heads)):
        raise ValueError(f"heads must be indices below {count}, got {list(heads)}")
    return (attention.weights if heads is None else attention.weights[list(heads)]).mean(0)


def _scores(
    logits: Float[Tensor, "n k"], model: nn.Module
) -> tuple[list[str], Float[Tensor, " n"]]:
    """Return the best class of each query and its probability."""
    config: Any = model.config
    names = {int(index): str(name) for index, name in (config.id2label or {}).items()}
    no_object = logits.shape[1] == len(names) + 1  # the last class of DETR
    probabilities = logits.softmax(1)[:, :-1] if no_object else logits.sigmoid()
    best = probabilities.max(1)
    return [names.get(int(k), f"class {int(k)}") for k in best.indices], best.values


def _select_queries(scores: Float[Tensor, " n"], queries: Queries) -> list[int]:
    order = scores.argsort(descending=True).tolist()
    count = len(order)
    if queries == "best":
        sure = [index for index in order if float(scores[index]) >= _SURE]
        return sure[:_MOST] or order[:1]
    if isinstance(queries, str):
        raise ValueError(  # noqa: TRY004 (another string would do)
            f"queries must be 'best', a number or indices, got {queries!r}"
        )
    if isinstance(queries, int):
        if not 1 <= queries <= count:
            raise ValueError(f"the number of queries must be 1 to {count}, got {queries}")
        return order[:queries]
    if not queries or any(not 0 <= index < count for index in queries):
        raise ValueError(f"queries must be indices below {count}, got {list(queries)}")
    return list(queries)


def _to_image_boxes(boxes: Float[Tensor, "q 4"], image: LoadedImage) -> Float[Tensor, "q 4"]:
    """Return boxes in pixels from center, width and height as shares of the image."""
    height, width = image.size
    center = boxes[:, :2]
    half = boxes[:, 2:] / 2
    corners = torch.cat([center - half, center + half], 1)
    return corners * torch.tensor([width, height, width, height])
