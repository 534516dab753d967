"""From a model and images to maps of any method, placed on the original images."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor, nn

from visattn.attribution.attention_rows import chosen_layer
from visattn.attribution.explained_model import subject_of
from visattn.attribution.methods import METHODS, Method, close_names, fitting, refusal_of
from visattn.attribution.targets import Target, Wanted, target_of
from visattn.data.images.reader import LoadedImage
from visattn.models.captioner import Captioner
from visattn.models.ram.ram import RecurrentAttentionModel
from visattn.pipelines.captioning import Fit, ImageLike
from visattn.pipelines.explain_words import WORD_METHODS
from visattn.pipelines.inputs import Prepared, prepared, transformed
from visattn.pipelines.scanpath import glimpses
from visattn.recording.attention_map import AttentionMap
from visattn.recording.feature_layers import feature_site, layer_name
from visattn.recording.input_size import Classes, checked_size
from visattn.recording.model_info import ExplainedModel


def explain(
    model: nn.Module,
    images: Iterable[ImageLike] | ImageLike,
    method: str = "rollout",
    target: Wanted = None,
    *,
    size: int | tuple[int, int] | None = None,
    classes: Classes | None = None,
    transform: Any = None,
    fit: Fit | None = None,
    batch: int = 16,
    keep_empty: bool = False,
    **options: Any,
) -> list[AttentionMap]:
    """Say where a model looked on images, or which places its scores rest on.

    Any network will do, of visattn, timm, torchvision, Hugging Face or one's own; which methods
    fit it is said by `methods_for`. It comes back in the mode in which it was, with its gradients,
    and so does the random state.

    A captioner is asked by `words`, where it looked for each word, or `word_gradcam`, which places
    each word rests on; a glimpse model also by `glimpses`. These give one map per word or glimpse.

    Args:
        model: Whose map it is.
        images: One image or several: files, bytes, PIL images or RGB arrays, of any size.
        method: How it is made: `attention`, `rollout`, `gradient_rollout`, `relevance`, `gradcam`
            and others that `visattn.attribution.methods.METHODS` lists.
        target: What is to be explained: a class by its number or name, or one for each image; a
            function of what the model returns, whatever that is, to one number for each image;
            None for the best class.
        size: Height and width of the images that the model takes, or both in one number; by
            default that of the transform, or what the model says it is made for.
        classes: Names of the classes, in their order or by their numbers, of a model that does not
            know them.
        transform: The preprocessing of the model, made of steps of torchvision or timm; by default
            the one that it was made for.
        fit: How images that are not of the model's shape are made to fit: their middle (`crop`),
            all of it out of shape (`squash`), or all of it with margins (`pad`).
        batch: Images that are in memory at once.
        keep_empty: Return maps that are zero everywhere or no numbers, with the reason in
            `made["empty"]`, instead of raising an error.
        options: As the method takes them. `layer` is a number, or any module of the model, as
            itself or by its path; `layer4.2.relu#2` is the second run of `layer4.2.relu`.

    Returns:
        A map `[y, x]` for each image; `made` holds method, options, target (the number of the
        class), class (its name), score, `scores` (where these are in what the model returns),
        model, `layer` and its `run` if there is one, whether values are `signed`, and `empty`.

    Raises:
        ImageError: If an image cannot be read.
        ValueError: If there is no such method, option, layer or class, the method does not fit the
            model, the model does not run on images of that size, or a map is empty.

    Example:
        >>> from visattn.models.resnet.attention_resnet import AttentionResNet
        >>> model = AttentionResNet(("cat", "dog"), depth=8, width=4)
        >>> [found] = explain(model, np.full((60, 80, 3), 90, np.uint8), "input_gradient", "dog")
        >>> found.values.shape, found.geometry.image_size, found.made["class"]
        (torch.Size([32, 32]), (60, 80), 'dog')

    Source:
        That of each method is said in `METHODS`.
    """
    given = _listed(images)
    if batch < 1:
        raise ValueError(f"there must be at least 1 image at once, got batch={batch}")
    if method in _own_methods(model):
        _check_plain(method, target, transform, size, classes)
        return _own_maps(model, given, method, {} if fit is None else {"fit": fit}, options)
    _check_name(method, model)
    chosen, function = METHODS[method], callable(target)
    _check_options(chosen, options, function=function)
    if isinstance(options.get("layer"), nn.Module):
        options["layer"] = layer_name(model, options["layer"])
    targets = _apart(target, len(given))
    found: list[AttentionMap] = []
    for first in range(0, len(given), batch):
        some = slice(first, first + batch)
        if transform is None:
            subject = subject_of(model, size, classes)
            _check_fits(chosen, subject, model, options, function=function)
            ready = prepared(subject, given[some], fit=fit)
        else:
            ready = transformed(model, given[some], transform, fit=fit)
            seen = (ready.inputs.shape[2], ready.inputs.shape[3])
            _check_seen(seen, size)
            subject = subject_of(model, seen, classes)
            _check_fits(chosen, subject, model, options, function=function)
        asked = target if targets is None else targets[some]
        found += _placed(subject, ready, chosen, asked, options)
    empty = [] if keep_empty else [one for one in found if one.made["empty"]]
    if empty:
        raise ValueError(
            f"{method} gives nothing to see on {len(empty)} of {len(found)} images; the first, "
            f"{empty[0].made['image']}: {empty[0].made['empty']}; try another layer, target or "
            "method, or keep_empty=True"
        )
    return found


def methods_for(
    model: nn.Module,
    *,
    size: int | tuple[int, int] | None = None,
    target: Target | None = None,
) -> list[str]:
    """Return the names of the methods that fit a model.

    Args:
        model: To be explained.
        size: Height and width of its images, or both in one number; None for what it is made
            for, as far as it says so.
        target: A function of what the model returns, if one will be given: then it needs no scores
            of classes.

    Example:
        >>> from visattn.models.resnet.attention_resnet import AttentionResNet
        >>> methods_for(AttentionResNet(("cat", "dog"), depth=8, width=4))[:3]
        ['gradcam', 'gradcam++', 'layercam']
    """
    if isinstance(model, Captioner):
        return _own_methods(model)
    card = subject_of(model, size).card
    return [*_own_methods(model), *fitting(card, function=target is not None)]


def _own_methods(model: nn.Module) -> list[str]:
    """Return the methods of captioners and glimpse models, which give several maps per image."""
    if isinstance(model, Captioner):
        return list(WORD_METHODS)
    return ["glimpses"] if isinstance(model, RecurrentAttentionModel) else []


def _own_maps(
    model: nn.Module,
    images: list[ImageLike],
    method: str,
    fit: Mapping[str, Any],
    options: Mapping[str, Any],
) -> list[AttentionMap]:
    if isinstance(model, Captioner):
        found = WORD_METHODS[method](model, images, **fit, **options)
    else:
        found = [scan.maps for scan in glimpses(model, images, **fit, **options)]
    noted = {"method": method, "options": dict(options), "signed": False}
    return [
        replace(one, made={**one.made, **noted, "empty": _emptiness(one.values)}) for one in found
    ]


def _check_name(name: str, model: nn.Module) -> None:
    every = [*METHODS, *WORD_METHODS, "glimpses"]
    if name not in every:
        raise ValueError(f"there is no method {name!r}; {close_names(name, every)}")
    if isinstance(model, Captioner) or name not in METHODS:
        raise ValueError(
            f"{name} does not fit a {type(model).__name__}; what fits is "
            f"{', '.join(methods_for(model))}"
        )


def _check_fits(
    method: Method,
    subject: ExplainedModel,
    model: nn.Module,
    options: Mapping[str, Any],
    *,
    function: bool,
) -> None:
    reason = refusal_of(method, subject.card, function=function)
    missing = method.needs == "features" and not subject.card.features
    scored = function or not subject.card.output.refusal
    if missing and scored and "layer" in options:
        return  # its place is measured when the layer is looked up
    if reason:
        names = [*_own_methods(model), *fitting(subject.card, function=function)]
        nameable = missing and scored and "layer" in method.options
        hint = "; name one of its modules with layer=" if nameable else ""
        raise ValueError(
            f"{method.name} does not fit {subject.card.name}: {reason}{hint}; what fits is "
            f"{', '.join(names)}"
        )


def _check_seen(seen: tuple[int, int], size: int | tuple[int, int] | None) -> None:
    if size is not None and checked_size(size) != seen:
        raise ValueError(
            f"the transform gives images of {seen[0]} x {seen[1]} pixels, got size={size!r} too: "
            "drop one of them"
        )


def _check_options(method: Method, options: Mapping[str, Any], *, function: bool) -> None:
    known = method.options
    if wrong := sorted(set(options) - set(known)):
        listed = ", ".join(f"{name}={value!r}" for name, value in known.items())
        raise ValueError(
            f"{method.name} has no option {wrong[0]!r}; it takes {listed or 'no options'}"
        )
    if function and "of" in options:
        raise ValueError(
            "of= says what is made of the scores of a class; a target function is given what the "
            "model returns, and makes of it what it likes"
        )


def _check_plain(method: str, *unused: Any) -> None:
    if any(one is not None for one in unused):
        raise ValueError(
            f"{method} explains what the model said of images that it prepares itself: it takes "
            "neither target nor transform, size nor classes"
        )


def _placed(
    subject: ExplainedModel,
    ready: Prepared,
    method: Method,
    target: Wanted,
    options: Mapping[str, Any],
) -> list[AttentionMap]:
    """Return the maps of one batch, each with its place and how it was made."""
    chosen = target_of(target, subject)
    values = method.function(subject, ready.inputs, chosen, **options).detach().float().cpu()
    signed = bool({"signed": method.signed, **method.options, **options}["signed"])
    known = {**method.options, **options}
    if callable(target):
        known.pop("of", None)
    noted = {
        "method": method.name,
        "options": known,
        "model": subject.card.name,
        "signed": signed,
        **_noted_layer(subject, method, known.get("layer")),
    }
    if subject.card.output.scores and method.needs_target and not callable(target):
        noted["scores"] = subject.card.output.scores
    return [
        AttentionMap(
            one.clone(),
            noted.get("layer", method.name),
            method.kind,
            geometry,
            {
                **noted,
                **chosen.about(at, subject.classes),
                "image": read.name,
                "empty": _emptiness(one),
            },
        )
        for at, (one, geometry, read) in enumerate(
            zip(values, ready.geometries, ready.read, strict=True)
        )
    ]


def _noted_layer(subject: ExplainedModel, method: Method, layer: Any) -> dict[str, Any]:
    """Return which layer a map is of, and which of its runs if there are several."""
    if layer is None:
        return {}
    if method.needs == "tokens":
        return {"layer": subject.card.layers[chosen_layer(subject.card, layer)].site}
    site = feature_site(subject, layer)
    return {"layer": site.site, **({} if site.run is None else {"run": site.run})}


def _emptiness(values: Tensor) -> str:
    """Return why a map shows nothing; "" if it shows something."""
    if not bool(values.isfinite().all()):
        return "the map holds NaN or infinity: are the weights of the model damaged?"
    if not bool(values.any()):
        return "the map is zero everywhere: nothing there speaks for the target"
    return ""


def _apart(target: Wanted, count: int) -> list[int | str] | None:
    """Return the targets if there is one for each image."""
    if not isinstance(target, Sequence) or isinstance(target, str):
        return None
    if len(target) != count:
        raise ValueError(f"targets must be one for each of the {count} images, got {len(target)}")
    return list(target)


def _listed(images: Iterable[ImageLike] | ImageLike) -> list[ImageLike]:
    if isinstance(images, (str, os.PathLike, bytes, Image.Image, np.ndarray, LoadedImage)):
        return [images]
    return list(images)
