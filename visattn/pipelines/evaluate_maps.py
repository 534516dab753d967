"""Evaluation of attribution maps on annotated images: localization, faithfulness, sanity checks.

The criteria depend on what a map explains:

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
from visattn.attribution.targets import DenseTarget, Score, probabilities
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
from visattn.metrics.localization import is_constant_map, localization_scores
from visattn.metrics.sanity_checks import cascading_randomization, map_similarity
from visattn.pipelines.explainer import Explainer
from visattn.pipelines.inputs import PreparedImages
from visattn.recording.subject import Subject
from visattn.results.attention_map import AttentionMap, resample_to_input

_DIFFICULT_AREA = 0.25  # share of the image; a centered map hits larger objects
Region = tuple[Bool[Tensor, "y x"], Bool[Tensor, "y x"]]
"""Mask and boxes of the objects of a query."""


@dataclass(frozen=True)
class QueryObject:
    """Objects of one category in an image, which a map should highlight.

    Args:
        image: Annotated image.
        category: Category of the objects; None for all objects and the predicted class.
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
    """Return the objects to explain, and the number of images per category that has no class.

    Args:
        images: Images with their objects.
        class_names: Class names of the model; may be empty.
        num_classes: Number of its classes.
        predicted: Whether to explain the predicted class and count all objects; otherwise each
            category in an image is explained, if the model has a class for it.

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
        tolerance: Distance in pixels at which the peak of a map still hits an object.
        schedule: Steps of pixel removal.
    """

    explainer: Explainer
    kind: Literal["class", "region", "box"] = "class"
    tolerance: float = 0.0
    schedule: PerturbationSchedule = field(default_factory=PerturbationSchedule)

    def check_methods(self, methods: Sequence[str]) -> None:
        """Check that all methods exist and fit the model, before hours of computation.

        Raises:
            ValueError: If a method does not; the message lists those that do.
        """
        examples = {"class": None, "region": RegionTarget(0), "box": BoxTarget(None)}
        for name in methods:
            if name not in BASELINES:
                self.explainer.check(name, examples[self.kind])

    def evaluate(
        self, queries: Sequence[QueryObject], image: LoadedImage, methods: Sequence[str]
    ) -> Iterator[dict[str, Any]]:
        """Yield the scores of each method on each query of an image.

        An object that the model does not detect has `missed`, and no scores.

        Args:
            queries: Objects to explain.
            image: Their image, upright.
            methods: Names of methods or baselines.
        """
        batch = self.explainer.prepare([image])
        for query in queries:
            shown = self._shown(query)
            target, facts = self._target(query, shown, batch)
            if "missed" in facts:
                yield from (_row("score", query, method) | facts for method in methods)
                continue
            region = _region(shown, batch.geometries[0])
            of_class = self.kind == "class"
            faithfulness = self._faithfulness(batch.inputs, target, query) if of_class else None
            for method in methods:
                made = self._map(method, batch, target, query)
                constant = is_constant_map(made.values)
                row = _row("score", query, method) | facts | {"constant_map": constant}
                row |= self._localization(made, region, query)
                if not of_class:
                    row |= self._on_others(made, query, shown)
                if faithfulness and not constant:
                    row |= faithfulness(made)
                yield row

    def sanity_checks(
        self,
        queries: Sequence[QueryObject],
        image: LoadedImage,
        methods: Sequence[str],
        *,
        steps: int = 6,
    ) -> Iterator[dict[str, Any]]:
        """Yield how much the maps of each method depend on the weights and on the class.

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
        batch = self.explainer.prepare([image])
        model = self.explainer.analyze().model
        for query in queries:
            label, facts = self._class(query, batch)
            other = _other_class(label, _seed(query), facts["classes"])
            for method in methods:

                def maps(label: int = label, method: str = method) -> Float[Tensor, "1 gy gx"]:
                    return self._map(method, batch, label, query).values[None]  # noqa: B023

                similarity = cascading_randomization(model, maps, num_steps=steps)
                yield _row("check", query, method) | {
                    "randomized": similarity[0].tolist(),
                    "other_class": float(map_similarity(maps(), maps(other))),
                }

    def _shown(self, query: QueryObject) -> AnnotatedImage:
        """Return the annotated image with only the objects that are explained."""
        image = query.image
        if query.category is None:
            return image
        objects = [each for each in image.objects if each.category == query.category]
        if self.kind == "box":
            single = [each for each in objects if not each.crowd] or objects
            masks = [replace(image, objects=(each,)).region_masks()[0] for each in single]
            objects = [single[int(np.argmax([mask.sum() for mask in masks]))]]
        return replace(image, objects=tuple(objects))

    def _target(
        self, query: QueryObject, shown: AnnotatedImage, batch: PreparedImages
    ) -> tuple[Any, dict[str, Any]]:
        """Return the target of a query, and what the model predicts for it."""
        if self.kind == "class":
            return self._class(query, batch)
        mask, boxes = shown.region_masks()
        label = query.classes[0]
        target: DenseTarget = RegionTarget(label, mask)
        if self.kind == "box":
            rows, columns = (np.nonzero(boxes.any(axis))[0] for axis in (1, 0))
            edges = (columns[0], rows[0], columns[-1] + 1, rows[-1] + 1)
            target = BoxTarget(cast("Any", tuple(map(float, edges))), label)
        facts: dict[str, Any] = {"class": label, "correct": None}
        subject = self.explainer.analyze(batch)
        with torch.no_grad():
            output = subject.forward(batch.inputs)
        try:
            target.bind(subject, batch.geometries)(output)
        except ValueError as error:  # the model has no output for it
            facts["missed"] = str(error)
        return target, facts

    def _class(self, query: QueryObject, batch: PreparedImages) -> tuple[int, dict[str, Any]]:
        """Return the class to explain of a query, and what the model predicts."""
        subject = self.explainer.analyze()
        with torch.no_grad():
            scores = subject.scores(batch.inputs).float()
        best = int(scores.argmax())
        shown = max(query.classes, key=scores[0].tolist().__getitem__, default=best)
        return shown, {
            "classes": scores.shape[1],
            "class": shown,
            "prediction": best,
            "correct": best in query.classes if query.classes else None,
            "probability": float(probabilities(scores, subject.info.output)[0, shown]),
        }

    def _map(
        self, method: str, batch: PreparedImages, target: Any, query: QueryObject
    ) -> AttentionMap:
        """Return the map of a query, placed on the image."""
        if method in BASELINES:
            [values] = BASELINES[method](batch.inputs, [_seed(query)])
            return AttentionMap(values, method, "gradient", batch.geometries[0])
        return self.explainer.map(batch, method, target)[0]

    def _faithfulness(
        self, inputs: Float[Tensor, "1 c y x"], label: int, query: QueryObject
    ) -> Callable[[AttentionMap], dict[str, float]]:
        """Return a function from a map to its faithfulness scores; constant maps get none.

        Computations that all methods share are done once.
        """
        size, seeds = (inputs.shape[2], inputs.shape[3]), [_seed(query)]
        with torch.no_grad():
            score, count, _ = variant_scorer(
                self.explainer.analyze(), inputs, Score((label,)), score_type="probabilities"
            )

            def scored(variants: Float[Tensor, "m c y x"]) -> Float[Tensor, " m"]:
                return score(variants[:, None])[:, 0]

            ends = perturbation_ends(scored, inputs, self.schedule)

        def of_map(made: AttentionMap) -> dict[str, float]:
            values = made.values[None].nan_to_num(0.0, 0.0, 0.0).to(inputs.device)
            ranks = pixel_ranks(resample_to_input(values, size, made.margin), size, seeds)
            common = scored, inputs, ranks, self.schedule
            scores = insertion_deletion(*common, ends=ends, variants_per_batch=count)
            scores |= road_scores(*common, seeds, variants_per_batch=count)
            return {name: float(value) for name, value in scores.items()}

        return of_map

    def _localization(
        self, made: AttentionMap, region: Region | None, query: QueryObject
    ) -> dict[str, Any]:
        if region is None:
            return {"outside_input": True}
        values = made.resize_to_image().cpu()
        scores = localization_scores(values, *region, tolerance=self.tolerance)
        other_categories = len(query.image.categories) > 1
        difficult = other_categories and float(region[0].double().mean()) < _DIFFICULT_AREA
        return {"difficult": difficult, **scores}

    def _on_others(
        self, made: AttentionMap, query: QueryObject, shown: AnnotatedImage
    ) -> dict[str, float]:
        """Return the scores of a map on objects of other categories, without the query's pixels.

        A map that highlights all objects equally scores the same on these as on its own.
        """
        others = [each for each in query.image.categories if each != query.category]
        masks = [query.image.region_masks(each)[0] & ~shown.region_masks()[0] for each in others]
        values = made.resize_to_image().cpu()
        regions = [torch.from_numpy(mask) for mask in masks if mask.any()]
        rows = [
            localization_scores(values, each, each, tolerance=self.tolerance) for each in regions
        ]
        if not rows:
            return {}
        return {
            "other_point": sum(row["point"] for row in rows) / len(rows),
            "other_energy": sum(row["energy"] for row in rows) / len(rows),
        }


def _region(shown: AnnotatedImage, geometry: Geometry) -> Region | None:
    """Return mask and boxes of the objects; None if they are outside the input."""
    mask, boxes = (torch.from_numpy(part) for part in shown.region_masks())
    ones = AttentionMap(torch.ones(1, 1), "input", "gradient", geometry)
    return (mask, boxes) if bool((mask & ones.resize_to_image().isfinite()).any()) else None


def _seed(query: QueryObject) -> int:
    """Return a seed that depends only on the query, not on the batch or the machine."""
    return zlib.crc32(f"{query.image.name}\n{query.category}".encode())


def _other_class(index: int, seed: int, num_classes: int) -> int:
    """Return a random class that is not the explained one."""
    generator = torch.Generator().manual_seed(seed)
    other = int(torch.randint(num_classes - 1, (), generator=generator))
    return other + (other >= index)  # of 4 classes without class 1: 0, 1, 2 become 0, 2, 3


def _row(kind: str, query: QueryObject, method: str) -> dict[str, Any]:
    return {
        "kind": kind, "image": query.image.name, "category": query.category, "method": method,
    }  # fmt: skip
