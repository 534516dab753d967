"""The maps that a command line asks of a model, each a method with its options."""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from visattn.commands.options.models import chosen_model

if TYPE_CHECKING:  # torch and Pillow are loaded when the command runs, not for its help
    from visattn.data.images.reader import LoadedImage
    from visattn.recording.attention_map import AttentionMap
    from visattn.recording.model_info import ModelInfo


@dataclass(frozen=True)
class MapSpec:
    """One way to look.

    Args:
        key: Stands in names of files.
        title: Stands on pages.
        method: By name.
        options: Of the method.
    """

    key: str
    title: str
    method: str
    options: Mapping[str, Any] = field(default_factory=dict)


class MapRunner:
    """A model, and the ways in which it is to be looked at.

    Args:
        asked: What the command line says.

    Raises:
        FileNotFoundError: If weights do not exist.
        ValueError: If there is no such model, method, option or class, or a method does not fit.
    """

    def __init__(self, asked: argparse.Namespace) -> None:
        import torch

        from visattn.attribution.targets import target_of

        torch.manual_seed(0)  # weights that are random are the same in every run
        self.named, self.subject = chosen_model(asked)
        card = self.subject.card
        self.looks = _looks(asked, card)
        self.fit, self.transform = asked.fit, None if asked.fit else self.named.transform
        self.size = asked.input_size
        self.batch, self.layers, self.heads = asked.batch, asked.layers, asked.heads
        named = asked.target
        wanted = int(named) if named is not None and named.isdecimal() else named
        self.target = target_of(wanted, self.subject)
        self.wall = bool(card.layers) and not card.refusal
        if asked.grid and not self.wall:
            reason = card.refusal or "it has no attention among tokens"
            raise ValueError(f"--grid shows heads, and {card.name} has none to show: {reason}")

    def maps(self, images: "Sequence[LoadedImage]") -> "list[list[AttentionMap]]":
        """Return the maps of each image, one for each look.

        All looks explain the same class of an image: the one that is asked for, or the likeliest.
        Of several methods one may fail: its map is then empty, and says why.

        Raises:
            ValueError: If there is no such class, layer or head, or all methods fail.
        """
        numbers, chances = self._answers(images)
        found: list[list[AttentionMap]] = [[] for _ in images]
        failures: list[Exception] = []
        for look in self.looks:
            try:
                explained = self._explained(images, look, numbers)
            except Exception as error:  # noqa: BLE001 - whatever a foreign model raises costs one method
                failures.append(error)
                if len(failures) == len(self.looks):
                    raise failures[0] from None
                explained = [_failed(image, look, error) for image in images]
            for at, (maps, one) in enumerate(zip(found, explained, strict=True)):
                number = numbers[at] if numbers else None
                known = number is not None and number < len(self.subject.classes)
                told = {
                    "title": look.title,
                    "target": number,
                    "class": self.subject.classes[number] if known and number is not None else "",
                    "probability": chances[at] if chances else None,
                }
                maps.append(replace(one, made={**one.made, **told}))
        return found

    def _explained(
        self, images: "Sequence[LoadedImage]", look: MapSpec, numbers: list[int] | None
    ) -> "list[AttentionMap]":
        from visattn.pipelines.explanation import explain

        return explain(
            self.named.model,
            images,
            look.method,
            numbers,
            size=self.size,
            transform=self.transform,
            fit=self.fit,
            batch=self.batch,
            keep_empty=True,
            **look.options,
        )

    def _answers(
        self, images: "Sequence[LoadedImage]"
    ) -> tuple[list[int] | None, list[float] | None]:
        """Return the class of each image that is explained, and how likely the model finds it.

        Of a model without scores of classes there is none.
        """
        import torch

        from visattn.attribution.target_scores import probabilities
        from visattn.attribution.targets import ClassTarget
        from visattn.pipelines.inputs import prepared

        if not isinstance(self.target, ClassTarget):
            return None, None
        ready = prepared(self.subject, images, transform=self.transform, fit=self.fit)
        with torch.no_grad():
            scores = self.subject.scores(ready.inputs).float().cpu()
        asked = self.target.numbers
        chosen = ClassTarget(asked)
        chosen(scores)
        numbers = [int(one) for one in chosen.numbers or ()]
        numbers = numbers * len(images) if len(numbers) == 1 else numbers
        shares = probabilities(scores)
        return numbers, [float(shares[at, number]) for at, number in enumerate(numbers)]


def _failed(image: "LoadedImage", look: MapSpec, error: Exception) -> "AttentionMap":
    """Return what stands in place of a map that could not be made; it says why."""
    import torch

    from visattn.attribution.methods import METHODS
    from visattn.geometry.affine import Geometry
    from visattn.recording.attention_map import AttentionMap

    kind = type(error).__name__
    made = {
        "method": look.method,
        "options": dict(look.options),
        "signed": False,
        "empty": str(error) if isinstance(error, ValueError) else f"{kind}: {error}",
        "failed": True,
    }
    place = Geometry.identity(image.size)
    return AttentionMap(torch.zeros(1, 1), look.method, METHODS[look.method].kind, place, made)


def _looks(asked: argparse.Namespace, card: "ModelInfo") -> list[MapSpec]:
    """Return what is to be made of a model, after a look whether it can be."""
    from visattn.attribution.methods import METHODS, fitting, method_of, refusal_of

    fit = fitting(card)
    names = asked.method or [_usual(fit, layered=bool(asked.layer))]
    names = fit if names == ["all"] else list(dict.fromkeys(names))
    methods = [method_of(name) for name in names]
    for method in methods:
        named = bool(asked.layer) and method.needs == "features" and not card.output.refusal
        if (reason := refusal_of(method, card)) and not named:
            raise ValueError(
                f"{method.name} does not fit {card.name}: {reason}; what fits is {', '.join(fit)}"
            )
    given = dict(asked.option)
    known = {name for method in methods for name in method.options}
    if wrong := sorted(set(given) - known):
        raise ValueError(
            f"none of {', '.join(names)} has an option {wrong[0]!r}; there are "
            f"{', '.join(sorted(known)) or 'none'}"
        )
    _check_taken(asked, known)
    found: list[MapSpec] = []
    for name in names:
        options = {key: given[key] for key in METHODS[name].options if key in given}
        if asked.heads and "heads" in METHODS[name].options:
            options["heads"] = list(asked.heads)
        layers = asked.layers or asked.layer
        found += _by_layer(name, METHODS[name].title, METHODS[name].options, options, layers)
    return found


def _check_taken(asked: argparse.Namespace, known: Iterable[str]) -> None:
    """Refuse layers and heads that nothing takes."""
    if asked.layer and "layer" not in known:
        raise ValueError(
            "--layer is for methods that look at one layer, such as gradcam; none that is asked "
            "for does"
        )
    for name, option in (("layers", "layer"), ("heads", "heads")):
        if getattr(asked, name) and option not in known and not (asked.grid or asked.explorer):
            raise ValueError(
                f"--{name} is for attention, for methods that look at one layer, for --grid and "
                "for --explorer; nothing that is asked for takes it"
            )


def _by_layer(
    name: str,
    title: str,
    takes: Mapping[str, Any],
    options: Mapping[str, Any],
    layers: Sequence[int | str] | None,
) -> list[MapSpec]:
    """Return a look for each layer, of a method that looks at one."""
    if not layers or "layer" not in takes:
        return [MapSpec(name, title, name, options)]
    if len(layers) == 1:
        return [MapSpec(name, title, name, {**options, "layer": layers[0]})]
    return [
        MapSpec(
            f"{name}.layer{at}" if isinstance(at, int) else f"{name}.{at.replace('#', '_run')}",
            f"{title}, layer {at}" if isinstance(at, int) else f"{title}, {at}",
            name,
            {**options, "layer": at},
        )
        for at in dict.fromkeys(layers)
    ]


def _usual(fit: Sequence[str], *, layered: bool) -> str:
    """Return the method that is taken if none is named."""
    known = ["gradcam", "rollout"] if layered else ["rollout", "gradcam"]
    usual = [name for name in (*known, "attention", "input_gradient") if name in fit]
    return usual[0] if usual else "gradcam"
