"""What maps are to show on images whose objects are known."""

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from visattn.attribution.baselines import BASELINES
from visattn.attribution.methods import fitting, method_of
from visattn.attribution.targets import ClassTarget, target_of
from visattn.data.images.reader import LoadedImage
from visattn.data.regions.dataset import LocatedImage
from visattn.data.regions.imagenet_to_coco import classes_of
from visattn.geometry.affine import Geometry
from visattn.metrics.maps.faithfulness import (
    Answers,
    PerturbationSchedule,
    insertion_deletion,
    pixel_ranks,
    road_scores,
)
from visattn.metrics.maps.localization import LocationRule, is_flat, scores_on_region
from visattn.metrics.maps.sanity_checks import map_likeness, randomized_likeness
from visattn.pipelines.captioning import Fit
from visattn.pipelines.inputs import Prepared, prepared
from visattn.recording.attention_map import AttentionMap
from visattn.recording.model_info import ExplainedModel


@dataclass(frozen=True)
class QueryObject:
    """What a map is to show: things of a category on an image.

    Args:
        image: With its objects.
        category: Of them; None for all, whatever the model says.
        classes: Numbers of the model's classes that are of the category.
    """

    image: LocatedImage
    category: str | None = None
    classes: tuple[int, ...] = ()


def sought_things(
    images: Sequence[LocatedImage], classes: Sequence[str], count: int, *, predicted: bool
) -> tuple[list[QueryObject], dict[str, int]]:
    """Return what is sought on images, and how often a category was met that the model lacks.

    Args:
        images: With their objects.
        classes: Names of the model's classes, or none.
        count: Of its classes.
        predicted: Ask for the model's own answer, and count all objects as right places. If not,
            each category on an image is asked for by itself, wherever the model has a class of it.

    Example:
        >>> from pathlib import Path
        >>> from visattn.data.regions.dataset import LocatedObject
        >>> things = (LocatedObject("zebra", []), LocatedObject("person", []))
        >>> photo = LocatedImage("a.jpg", Path("a.jpg"), (3, 4), things)
        >>> found, lacking = sought_things([photo], (), 1000, predicted=False)
        >>> [(one.category, one.classes) for one in found], lacking
        ([('zebra', (340,))], {'person': 1})
    """
    if predicted:
        return [QueryObject(image) for image in images], {}
    found: list[QueryObject] = []
    lacking: dict[str, int] = {}
    for image in images:
        for category in image.categories:
            numbers = classes_of(category, classes, count)
            if numbers:
                found.append(QueryObject(image, category, numbers))
            else:
                lacking[category] = lacking.get(category, 0) + 1
    return found, lacking


def class_count(subject: ExplainedModel) -> int:
    """Return how many classes a model tells apart, if need be by asking it once."""
    if subject.classes:
        return len(subject.classes)
    weight = next(subject.model.parameters(), torch.zeros(()))
    blank = weight.new_zeros(1, len(subject.card.mean), *subject.card.size)
    with torch.no_grad():
        return subject.scores(blank).shape[1]


PARTS = ("location", "removal", "road")
_DIFFICULT = 0.25  # of the image; larger things are met by a glance at the middle


@dataclass(frozen=True)
class MapEvaluator:
    """Makes maps with methods and baselines, and scores each of them.

    Args:
        subject: The model.
        parts: Which scores: `location` on the image, `removal` (insertion and deletion), `road`.
        rule: What counts as a hit.
        plan: How pixels are taken away.
        seed: Of random maps, of the order of equal pixels, of noise, of destroyed weights.
        transform: Preprocessing in place of the model's own.
        fit: How images come to fit in place of the model's own way.
    """

    subject: ExplainedModel
    parts: Sequence[str] = PARTS
    rule: LocationRule = field(default_factory=LocationRule)
    plan: PerturbationSchedule = field(default_factory=PerturbationSchedule)
    seed: int = 0
    transform: Any = None
    fit: Fit | None = None

    def check_methods(self, methods: Sequence[str]) -> None:
        """Check that all methods are known and fit the model.

        Raises:
            ValueError: If one does not; the message says which do.
        """
        fit = fitting(self.subject.card)
        for name in methods:
            if name not in BASELINES and method_of(name).name not in fit:
                raise ValueError(
                    f"method {name} does not fit {self.subject.card.name}; these do: "
                    f"{', '.join(fit)}"
                )

    def rows(
        self, sought: Sequence[QueryObject], read: Sequence[LoadedImage], methods: Sequence[str]
    ) -> Iterator[dict[str, Any]]:
        """Yield what is found of each method, and in it of each image.

        Args:
            sought: What the maps are to show.
            read: The images, upright, in the same order.
            methods: Names of methods or baselines.
        """
        made = self._prepared(read)
        numbers, told = self._answered(made, sought)
        regions = [self._region(*both) for both in zip(sought, made.geometries, strict=True)]
        seeds = [self._seed(one) for one in sought]
        answers = self._probabilities(numbers)
        for method in methods:
            maps = self._maps(method, made.inputs, numbers, seeds)
            removal = self._removal(answers, made.inputs, maps, seeds)
            for index, one in enumerate(sought):
                place = AttentionMap(maps[index], method, "gradient", made.geometries[index])
                flat = is_flat(maps[index])
                row = {"kind": "score", **_named(one), "method": method, **told[index]}
                yield (
                    row
                    | {"flat": flat}
                    | self._located(place, regions[index], one)
                    | (
                        {}
                        if flat
                        else {name: float(found[index]) for name, found in removal.items()}
                    )
                )

    def checks(
        self,
        sought: Sequence[QueryObject],
        read: Sequence[LoadedImage],
        methods: Sequence[str],
        *,
        steps: int = 6,
    ) -> Iterator[dict[str, Any]]:
        """Yield how much the maps of each method depend on the model, and on what is asked for.

        Args:
            sought: What the maps are to show.
            read: The images, upright, in the same order.
            methods: Names of methods or baselines.
            steps: In which the weights are destroyed, from the scores down.

        Yields:
            For each method and image `randomized`, the likeness of the map to itself after each
            step, and `other_class`, that to the map of another class, drawn at random.

        Source:
            Adebayo et al. 2018, arXiv:1810.03292, section 3.1; Sixt et al. 2020,
            arXiv:1912.09818, section 5, random logit.
        """
        made = self._prepared(read)
        numbers, told = self._answered(made, sought)
        others = self._others(sought, numbers, int(told[0]["classes"]))
        seeds = [self._seed(one) for one in sought]
        for method in methods:

            def maps(asked: Sequence[int] = numbers, method: str = method) -> Tensor:
                return self._maps(method, made.inputs, asked, seeds)

            other = map_likeness(maps(), maps(others))
            likeness = randomized_likeness(self.subject.model, maps, steps=steps, seed=self.seed)
            for index, one in enumerate(sought):
                yield {
                    "kind": "check",
                    **_named(one),
                    "method": method,
                    "randomized": likeness[index].tolist(),
                    "other_class": float(other[index]),
                }

    def _prepared(self, read: Sequence[LoadedImage]) -> Prepared:
        return prepared(self.subject, read, transform=self.transform, fit=self.fit)

    def _answered(
        self, made: Prepared, sought: Sequence[QueryObject]
    ) -> tuple[list[int], list[dict[str, Any]]]:
        """Return the class that is asked for on each image, and what the model says of it."""
        with torch.no_grad():
            scores = self.subject.scores(made.inputs).float()
        best = scores.argmax(1).tolist()
        numbers = [
            max(one.classes, key=row.__getitem__) if one.classes else answer
            for one, row, answer in zip(sought, scores.tolist(), best, strict=True)
        ]
        shares = scores.softmax(1)
        told = [
            {
                "classes": scores.shape[1],
                "class": number,
                "answer": answer,
                "right": answer in one.classes if one.classes else None,
                "probability": float(shares[index, number]),
            }
            for index, (one, number, answer) in enumerate(zip(sought, numbers, best, strict=True))
        ]
        return numbers, told

    def _maps(
        self,
        method: str,
        inputs: Float[Tensor, "b c y x"],
        numbers: Sequence[int],
        seeds: Sequence[int],
    ) -> Float[Tensor, "b gy gx"]:
        if method in BASELINES:
            return BASELINES[method](inputs, seeds)
        target = target_of(list(numbers), self.subject)
        return method_of(method).function(self.subject, inputs, target).detach().float()

    def _removal(
        self,
        answers: Answers,
        inputs: Float[Tensor, "b c y x"],
        maps: Float[Tensor, "b gy gx"],
        seeds: Sequence[int],
    ) -> dict[str, Float[Tensor, " b"]]:
        """Return what becomes of the answers; of flat maps it means nothing."""
        found: dict[str, Tensor] = {}
        if not {"removal", "road"} & set(self.parts):
            return found
        size = (inputs.shape[2], inputs.shape[3])
        ranks = pixel_ranks(maps.nan_to_num(0.0, 0.0, 0.0), size, seeds)
        if "removal" in self.parts:
            found |= insertion_deletion(answers, inputs, ranks, self.plan)
        if "road" in self.parts:
            found |= road_scores(answers, inputs, ranks, self.plan, seeds)
        return found

    def _probabilities(self, numbers: Sequence[int]) -> Answers:
        target = ClassTarget(numbers)

        def probability(inputs: Float[Tensor, "b c y x"]) -> Float[Tensor, " b"]:
            return target(self.subject.scores(inputs).float().softmax(1))

        return probability

    def _region(
        self, one: QueryObject, geometry: Geometry
    ) -> tuple[Bool[Tensor, "y x"], Bool[Tensor, "y x"]] | None:
        """Return mask and boxes of what is sought, or None if the network saw none of it."""
        mask, boxes = (torch.from_numpy(part) for part in one.image.regions(one.category))
        seen = AttentionMap(torch.ones(1, 1), "seen", "gradient", geometry).on_image().isfinite()
        return (mask, boxes) if bool((mask & seen).any()) else None

    def _located(
        self,
        place: AttentionMap,
        region: tuple[Bool[Tensor, "y x"], Bool[Tensor, "y x"]] | None,
        one: QueryObject,
    ) -> dict[str, Any]:
        if region is None:
            return {"unseen": True}
        if "location" not in self.parts:
            return {}
        found = scores_on_region(place.on_image().cpu(), *region, self.rule)
        others = len(one.image.categories) > 1
        difficult = others and float(region[0].double().mean()) < _DIFFICULT
        return {"difficult": difficult, **found.to_dict()}

    def _seed(self, one: QueryObject) -> int:
        """Return a seed that an image has in every batch and on every machine."""
        return self.seed + zlib.crc32(f"{one.image.name}\n{one.category}".encode())

    def _others(
        self, sought: Sequence[QueryObject], numbers: Sequence[int], count: int
    ) -> list[int]:
        """Return for each image a class that is not the one that is asked for."""
        if count < 2:
            raise ValueError("another class can only be asked for if the model has two or more")
        others: list[int] = []
        for one, number in zip(sought, numbers, strict=True):
            generator = torch.Generator().manual_seed(self._seed(one))
            drawn = int(torch.randint(count - 1, (), generator=generator))
            others.append(drawn + (drawn >= number))
        return others


def _named(one: QueryObject) -> dict[str, Any]:
    return {"image": one.image.name, "category": one.category}
