"""Evaluation of attribution maps on annotated images: localization, faithfulness, sanity checks.

What is asked of a map depends on what it explains:

    class       lies on the objects of the category; its pixels decide the probability (insertion,
                deletion, ROAD); it changes with the weights and with the class
    region, box lies on its own object, and not on those of the other categories
"""

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from visattn.attribution.dense_targets import BoxTarget, RegionTarget
from visattn.attribution.perturbation import variant_scorer
from visattn.attribution.saliency import BASELINES
from visattn.attribution.targets import DenseTarget, class_target, probabilities
from visattn.data.regions.annotations import AnnotatedImage
from visattn.data.regions.readers import matching_classes
from visattn.geometry.affine import Geometry
from visattn.images.reader import LoadedImage
from visattn.metrics.faithfulness import (
    PerturbationSchedule,
    insertion_deletion,
    perturbation_ends,
    pixel_ranks,
    road_scores,
)
from visattn.metrics.localization import LocalizationRule, is_constant_map, localization_scores
from visattn.metrics.sanity_checks import cascading_randomization, map_similarity
from visattn.pipelines.explainer import Explainer
from visattn.pipelines.inputs import PreparedImages
from visattn.recording.subject import Subject
from visattn.results.attention_map import AttentionMap, resample_to_input

_DIFFICULT_AREA = 0.25  # of the image; larger objects are hit by a central map
Region = tuple[Bool[Tensor, "y x"], Bool[Tensor, "y x"]]
"""Mask and boxes of the objects of a query."""


@dataclass(frozen=True)
class QueryObject:
    """Objects of one category on an image, on which a map should lie.

    Args:
        image: Image with its objects.
        category: Their category; None for all objects and the predicted class.
        classes: Class indices of the model that belong to the category.
    """

    image: AnnotatedImage
    category: str | None = None
    classes: tuple[int, ...] = ()


def build_queries(
    images: Sequence[AnnotatedImage],
    class_names: Sequence[str],
    num_classes: int,
    *,
    predicted: bool,
) -> tuple[list[QueryObject], dict[str, int]]:
    """Return the objects to explain, and the number of images per category without a class.

    Args:
        images: Images with their objects.
        class_names: Class names of the model; may be empty.
        num_classes: Number of its classes.
        predicted: Whether to explain the predicted class, for which all objects count; otherwise
            each category of an image is explained, if the model has a class of it.

    Example:
        >>> from pathlib import Path
        >>> from visattn.data.regions.annotations import AnnotatedObject
        >>> objects = (AnnotatedObject("zebra", []), AnnotatedObject("person", []))
        >>> photo = AnnotatedImage("a.jpg", Path("a.jpg"), (3, 4), objects)
        >>> queries, missing = build_queries([photo], (), 1000, predicted=False)
        >>> [(query.category, query.classes) for query in queries], missing
        ([('zebra', (340,))], {'person': 1})
    """
    if predicted:
        return [QueryObject(image) for image in images], {}
    queries: list[QueryObject] = []
    missing: dict[str, int] = {}
    for image in images:
        for category in image.categories:
            classes = matching_classes(category, class_names, num_classes)
            if classes:
                queries.append(QueryObject(image, category, classes))
            else:
                missing[category] = missing.get(category, 0) + 1
    return queries, missing


def count_classes(subject: Subject) -> int:
    """Return the number of classes of a model, from its class names or one forward pass."""
    if subject.class_names:
        return len(subject.class_names)
    weight = next(subject.model.parameters(), torch.zeros(()))
    blank = weight.new_zeros(1, len(subject.info.mean), *subject.info.input_size)
    with torch.no_grad():
        return subject.scores(blank).shape[1]


@dataclass(frozen=True)
class MapEvaluator:
    """Computes maps with methods and baselines, and their scores.

    Args:
        explainer: The model with its preprocessing.
        kind: What is explained: a `class`; the `region` of all objects of a category, for
            segmentation models; or the `box` of the largest one, for detectors.
        rule: Tolerance and threshold of the localization scores.
        schedule: Steps of pixel removal.
    """

    explainer: Explainer
    kind: Literal["class", "region", "box"] = "class"
    rule: LocalizationRule = field(default_factory=LocalizationRule)
    schedule: PerturbationSchedule = field(default_factory=PerturbationSchedule)

    def check_methods(self, methods: Sequence[str]) -> None:
        """Check that all methods exist and fit the model, before hours of scores.

        Raises:
            ValueError: If one does not, with the methods that do.
        """
        examples = {"class": None, "region": RegionTarget(0), "box": BoxTarget(None)}
        for name in methods:
            if name not in BASELINES:
                self.explainer.check(name, examples[self.kind])

    def evaluate(
        self, queries: Sequence[QueryObject], image: LoadedImage, methods: Sequence[str]
    ) -> Iterator[dict[str, Any]]:
        """Yield the scores of each method on each query of an image.

        An object that the model does not detect is `missed`, and has no scores.

        Args:
            queries: Objects to explain.
            image: Their image, upright.
            methods: Names of methods or baselines.
        """
        batch = self.explainer.prepare([image]).select([0] * len(queries))
        shown = [self._shown(query) for query in queries]
        targets, facts = self._targets(queries, shown, batch)
        found = [index for index, fact in enumerate(facts) if "missed" not in fact]
        batch, targets = batch.select(found), [targets[index] for index in found]
        seeds = [_seed(queries[index]) for index in found]
        regions = [_region(each, batch.geometries[0]) for each in shown] if found else []
        of_class = self.kind == "class"
        faithfulness = self._faithfulness(batch.inputs, targets, seeds) if of_class else None
        for method in methods:
            maps = self._maps(method, batch, targets, seeds) if found else []
            faithful = faithfulness(maps) if faithfulness else {}
            for index, query in enumerate(queries):
                row = {"kind": "score", **_names(query), "method": method, **facts[index]}
                if index in found:
                    at = found.index(index)
                    constant = is_constant_map(maps[at].values)
                    row |= {"constant_map": constant}
                    row |= self._localization(maps[at], regions[index], query)
                    if not of_class:
                        row |= self._on_others(maps[at], query, shown[index])
                    if not constant:
                        row |= {name: float(values[at]) for name, values in faithful.items()}
                yield row

    def sanity_checks(
        self,
        queries: Sequence[QueryObject],
        image: LoadedImage,
        methods: Sequence[str],
        *,
        steps: int = 6,
    ) -> Iterator[dict[str, Any]]:
        """Yield how much the maps of each method depend on the model and on the class.

        Args:
            queries: Objects to explain.
            image: Their image, upright.
            methods: Names of methods or baselines.
            steps: Steps in which the weights are randomized, from the classifier downwards.

        Yields:
            For each method and query `randomized`, the similarity of the map to the original after
            each step, and `other_class`, that to the map of a random other class.

        Source:
            Adebayo et al. 2018, arXiv:1810.03292, section 3.1; Sixt et al. 2020,
            arXiv:1912.09818, section 5, random logit.
        """
        batch = self.explainer.prepare([image]).select([0] * len(queries))
        classes, facts = self._classes(queries, batch)
        seeds = [_seed(query) for query in queries]
        pairs = zip(classes, seeds, strict=True)
        others = [_other_class(*pair, facts[0]["classes"]) for pair in pairs]
        for method in methods:

            def maps(indices: Sequence[int] = classes, method: str = method) -> Tensor:
                return _stacked(self._maps(method, batch, indices, seeds))

            other = map_similarity(maps(), maps(others))
            model = self.explainer.analyze().model
            similarity = cascading_randomization(model, maps, num_steps=steps)
            for index, query in enumerate(queries):
                yield {
                    "kind": "check",
                    **_names(query),
                    "method": method,
                    "randomized": similarity[index].tolist(),
                    "other_class": float(other[index]),
                }

    def _shown(self, query: QueryObject) -> AnnotatedImage:
        """Return the photo with only the objects that are explained."""
        image = query.image
        if query.category is None:
            return image
        objects = [each for each in image.objects if each.category == query.category]
        if self.kind == "box":
            single = [each for each in objects if not each.crowd] or objects
            masks = [replace(image, objects=(each,)).region_masks()[0] for each in single]
            objects = [single[int(np.argmax([mask.sum() for mask in masks]))]]
        return replace(image, objects=tuple(objects))

    def _targets(
        self,
        queries: Sequence[QueryObject],
        shown: Sequence[AnnotatedImage],
        batch: PreparedImages,
    ) -> tuple[list[Any], list[dict[str, Any]]]:
        """Return what is explained of each query, and what the model predicts for it."""
        if self.kind == "class":
            return self._classes(queries, batch)
        targets: list[DenseTarget] = []
        facts: list[dict[str, Any]] = []
        subject = self.explainer.analyze(batch)
        with torch.no_grad():
            output = subject.forward(batch.inputs[:1])
        for query, own in zip(queries, shown, strict=True):
            mask, boxes = own.region_masks()
            label = query.classes[0]
            target: DenseTarget = RegionTarget(label, mask)
            if self.kind == "box":
                rows, columns = (np.nonzero(boxes.any(axis))[0] for axis in (1, 0))
                edges = (columns[0], rows[0], columns[-1] + 1, rows[-1] + 1)
                target = BoxTarget(cast("Any", tuple(map(float, edges))), label)
            fact: dict[str, Any] = {"class": label, "correct": None}
            try:
                target.bind(subject, batch.geometries[:1])(output)
            except ValueError as error:  # the model has no output for it
                fact["missed"] = str(error)
            targets.append(target)
            facts.append(fact)
        return targets, facts

    def _classes(
        self, queries: Sequence[QueryObject], batch: PreparedImages
    ) -> tuple[list[int], list[dict[str, Any]]]:
        """Return the class to explain of each query, and what the model predicts."""
        subject = self.explainer.analyze()
        with torch.no_grad():
            scores = subject.scores(batch.inputs).float()
        shares = probabilities(scores, subject.info.output)
        classes: list[int] = []
        facts: list[dict[str, Any]] = []
        for query, row, share in zip(queries, scores, shares, strict=True):
            best = int(row.argmax())
            shown = max(query.classes, key=row.tolist().__getitem__) if query.classes else best
            classes.append(shown)
            facts.append({
                "classes": len(row),
                "class": shown,
                "prediction": best,
                "correct": best in query.classes if query.classes else None,
                "probability": float(share[shown]),
            })  # fmt: skip
        return classes, facts

    def _maps(
        self, method: str, batch: PreparedImages, targets: Sequence[Any], seeds: Sequence[int]
    ) -> list[AttentionMap]:
        """Return the map of each query, placed on the image."""
        if method in BASELINES:
            pairs = zip(BASELINES[method](batch.inputs, seeds), batch.geometries, strict=True)
            return [AttentionMap(values, method, "gradient", place) for values, place in pairs]
        return self.explainer.map(batch, method, list(targets))

    def _faithfulness(
        self, inputs: Float[Tensor, "b c y x"], classes: Sequence[int], seeds: Sequence[int]
    ) -> Callable[[Sequence[AttentionMap]], dict[str, Float[Tensor, " b"]]]:
        """Return the function from maps to faithfulness scores; of constant maps they say nothing.

        What all methods share is computed once.
        """
        with torch.no_grad():
            score, count, _ = variant_scorer(
                self.explainer.analyze(), inputs, class_target(classes), score_type="probabilities"
            )

            def scored(batch: Float[Tensor, "mb c y x"]) -> Float[Tensor, " mb"]:
                return score(batch.unflatten(0, (-1, len(inputs)))).flatten()

            ends = perturbation_ends(scored, inputs, self.schedule)

        def of_maps(maps: Sequence[AttentionMap]) -> dict[str, Tensor]:
            size, more = (inputs.shape[2], inputs.shape[3]), {"variants_per_batch": count}
            values = _stacked(maps).nan_to_num(0.0, 0.0, 0.0).to(inputs.device)
            ranks = pixel_ranks(resample_to_input(values, size, maps[0].margin), size, seeds)
            curves = insertion_deletion(scored, inputs, ranks, self.schedule, ends=ends, **more)
            return curves | road_scores(scored, inputs, ranks, self.schedule, seeds, **more)

        return of_maps

    def _localization(
        self, attention_map: AttentionMap, region: Region | None, query: QueryObject
    ) -> dict[str, Any]:
        if region is None:
            return {"outside_input": True}
        scores = localization_scores(attention_map.resize_to_image().cpu(), *region, self.rule)
        other_categories = len(query.image.categories) > 1
        difficult = other_categories and float(region[0].double().mean()) < _DIFFICULT_AREA
        return {"difficult": difficult, **scores.to_dict()}

    def _on_others(
        self, placed: AttentionMap, query: QueryObject, shown: AnnotatedImage
    ) -> dict[str, float]:
        """Return the scores of a map on the objects of other categories, without its own pixels.

        A map that shows all objects alike has the same scores on these as on its own.
        """
        others = [each for each in query.image.categories if each != query.category]
        masks = [query.image.region_masks(each)[0] & ~shown.region_masks()[0] for each in others]
        values = placed.resize_to_image().cpu()
        regions = [torch.from_numpy(mask) for mask in masks if mask.any()]
        rows = [localization_scores(values, region, region, self.rule) for region in regions]
        if not rows:
            return {}
        return {
            "other_point": sum(row.point for row in rows) / len(rows),
            "other_energy": sum(row.energy for row in rows) / len(rows),
        }


def _region(shown: AnnotatedImage, geometry: Geometry) -> Region | None:
    """Return mask and boxes of the objects; None if they lie outside the input."""
    mask, boxes = (torch.from_numpy(part) for part in shown.region_masks())
    ones = AttentionMap(torch.ones(1, 1), "input", "gradient", geometry)
    return (mask, boxes) if bool((mask & ones.resize_to_image().isfinite()).any()) else None


def _seed(query: QueryObject) -> int:
    """Return a seed that depends only on the query, not on its batch or the machine."""
    return zlib.crc32(f"{query.image.name}\n{query.category}".encode())


def _other_class(index: int, seed: int, num_classes: int) -> int:
    """Return a random class that is not the explained one."""
    generator = torch.Generator().manual_seed(seed)
    other = int(torch.randint(num_classes - 1, (), generator=generator))
    return other + (other >= index)  # of 4 classes without class 1, 0 1 2 become 0 2 3


def _stacked(maps: Sequence[AttentionMap]) -> Float[Tensor, "b gy gx"]:
    return torch.stack([attention_map.values for attention_map in maps])


def _names(query: QueryObject) -> dict[str, Any]:
    return {"image": query.image.name, "category": query.category}
