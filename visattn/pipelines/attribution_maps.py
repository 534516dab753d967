"""Grids of an attribution method as maps, placed on the photos, with what they explain."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from visattn.attribution.dense_targets import QueryTarget
from visattn.attribution.explained_model import read_by_target
from visattn.attribution.gates import resolve_gate
from visattn.attribution.layer_weights import describe_read_rows, resolve_attention_layer
from visattn.attribution.methods import Method
from visattn.attribution.targets import DenseTarget, Score, is_function, resolve_target
from visattn.io.safe_text import print_message
from visattn.pipelines.inputs import PreparedImages
from visattn.recording.feature_layers import resizes_images, resolve_feature_layer
from visattn.recording.frozen import internal_geometry
from visattn.recording.model_info import TextScorer
from visattn.recording.subject import Subject
from visattn.results.attention_map import AttentionMap, empty_map_reason, map_note
from visattn.results.info import MapInfo

_UNREAD = "no score depends on the attention of this layer"


def compute_maps(
    subject: Subject,
    batch: PreparedImages,
    method: Method,
    target: Any,
    method_args: Mapping[str, Any],
) -> list[AttentionMap]:
    """Return a map of each prepared image, with geometry and info.

    Raises:
        ValueError: If the target or an argument does not fit the model.

    Example:
        >>> from visattn.attribution.methods import METHODS
        >>> from visattn.models import AttentionResNet
        >>> from visattn.pipelines import Explainer
        >>> explainer = Explainer(AttentionResNet(("cat", "dog"), depth=8, stem_width=4))
        >>> batch = explainer.prepare(torch.zeros(60, 80, 3).byte().numpy())
        >>> [heatmap] = compute_maps(explainer.analyze(), batch, METHODS["gradcam"], "dog", {})
        >>> heatmap.info.class_name, heatmap.geometry.image_size
        ('dog', (60, 80))
    """
    score = resolve_target(target, subject, batch.geometries)
    if isinstance(target, QueryTarget) and method.of_query(target):
        layers = {"attention_layers": subject.info.query_layers, "attention_error": ""}
        subject = replace(subject, info=replace(subject.info, **layers))
        method_args = {"queries": [target.query], **method_args}
    elif method.needs == "tokens" and _reads_otherwise(subject, target):
        own = score if isinstance(target, DenseTarget) else target
        subject = read_by_target(subject, batch.inputs, own)
    grids = method.function(subject, batch.inputs, score, **method_args)
    return _placed(subject, batch, method, method_args, score, grids)


def _reads_otherwise(subject: Subject, target: Any) -> bool:
    """Whether a target may read other tokens than the scores: not if these are the output."""
    output = subject.info.output
    of_output = isinstance(target, DenseTarget) or is_function(target)
    return of_output and bool(output.error or output.key)


def _placed(
    subject: Subject,
    batch: PreparedImages,
    method: Method,
    method_args: Mapping[str, Any],
    score: Score,
    grids: Tensor,
) -> list[AttentionMap]:
    """Return the grid of each image as a map with its place and info."""
    grids = grids.detach().float().cpu()
    is_class = score.kind in ("class", "none")
    common = _common_info(subject, batch, method, method_args, is_class=is_class)
    site = method.name if common.layer is None else str(common.layer)
    canvas, margin = None, (0, 0)
    # Detectors of torchvision resize and pad images themselves: their features lie on that canvas.
    if method.needs == "features" and resizes_images(subject.model):
        canvas = internal_geometry(subject.model, (batch.inputs.shape[2], batch.inputs.shape[3]))
    elif method.on_grid:
        margin = subject.margin((grids.shape[-2], grids.shape[-1]))
    maps: list[AttentionMap] = []
    for index, (grid, geometry) in enumerate(zip(grids, batch.geometries, strict=True)):
        place = (geometry if canvas is None else geometry.then(canvas)).inset(margin)
        info = common | score.describe(index, subject.class_names)
        if isinstance(subject.model, TextScorer) and info.score is not None:
            cosine = float(subject.model.cosine_of(torch.tensor(info.score)))
            info = replace(info, cosine=cosine)
        note = ", ".join(filter(None, (common.note, map_note(grid))))
        image, empty = batch.originals[index].name, empty_map_reason(grid)
        info = replace(info, image=image, empty=empty, note=note)
        maps.append(AttentionMap(grid.clone(), site, method.kind, place, info, margin=margin))
    return maps


def _common_info(
    subject: Subject,
    batch: PreparedImages,
    method: Method,
    method_args: Mapping[str, Any],
    *,
    is_class: bool,
) -> MapInfo:
    """Return what the maps of all images share."""
    options = {**method.default_kwargs, **method_args}
    layer, note = options.get("layer"), ""
    more: dict[str, Any] = {}
    if layer is not None and method.needs == "gates":
        layer = resolve_gate(subject.info, layer)
    elif layer is not None and method.needs == "tokens":
        attention = resolve_attention_layer(subject.info, layer, allow_unread=True)
        layer, note = attention.site, _layers_behind(subject, attention.site)
        if attention in subject.info.unread_layers:
            more["unread"] = _UNREAD
    elif layer is not None:
        feature = resolve_feature_layer(subject, layer)
        layer = feature.site
        if feature.call is not None:
            more["run"] = feature.call
    if method.needs == "tokens" and options.get("queries") is None:
        more["rows"] = describe_read_rows(subject.info)
    output = subject.info.output
    if method.needs_target and is_class and (output.key or output.assumed):
        assumed = f"{output.key} (assumed)" if output.key else "assumed"
        more["scores"] = assumed if output.assumed else output.key
    if batch.preprocessing:
        more["preprocessing"] = batch.preprocessing
    signed = bool(options.get("signed", method.signed))
    if not is_class:
        options.pop("score_type", None)
    return MapInfo(
        method.name, options, subject.info.name, layer, signed=signed, note=note, more=more
    )


def _layers_behind(subject: Subject, site: str) -> str:
    """Return which layer of how many a default map shows if later ones cannot be recorded."""
    info = subject.info
    if not info.attention_layers or site != info.attention_layers[-1].site:
        return ""
    unsupported = dict(info.unsupported_layers)
    read = {layer.site for layer in info.attention_layers} | set(unsupported)
    sites = [each for each in subject.probe.layouts if each in read] if unsupported else [site]
    later = sites[sites.index(site) + 1 :] if site in sites else []
    if not later:
        return ""
    names = later[0] if len(later) == 1 else f"the last {len(later)}"
    reason = unsupported[later[-1]]
    return f"layer {len(sites) - len(later)} of {len(sites)}; {names} not supported: {reason}"


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


def stack_texts(maps: Sequence[AttentionMap], texts: Sequence[str]) -> AttentionMap:
    """Return the maps of several texts of an image as one `[t, y, x]`, labeled by these.

    Example:
        >>> maps = [AttentionMap(torch.full((2, 3), value), "legrad", "gradient")
        ...         for value in (1.0, 4.0)]
        >>> both = stack_texts(maps, ["a dog", "a cat"])
        >>> both[1].info.label, both.display_range()
        ('a cat', (0.0, 4.0))
    """
    values = torch.stack([each.values for each in maps])
    info = replace(
        maps[0].info,
        target=list(range(len(texts))),
        class_name="",
        score=[each.info.score for each in maps],
        cosine=[each.info.cosine for each in maps],
        texts=list(texts),
        empty=empty_map_reason(values),
        note=map_note(values),
    )
    return replace(maps[0], values=values, labels=tuple(texts), info=info)
