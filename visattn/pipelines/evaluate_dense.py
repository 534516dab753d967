"""Evaluation of maps of segmentation and detection models: one object against the others."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import numpy as np
import torch

from visattn.attribution.dense_targets import BoxTarget, DenseTarget, RegionTarget
from visattn.attribution.saliency import BASELINES
from visattn.data.regions.annotations import AnnotatedImage
from visattn.images.reader import LoadedImage
from visattn.metrics.localization import is_constant_map, localization_scores
from visattn.pipelines.evaluate_maps import MapEvaluator, QueryObject
from visattn.pipelines.inputs import PreparedImages
from visattn.results.attention_map import AttentionMap

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
        [placed] = self.explainer.map(batch, method, target, keep_empty=True)
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
