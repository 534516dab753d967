"""From the grids of an attribution method to maps with geometry and info."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from visattn.attribution.dense_targets import QueryTarget
from visattn.attribution.gates import resolve_gate
from visattn.attribution.layer_weights import describe_read_rows, resolve_attention_layers
from visattn.attribution.methods import Method
from visattn.attribution.targets import Score, resolve_target
from visattn.io.safe_text import print_message
from visattn.pipelines.inputs import PreparedImages
from visattn.recording.feature_layers import resolve_feature_layer
from visattn.recording.frozen import internal_geometry
from visattn.recording.model_info import FeatureLayer, TextScorer
from visattn.recording.subject import Subject, read_by_target
from visattn.results.attention_map import AttentionMap, empty_map_reason, map_note
from visattn.results.info import MapInfo

_OWN_KINDS = ("thing", "function")  # may depend on other tokens than the class scores do


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
        >>> from visattn import Explainer
        >>> explainer = Explainer(AttentionResNet(("cat", "dog"), depth=8, stem_width=4))
        >>> batch = explainer.prepare(torch.zeros(60, 80, 3).byte().numpy())
        >>> [heatmap] = compute_maps(explainer.analyze(), batch, METHODS["gradcam"], "dog", {})
        >>> heatmap.info.class_name, heatmap.geometry.image_size
        ('dog', (60, 80))
    """
    score = resolve_target(target, subject, batch.geometries)
    output = subject.info.output
    if isinstance(target, QueryTarget) and method.name == "attention":
        layers = {"attention_layers": subject.info.query_layers, "attention_error": ""}
        subject = replace(subject, info=replace(subject.info, **layers))
        method_args = {"queries": [target.query], **method_args}
    elif method.needs == "tokens" and score.kind in _OWN_KINDS and (output.error or output.key):
        subject = read_by_target(subject, batch.inputs, score)
    options = {**method.default_kwargs, **method_args}
    feature: FeatureLayer | None = None
    if method.needs == "features" and "layers" in options:
        feature = resolve_feature_layer(subject, options["layers"])
        method_args = {**method_args, "layers": feature}
    grids = method.function(subject, batch.inputs, score, **method_args).detach().float().cpu()
    common = _common_info(subject, batch, method, options, score, feature)
    site = method.name if common.layer is None else str(common.layer)
    geometries, margin = batch.geometries, (0, 0)
    # Detectors of torchvision resize and pad images themselves; their features cover that canvas.
    if method.needs == "features" and subject.info.resizes_images:
        canvas = internal_geometry(subject.model, (batch.inputs.shape[2], batch.inputs.shape[3]))
        geometries = tuple(each.then(canvas) for each in geometries)
    elif feature is not None:
        margin = feature.margin
    elif method.on_grid:
        margin = subject.margin((grids.shape[-2], grids.shape[-1]))
    maps: list[AttentionMap] = []
    for index, (grid, geometry) in enumerate(zip(grids, geometries, strict=True)):
        info = score.describe(index, subject.class_names, common)
        if isinstance(subject.model, TextScorer) and info.score is not None:
            info = replace(info, cosine=float(subject.model.cosine_of(torch.tensor(info.score))))
        note = ", ".join(filter(None, (common.note, map_note(grid))))
        image, empty = batch.originals[index].name, empty_map_reason(grid)
        info = replace(info, image=image, empty=empty, note=note)
        place = geometry.inset(margin) if any(margin) else geometry
        maps.append(AttentionMap(grid.clone(), site, method.kind, place, info, margin=margin))
    return maps


def _common_info(
    subject: Subject,
    batch: PreparedImages,
    method: Method,
    options: dict[str, Any],
    score: Score,
    feature: FeatureLayer | None,
) -> MapInfo:
    """Return what the maps of all images share."""
    info, output = subject.info, subject.info.output
    is_class = score.kind in ("class", "none")
    layer, note = options.get("layers"), ""
    more: dict[str, Any] = {}
    if layer is not None and method.needs == "gates":
        layer = resolve_gate(info, layer)
    elif layer is not None and method.needs == "tokens":
        chosen = resolve_attention_layers(info, layer, allow_unread=True)
        layer = ", ".join(each.site for each in chosen)
        note = ", ".join(filter(None, (_layers_behind(subject, each.site) for each in chosen)))
        if {*chosen} & {*info.unread_layers}:
            more["unread"] = "no score depends on the attention of this layer"
    elif feature is not None:
        layer = feature.site
        more |= {} if feature.call is None else {"run": feature.call}
    if method.needs == "tokens" and options.get("queries") is None:
        more["rows"] = describe_read_rows(info)
    if method.kind == "gradient" and is_class and output.key:
        more["scores"] = output.key
    if batch.preprocessing:
        more["preprocessing"] = batch.preprocessing
    signed = bool(options.get("signed", method.signed))
    return MapInfo(method.name, options, info.name, layer, signed=signed, note=note, more=more)


def _layers_behind(subject: Subject, site: str) -> str:
    """Return a note on which layer a default map shows if later ones cannot be recorded."""
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


def report_empty(empty: Sequence[AttentionMap], count: int, method: str) -> None:
    """Print on stderr how many maps of a method are empty, with the reason of the first."""
    info = empty[0].info
    which = f"; the first, {info.image}" if info.image else ""
    print_message(
        f"{method} gives an empty map for {len(empty)} of {count} images{which}: "
        f"{info.empty}; try another layer, target or method"
    )


def stack_texts(maps: Sequence[AttentionMap], texts: Sequence[str]) -> AttentionMap:
    """Return the maps of several texts for an image as one `[t, y, x]`, labeled by the texts.

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
