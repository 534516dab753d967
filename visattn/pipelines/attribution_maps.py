"""Attribution maps of classifiers, and of segmentation and detection models."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from visattn.attribution.cam import OF_TARGETS
from visattn.attribution.dense_targets import DenseTarget, QueryTarget
from visattn.attribution.explained_model import describe_model, read_by_target
from visattn.attribution.gates import resolve_gate
from visattn.attribution.layer_weights import describe_read_rows, resolve_attention_layer
from visattn.attribution.methods import Method
from visattn.attribution.targets import (
    DescribedTarget,
    TargetLike,
    is_function,
    resolve_target,
)
from visattn.images.resize import ResizeMode
from visattn.io.safe_text import print_message
from visattn.pipelines.inputs import PreparedImages
from visattn.recording.bottleneck import bottleneck_layer
from visattn.recording.feature_layers import resizes_images, resolve_feature_layer
from visattn.recording.frozen import internal_geometry
from visattn.recording.model_config import ClassNames, parse_image_size
from visattn.recording.model_info import TextScorer
from visattn.recording.subject import Subject
from visattn.results.attention_map import AttentionMap, empty_map_reason, map_note
from visattn.results.info import MapInfo


def whole_image_preprocessing(
    model: nn.Module, img_size: int | tuple[int, int] | None
) -> tuple[Any, ResizeMode | None]:
    """Return the transform, or the resize mode, that show a whole image to a dense model.

    A detector that resizes images itself gets them as they are, others padded.

    Example:
        >>> whole_image_preprocessing(nn.Conv2d(3, 2, 1), None)
        (None, 'pad')
    """
    if img_size is None and resizes_images(model):
        from torchvision.transforms import v2  # slow to import

        return v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]), None
    return None, "pad"


def describe_at_size(
    model: nn.Module | Subject,
    size: int | tuple[int, int] | None,
    class_names: ClassNames | None,
    channels: int | None = None,
) -> Subject:
    """Return the metadata of a dense model for inputs of a size, without a run of it.

    Example:
        >>> describe_at_size(nn.Conv2d(3, 2, 1), (64, 32), None).info.input_size
        (64, 32)
    """
    if not isinstance(model, Subject):
        return describe_model(model, size, class_names, channels)
    if size is None:
        return model
    return replace(model, info=replace(model.info, input_size=parse_image_size(size)))


def with_bottleneck(explained: Subject) -> Subject:
    """Return a dense model whose default layer is its bottleneck, if no layer is known.

    Raises:
        ValueError: If there is no bottleneck.
    """
    if explained.info.feature_layers:
        return explained
    layers = (bottleneck_layer(explained),)
    return replace(explained, info=replace(explained.info, feature_layers=layers))


_UNREAD = "no score depends on the attention of this layer"


def compute_maps(
    explained: Subject,
    batch: PreparedImages,
    method: Method,
    target: TargetLike | DenseTarget,
    method_args: Mapping[str, Any],
) -> list[AttentionMap]:
    """Return one map for each prepared image, with geometry and info.

    Raises:
        ValueError: If the target or an argument does not fit the model.

    Example:
        >>> from visattn.attribution.explained_model import analyze_model
        >>> from visattn.attribution.methods import METHODS
        >>> from visattn.models import AttentionResNet
        >>> from visattn.pipelines.inputs import prepare_images
        >>> model = analyze_model(AttentionResNet(("cat", "dog"), depth=8, stem_width=4))
        >>> batch = prepare_images(model, torch.zeros(60, 80, 3).byte().numpy())
        >>> [heatmap] = compute_maps(model, batch, METHODS["gradcam"], "dog", {})
        >>> heatmap.info.class_name, heatmap.geometry.image_size
        ('dog', (60, 80))
    """
    if isinstance(target, DenseTarget):
        resolved: DescribedTarget = target.bind(explained, batch.geometries)
    else:
        resolved = resolve_target(target, explained)
    if isinstance(target, QueryTarget) and method.of_query(target):
        info = explained.info
        info = replace(info, attention_layers=info.query_layers, attention_error="")
        explained = replace(explained, info=info)
        method_args = {"queries": [target.query], **method_args}
    elif method.needs == "tokens":
        explained = _read_by_target(explained, batch, target)
    values = method.function(explained, batch.inputs, resolved, **method_args)
    is_class = not (is_function(target) or isinstance(target, DenseTarget))
    return _placed(explained, batch, method, method_args, resolved, values, is_class=is_class)


def compute_class_maps(
    explained: Subject,
    batch: PreparedImages,
    method: Method,
    classes: Sequence[Sequence[int | str]],
    method_args: Mapping[str, Any],
) -> list[list[AttentionMap]]:
    """Return a map for each prepared image of the first of its classes, of the second and so on.

    All share one forward pass. The method is a class activation map of gradients.

    Args:
        explained: The model.
        batch: The images.
        method: A method with `OF_TARGETS`.
        classes: Lists of classes, one for each image.
        method_args: Arguments of the method.
    """
    resolved = [resolve_target(list(each), explained) for each in classes]
    maps = vars(method.function)[OF_TARGETS](explained, batch.inputs, resolved, **method_args)
    return [
        _placed(explained, batch, method, method_args, target, values, is_class=True)
        for target, values in zip(resolved, maps, strict=True)
    ]


def _placed(
    explained: Subject,
    batch: PreparedImages,
    method: Method,
    method_args: Mapping[str, Any],
    resolved: DescribedTarget,
    values: Tensor,
    *,
    is_class: bool,
) -> list[AttentionMap]:
    """Return values of a method as maps with their place and info."""
    values = values.detach().float().cpu()
    common = _common_info(explained, method, method_args, is_class=is_class)
    margin = (0, 0)
    if batch.preprocessing:
        common = replace(common, more={**common.more, "preprocessing": batch.preprocessing})
    geometries = batch.geometries
    # Detectors of torchvision resize and pad images themselves: their features lie on that canvas.
    if method.needs == "features" and resizes_images(explained.model):
        size = (batch.inputs.shape[2], batch.inputs.shape[3])
        canvas = internal_geometry(explained.model, size)
        geometries = tuple(geometry.then(canvas) for geometry in geometries)
    elif method.on_grid:
        margin = explained.margin((values.shape[-2], values.shape[-1]))
    rows = zip(values, geometries, batch.originals, strict=True)
    return [
        AttentionMap(
            value.clone(),
            method.name if common.layer is None else str(common.layer),
            method.kind,
            geometry.inset(margin),
            replace(
                common | _describe(explained, resolved, index),
                image=image.name,
                empty=empty_map_reason(value),
                note=", ".join(filter(None, (common.note, map_note(value)))),
            ),
            margin=margin,
        )
        for index, (value, geometry, image) in enumerate(rows)
    ]


def _read_by_target(
    explained: Subject, batch: PreparedImages, target: TargetLike | DenseTarget
) -> Subject:
    """Return a model with the rows that a target reads; the scores may read others."""
    output = explained.info.output
    if not (output.error or output.key):
        return explained  # one tensor of scores: every function of it reads the same
    if isinstance(target, DenseTarget):
        return read_by_target(explained, batch.inputs, target.bind(explained, batch.geometries))
    return read_by_target(explained, batch.inputs, target) if is_function(target) else explained


def _describe(explained: Subject, target: DescribedTarget, index: int) -> MapInfo:
    """Return what a map explains, with the cosine similarity if it is a text."""
    described = target.describe(index, explained.class_names)
    if isinstance(explained.model, TextScorer) and described.score is not None:
        cosine = float(explained.model.cosine_of(torch.tensor(described.score)))
        return replace(described, cosine=cosine)
    return described


def _layer_info(explained: Subject, method: Method, layer: Any) -> MapInfo:
    """Return the layer of a map, and which of its calls if there are several."""
    if layer is None:
        return MapInfo()
    if method.needs == "gates":
        return MapInfo(layer=resolve_gate(explained.info, layer))
    if method.needs == "tokens":
        chosen = resolve_attention_layer(explained.info, layer, allow_unread=True)
        unread = chosen in explained.info.unread_layers
        more: dict[str, Any] = {"unread": _UNREAD} if unread else {}
        return MapInfo(layer=chosen.site, more=more, note=_layers_behind(explained, chosen.site))
    resolved = resolve_feature_layer(explained, layer)
    return MapInfo(
        layer=resolved.site, more={} if resolved.call is None else {"run": resolved.call}
    )


def _layers_behind(explained: Subject, site: str) -> str:
    """Return which layer of how many a default map shows if later ones cannot be recorded."""
    info = explained.info
    if not info.attention_layers or site != info.attention_layers[-1].site:
        return ""
    unsupported = dict(info.unsupported_layers)
    read = {layer.site for layer in info.attention_layers} | set(unsupported)
    sites = [each for each in explained.probe.layouts if each in read] if unsupported else [site]
    later = sites[sites.index(site) + 1 :] if site in sites else []
    if not later:
        return ""
    names = later[0] if len(later) == 1 else f"the last {len(later)}"
    reason = unsupported[later[-1]]
    return f"layer {len(sites) - len(later)} of {len(sites)}; {names} not supported: {reason}"


def _common_info(
    explained: Subject, method: Method, method_args: Mapping[str, Any], *, is_class: bool
) -> MapInfo:
    """Return what the maps of all images share."""
    options = {**method.default_kwargs, **method_args}
    signed = bool(options.get("signed", method.signed))
    if not is_class:
        options.pop("score_type", None)
    more: dict[str, Any] = {}
    if method.needs == "tokens" and options.get("queries") is None:
        more["rows"] = describe_read_rows(explained.info)
    output = explained.info.output
    if method.needs_target and is_class and (output.key or output.assumed):
        assumed = f"{output.key} (assumed)" if output.key else "assumed"
        more["scores"] = assumed if output.assumed else output.key
    common = MapInfo(
        method=method.name,
        options=options,
        model=explained.info.name,
        signed=signed,
        more=more,
    )
    return common | _layer_info(explained, method, options.get("layer"))


def report_empty(maps: Sequence[AttentionMap], method: str) -> None:
    """Print how many maps are empty, and the reason of the first, on stderr; nothing if none is.

    Example:
        >>> report_empty([AttentionMap(torch.eye(2), "layer4", "gradient")], "gradcam")
    """
    empty = [attention_map for attention_map in maps if attention_map.info.empty]
    if empty:
        info = empty[0].info
        which = f"; the first, {info.image}" if info.image else ""
        print_message(
            f"{method} gives an empty map for {len(empty)} of {len(maps)} images{which}: "
            f"{info.empty}; try another layer, target or method"
        )


def stack_texts(maps: Sequence[Sequence[AttentionMap]], texts: Sequence[str]) -> list[AttentionMap]:
    """Return one `AttentionMap` `[t, y, x]` per image of the maps of texts, labeled by these.

    Example:
        >>> pair = [[AttentionMap(torch.full((2, 3), value), "legrad", "gradient")]
        ...         for value in (1.0, 4.0)]
        >>> [both] = stack_texts(pair, ["a dog", "a cat"])
        >>> both[1].info.label, both.display_range()
        ('a cat', (0.0, 4.0))
    """
    stacked: list[AttentionMap] = []
    for of_image in zip(*maps, strict=True):
        values = torch.stack([of_text.values for of_text in of_image])
        info = replace(
            of_image[0].info,
            target=list(range(len(texts))),
            class_name="",
            score=[_single(of_text.info.score) for of_text in of_image],
            cosine=[_single(of_text.info.cosine) for of_text in of_image],
            texts=list(texts),
            empty=empty_map_reason(values),
            note=map_note(values),
        )
        stacked.append(replace(of_image[0], values=values, labels=tuple(texts), info=info))
    return stacked


def _single(value: float | Sequence[float | None] | None) -> float | None:
    return value if isinstance(value, int | float) else None
