"""Evaluation of attribution maps on annotated images: localization, faithfulness, sanity checks."""

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, cast

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
    PerturbationEnds,
    PerturbationSchedule,
    ScoreFunction,
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

PARTS = ("localization", "insertion_deletion", "road")
_DIFFICULT_AREA = 0.25  # of the image; larger objects are hit by a central map


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


def count_classes(explained: Subject) -> int:
    """Return the number of classes of a model, from its class names or one forward pass."""
    if explained.class_names:
        return len(explained.class_names)
    weight = next(explained.model.parameters(), torch.zeros(()))
    blank = weight.new_zeros(1, len(explained.info.mean), *explained.info.input_size)
    with torch.no_grad():
        return explained.scores(blank).shape[1]


class _Perturbation(NamedTuple):
    """How variants of a batch of images are scored, for all methods."""

    score_function: ScoreFunction
    variants_per_batch: int
    ends: PerturbationEnds | None


@dataclass(frozen=True)
class MapEvaluator:
    """Computes maps with methods and baselines, and their scores.

    Args:
        explainer: The model with its preprocessing.
        parts: Scores to compute: `localization`, `insertion_deletion`, `road`.
        rule: Tolerance and threshold of the localization scores.
        schedule: Steps of pixel removal.
        seed: Seed of random maps, the order of equal pixels, noise and randomized weights.
    """

    explainer: Explainer
    parts: Sequence[str] = PARTS
    rule: LocalizationRule = field(default_factory=LocalizationRule)
    schedule: PerturbationSchedule = field(default_factory=PerturbationSchedule)
    seed: int = 0

    @property
    def explained(self) -> Subject:
        """The model with its metadata."""
        return self.explainer.analyze()

    def check_methods(self, methods: Sequence[str]) -> None:
        """Check that all methods exist and fit the model.

        Raises:
            ValueError: If one does not, with the methods that do.
        """
        for name in methods:
            if name not in BASELINES:
                self.explainer.check(name)

    def evaluate(
        self,
        queries: Sequence[QueryObject],
        images: Sequence[LoadedImage],
        methods: Sequence[str],
    ) -> Iterator[dict[str, Any]]:
        """Yield the scores of each method on each query.

        Args:
            queries: Objects to explain.
            images: Their images, upright, in the same order.
            methods: Names of methods or baselines.
        """
        batch = self._prepare(images)
        class_indices, predictions = self._predict(batch, queries)
        pairs = zip(queries, batch.geometries, strict=True)
        localized = "localization" in self.parts
        regions = [self._region(*pair) if localized else None for pair in pairs]
        seeds = [self._query_seed(query) for query in queries]
        perturbation = self._perturbation(batch.inputs, class_indices)
        for method in methods:
            maps = self._compute_maps(method, batch, class_indices, seeds)
            faithfulness = self._faithfulness(perturbation, batch.inputs, maps, seeds)
            for index, query in enumerate(queries):
                constant = is_constant_map(maps[index].values)
                row = {"kind": "score", **_query_key(query), "method": method, **predictions[index]}
                row |= {"constant_map": constant}
                row |= self._localization(maps[index], regions[index], query)
                if not constant:
                    row |= {name: float(values[index]) for name, values in faithfulness.items()}
                yield row

    def sanity_checks(
        self,
        queries: Sequence[QueryObject],
        images: Sequence[LoadedImage],
        methods: Sequence[str],
        *,
        steps: int = 6,
    ) -> Iterator[dict[str, Any]]:
        """Yield how much the maps of each method depend on the model and on the target.

        Args:
            queries: Objects to explain.
            images: Their images, upright, in the same order.
            methods: Names of methods or baselines.
            steps: Steps in which the weights are randomized, from the classifier downwards.

        Yields:
            For each method and query `randomized`, the similarity of the map to the original after
            each step, and `other_class`, that to the map of a random other class.

        Source:
            Adebayo et al. 2018, arXiv:1810.03292, section 3.1; Sixt et al. 2020,
            arXiv:1912.09818, section 5, random logit.
        """
        batch = self._prepare(images)
        class_indices, predictions = self._predict(batch, queries)
        others = self._other_classes(queries, class_indices, int(predictions[0]["classes"]))
        seeds = [self._query_seed(query) for query in queries]
        for method in methods:

            def maps(indices: Sequence[int] = class_indices, method: str = method) -> Tensor:
                return _stacked(self._compute_maps(method, batch, indices, seeds))

            other = map_similarity(maps(), maps(others))
            similarity = cascading_randomization(
                self.explained.model, maps, num_steps=steps, seed=self.seed
            )
            for index, query in enumerate(queries):
                yield {
                    "kind": "check",
                    **_query_key(query),
                    "method": method,
                    "randomized": similarity[index].tolist(),
                    "other_class": float(other[index]),
                }

    def _prepare(self, images: Sequence[LoadedImage]) -> PreparedImages:
        """Return prepared images; an image that occurs several times is prepared once."""
        unique = {id(image): image for image in images}
        rows = {key: row for row, key in enumerate(unique)}
        batch = self.explainer.prepare(list(unique.values()))
        return batch.select([rows[id(image)] for image in images])

    def _predict(
        self, batch: PreparedImages, queries: Sequence[QueryObject]
    ) -> tuple[list[int], list[dict[str, Any]]]:
        """Return the class to explain on each image, and what the model predicts for it."""
        with torch.no_grad():
            scores = self.explained.scores(batch.inputs).float()
        predicted = scores.argmax(1).tolist()
        class_indices = [
            max(query.classes, key=row.__getitem__) if query.classes else prediction
            for query, row, prediction in zip(queries, scores.tolist(), predicted, strict=True)
        ]
        shares = probabilities(scores, self.explained.info.output)
        triples = zip(queries, class_indices, predicted, strict=True)
        return class_indices, [
            {
                "classes": scores.shape[1],
                "class": class_index,
                "prediction": prediction,
                "correct": prediction in query.classes if query.classes else None,
                "probability": float(shares[index, class_index]),
            }
            for index, (query, class_index, prediction) in enumerate(triples)
        ]

    def _compute_maps(
        self,
        method: str,
        batch: PreparedImages,
        class_indices: Sequence[int],
        seeds: Sequence[int],
    ) -> list[AttentionMap]:
        """Return the map of each image, placed on it."""
        if method in BASELINES:
            pairs = zip(BASELINES[method](batch.inputs, seeds), batch.geometries, strict=True)
            return [AttentionMap(values, method, "gradient", place) for values, place in pairs]
        return self.explainer.map(batch, method, list(class_indices))

    def _perturbation(
        self, inputs: Float[Tensor, "b c y x"], class_indices: Sequence[int]
    ) -> _Perturbation | None:
        """Return what the faithfulness scores of all methods need, or None without such scores."""
        if not {"insertion_deletion", "road"} & set(self.parts):
            return None
        with torch.no_grad():
            score, count, _ = variant_scorer(
                self.explained, inputs, class_target(class_indices), score_type="probabilities"
            )

            def score_function(batch: Float[Tensor, "mb c y x"]) -> Float[Tensor, " mb"]:
                return score(batch.unflatten(0, (-1, len(inputs)))).flatten()

            ends = None
            if "insertion_deletion" in self.parts:
                ends = perturbation_ends(score_function, inputs, self.schedule)
        return _Perturbation(score_function, count, ends)

    def _faithfulness(
        self,
        perturbation: _Perturbation | None,
        inputs: Float[Tensor, "b c y x"],
        maps: Sequence[AttentionMap],
        seeds: Sequence[int],
    ) -> dict[str, Float[Tensor, " b"]]:
        """Return the faithfulness scores; for constant maps they have no meaning."""
        results: dict[str, Tensor] = {}
        if perturbation is None:
            return results
        score_function, count, ends = perturbation
        size = (inputs.shape[2], inputs.shape[3])
        values = _stacked(maps).nan_to_num(0.0, 0.0, 0.0).to(inputs.device)
        fine = resample_to_input(values, size, maps[0].margin)
        ranks = pixel_ranks(fine, size, seeds)
        if "insertion_deletion" in self.parts:
            results |= insertion_deletion(
                score_function, inputs, ranks, self.schedule, ends=ends, variants_per_batch=count
            )
        if "road" in self.parts:
            results |= road_scores(
                score_function, inputs, ranks, self.schedule, seeds, variants_per_batch=count
            )
        return results

    def _region(
        self, query: QueryObject, geometry: Geometry
    ) -> tuple[Bool[Tensor, "y x"], Bool[Tensor, "y x"]] | None:
        """Return mask and boxes of the objects; None if they lie outside the input."""
        mask, boxes = (torch.from_numpy(part) for part in query.image.region_masks(query.category))
        ones = AttentionMap(torch.ones(1, 1), "input", "gradient", geometry)
        in_input = ones.resize_to_image().isfinite()
        return (mask, boxes) if bool((mask & in_input).any()) else None

    def _localization(
        self,
        attention_map: AttentionMap,
        region: tuple[Bool[Tensor, "y x"], Bool[Tensor, "y x"]] | None,
        query: QueryObject,
    ) -> dict[str, Any]:
        if "localization" not in self.parts:
            return {}
        if region is None:
            return {"outside_input": True}
        scores = localization_scores(attention_map.resize_to_image().cpu(), *region, self.rule)
        other_categories = len(query.image.categories) > 1
        difficult = other_categories and float(region[0].double().mean()) < _DIFFICULT_AREA
        return {"difficult": difficult, **scores.to_dict()}

    def _query_seed(self, query: QueryObject) -> int:
        """Return a seed that depends only on the query, not on its batch or the machine."""
        return self.seed + zlib.crc32(f"{query.image.name}\n{query.category}".encode())

    def _other_classes(
        self, queries: Sequence[QueryObject], class_indices: Sequence[int], num_classes: int
    ) -> list[int]:
        """Return a random class for each image that is not the explained one."""
        if num_classes < 2:
            raise ValueError("the check with another class needs a model with at least 2 classes")
        others: list[int] = []
        for query, class_index in zip(queries, class_indices, strict=True):
            generator = torch.Generator().manual_seed(self._query_seed(query))
            other = int(torch.randint(num_classes - 1, (), generator=generator))
            # Skips the explained class: of 4 classes without class 1, 0 1 2 become 0 2 3.
            others.append(other + (other >= class_index))
        return others


def _stacked(maps: Sequence[AttentionMap]) -> Float[Tensor, "b gy gx"]:
    return torch.stack([attention_map.values for attention_map in maps])


def _query_key(query: QueryObject) -> dict[str, Any]:
    return {"image": query.image.name, "category": query.category}


DenseKind = Literal["region", "box"]


@dataclass(frozen=True)
class DenseMapEvaluator(MapEvaluator):
    """Computes maps of the objects of photos, and scores each on its own object and the others.

    A map that shows all objects alike has the same scores on other objects as on its own.

    Args:
        kind: What is explained: the `region` of all objects of a category, for segmentation models;
            or the `box` of the largest one, for detectors.
    """

    kind: DenseKind = "region"

    def check_methods(self, methods: Sequence[str]) -> None:
        """Check that all methods exist and fit the model.

        Raises:
            ValueError: If one does not, with the methods that do.
        """
        example = BoxTarget(None) if self.kind == "box" else RegionTarget(0)
        for name in methods:
            if name not in BASELINES:
                self.explainer.check(name, example)

    def evaluate(
        self,
        queries: Sequence[QueryObject],
        images: Sequence[LoadedImage],
        methods: Sequence[str],
    ) -> Iterator[dict[str, Any]]:
        """Yield the scores of each method on each query, photo by photo.

        An object that the model does not detect is `missed`, and has no scores.

        Args:
            queries: Objects to explain.
            images: Their images, upright, in the same order.
            methods: Names of methods or baselines.
        """
        for query, image in zip(queries, images, strict=True):
            batch = self.explainer.prepare([image])
            own = self._own_image(query)
            target, missed = self._target(query, own, batch)
            region = self._region(replace(query, image=own), batch.geometries[0])
            for method in methods:
                row = {"kind": "score", "image": query.image.name, "category": query.category}
                row |= {"method": method, "class": query.classes[0], "correct": None}
                if missed:
                    yield row | {"missed": missed}
                    continue
                placed = self._placed_map(method, batch, target, self._query_seed(query))
                row |= {"constant_map": is_constant_map(placed.values)}
                row |= self._localization(placed, region, query)
                yield row | self._others(placed, query, own)

    def _own_image(self, query: QueryObject) -> AnnotatedImage:
        """Return the photo with only the objects that are explained."""
        objects = [each for each in query.image.objects if each.category == query.category]
        if self.kind == "box":
            single = [each for each in objects if not each.crowd] or objects
            masks = [replace(query.image, objects=(each,)).region_masks()[0] for each in single]
            objects = [single[int(np.argmax([mask.sum() for mask in masks]))]]
        return replace(query.image, objects=tuple(objects))

    def _target(
        self, query: QueryObject, own: AnnotatedImage, batch: PreparedImages
    ) -> tuple[DenseTarget, str]:
        """Return the target, and why the model has no output for it; "" if it has."""
        mask, boxes = own.region_masks()
        label = query.classes[0]
        target: DenseTarget = RegionTarget(label, mask)
        if self.kind == "box":
            rows, columns = (np.nonzero(boxes.any(axis))[0] for axis in (1, 0))
            edges = (columns[0], rows[0], columns[-1] + 1, rows[-1] + 1)
            target = BoxTarget(cast("Any", tuple(map(float, edges))), label)
        explained = self.explainer.analyze(batch)
        try:
            with torch.no_grad():
                target.bind(explained, batch.geometries)(explained.forward(batch.inputs))
        except ValueError as error:
            return target, str(error)
        return target, ""

    def _placed_map(
        self, method: str, batch: PreparedImages, target: DenseTarget, seed: int
    ) -> AttentionMap:
        if method in BASELINES:
            [values] = BASELINES[method](batch.inputs, [seed])
            return AttentionMap(values, method, "gradient", batch.geometries[0])
        [placed] = self.explainer.map(batch, method, target)
        return placed

    def _others(
        self, placed: AttentionMap, query: QueryObject, own: AnnotatedImage
    ) -> dict[str, float]:
        """Return the scores of a map on the objects of other categories, without its own pixels."""
        mine = own.region_masks()[0]
        masks = [
            query.image.region_masks(category)[0] & ~mine
            for category in query.image.categories
            if category != query.category
        ]
        values = placed.resize_to_image().cpu()
        rows = [
            localization_scores(values, region, region, self.rule)
            for region in map(torch.from_numpy, masks)
            if bool(region.any())
        ]
        if not rows:
            return {}
        return {
            "other_point": sum(row.point for row in rows) / len(rows),
            "other_energy": sum(row.energy for row in rows) / len(rows),
        }
