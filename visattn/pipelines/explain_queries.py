"""Maps of the queries of a detector, with boxes and classes, on the photo."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor, nn

from visattn.geometry.affine import Box, Geometry
from visattn.geometry.placement import GridPlacement, align_of
from visattn.images.reader import ImageLike, LoadedImage, list_images, read_image
from visattn.models.backbones.huggingface import read_huggingface_model
from visattn.models.saving.weight_files import check_loaded_weights
from visattn.pipelines.detection import place_points
from visattn.recording.probe_cache import probe_grids
from visattn.recording.query_attention import QueryAttention, record_queries
from visattn.results.attention_map import AttentionMap
from visattn.results.info import MapInfo
from visattn.results.values import DetectedObject, Detections

Queries = Literal["best"] | int | Sequence[int]
_MOST = 8  # maps of `best`
_SURE = 0.5  # score from which a box counts as found


def load_detector(directory: Path) -> tuple[nn.Module, Any]:
    """Return a detector of Hugging Face and its image processor.

    Args:
        directory: Directory as written by `save_pretrained` of both.

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
    places, weights = (part[indices][:, chosen] for part in (points.places, points.weights))
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
        name: each.to(weight.device, weight.dtype if each.is_floating_point() else None)
        for name, each in inputs.items()
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
    center, half = boxes[:, :2], boxes[:, 2:] / 2
    corners = torch.cat([center - half, center + half], 1)
    return corners * torch.tensor([width, height, width, height])
