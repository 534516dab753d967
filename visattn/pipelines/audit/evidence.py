"""The pass of an audit over photos: prediction, evidence in each cell, features at its maxima."""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Int
from torch import Tensor, nn

from visattn.attribution.layer_outputs import intercept_layer
from visattn.attribution.methods import METHODS, get_method
from visattn.attribution.targets import probabilities
from visattn.geometry.affine import Geometry
from visattn.geometry.placement import GridPlacement
from visattn.images.reader import LoadedImage
from visattn.metrics.sanity_checks import cascading_module_groups, shuffle_weights
from visattn.pipelines.audit.cells import CellGrid, separate_maxima
from visattn.pipelines.explainer import Explainer
from visattn.pipelines.inputs import PreparedImages
from visattn.recording.feature_layers import resolve_feature_layer, to_grid
from visattn.recording.frozen import without_grad
from visattn.recording.model_info import ExplainedModel, FeatureLayer, ModelInfo
from visattn.recording.outputs import OutputLayout, class_scores
from visattn.results.attention_map import AttentionMap
from visattn.results.records import pack_array, unpack_array

CELLS = 8  # of a photo, with the most evidence: a frame has its own beside those of the object
_MIN_GRID = 8  # rows and columns of the layer whose features tell patches apart
_MOST_LOG_ODDS = 36.0  # 1 - p is not known better in float64


@dataclass(frozen=True, eq=False)
class CellSample:
    """Cells of a photo with their features.

    Args:
        cells: Row and column of each.
        features: Activations there, minus their mean over the photo: what the cell has and the
            photo as a whole has not.
    """

    cells: Int[np.ndarray, "n 2"]
    features: Float32[np.ndarray, "n c"]

    def to_dict(self) -> dict[str, Any]:
        """Return the sample as values of JSON."""
        return {
            "cells": self.cells.tolist(),
            "features": pack_array(self.features.astype(np.float16)),
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> "CellSample":
        """Return the sample from the dictionary of `to_dict`."""
        cells = np.array(plain["cells"], dtype=np.int64).reshape(-1, 2)
        return cls(cells, unpack_array(plain["features"]).astype(np.float32))


@dataclass(frozen=True, eq=False)
class PhotoEvidence:
    """What a model says of a photo, and where its evidence lies.

    Args:
        name: Name of the photo.
        prediction: Index of the predicted class, which the evidence is for.
        probability: Its probability.
        log_odds: Its log-odds, in nats.
        label: Index of the true class; None if it is not known.
        shares: Share of the evidence in each cell; zeros if there is none.
        areas: Share of the visible photo that each cell covers; 0 on padding.
        objects: Fraction of each cell that lies on annotated objects; None without these.
        geometry: Where the input lies on the photo.
        top: Cells with the most evidence.
        attributes: Brightness, contrast, saturation, aspect ratio, share that the model saw.
        regions: Share of the evidence in the regions of a photo.
        random: Cells drawn at random, for controls.
        untrained: Share of the evidence in each cell after the weights behind the layer of the
            features were shuffled.
        untrained_top: Its cells with the most evidence.
    """

    name: str
    prediction: int
    probability: float
    log_odds: float
    label: int | None
    shares: Float[np.ndarray, "gy gx"]
    areas: Float[np.ndarray, "gy gx"]
    objects: Float[np.ndarray, "gy gx"] | None
    geometry: Geometry
    top: CellSample
    attributes: Mapping[str, float] = field(default_factory=dict)
    regions: Mapping[str, float] = field(default_factory=dict)
    random: CellSample | None = None
    untrained: Float[np.ndarray, "gy gx"] | None = None
    untrained_top: CellSample | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the evidence as values of JSON."""
        plain: dict[str, Any] = {
            "name": self.name, "prediction": self.prediction, "probability": self.probability,
            "log_odds": self.log_odds, "label": self.label, "geometry": self.geometry.to_dict(),
            "attributes": dict(self.attributes), "regions": dict(self.regions),
        }  # fmt: skip
        for key in ("shares", "areas", "objects", "untrained"):
            values = getattr(self, key)
            plain[key] = None if values is None else pack_array(values.astype(np.float32))
        for key in ("top", "random", "untrained_top"):
            sample = getattr(self, key)
            plain[key] = None if sample is None else sample.to_dict()
        return plain

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> "PhotoEvidence":
        """Return the evidence from the dictionary of `to_dict`."""
        values = dict(plain)
        for key in ("shares", "areas", "objects", "untrained"):
            known = values[key]
            values[key] = None if known is None else unpack_array(known).astype(np.float64)
        for key in ("top", "random", "untrained_top"):
            known = values[key]
            values[key] = None if known is None else CellSample.from_dict(known)
        values["geometry"] = Geometry.from_dict(values["geometry"])
        return cls(**values)


def class_log_odds(
    scores: Float[Tensor, "b k"], layout: OutputLayout | None = None
) -> Float[Tensor, "b k"]:
    """Return log p / (1 - p) of each class, in nats.

    Example:
        >>> class_log_odds(torch.tensor([[0.0, 2.0]]))
        tensor([[-2.0000, 2.0000]], dtype=torch.float64)
    """
    shares = probabilities(scores.double(), layout)
    return torch.logit(shares.clamp(1e-16, 1 - 1e-16)).clamp(-_MOST_LOG_ODDS, _MOST_LOG_ODDS)


def evidence_layer(info: ModelInfo) -> int:
    """Return which feature layer tells patches apart: the last with at least 8 rows and columns.

    Raises:
        ValueError: If the model has no layer whose features lie on a grid.
    """
    layers = info.feature_layers
    if not layers:
        reason = info.features_error or "it has no layer whose features lie on a grid"
        raise ValueError(
            f"{info.name} cannot be audited: {reason}; name one of its modules, layer="
        )
    fine = [number for number, each in enumerate(layers) if min(each.grid) >= _MIN_GRID]
    finest = max(range(len(layers)), key=lambda number: min(layers[number].grid))
    return fine[-1] if fine else finest


class Examiner:
    """Computes the evidence of a model on photos, in one pass.

    Args:
        explainer: The model.
        method: Attribution method; one of class activation maps explains the layer of features.
        layer: Layer of the features, as `explain` names it; by default the last one with at least
            8 rows and columns.
        seed: Seed of random cells and of shuffled weights.

    Raises:
        ValueError: If the method or the layer does not fit the model.
    """

    def __init__(
        self,
        explainer: Explainer,
        method: str = "hirescam",
        *,
        layer: int | str | None = None,
        seed: int = 0,
    ) -> None:
        self.explainer = explainer
        self.method = method
        self.seed = seed
        self._layer = layer
        self.takes_layer = method in METHODS and get_method(method).needs == "features"
        self._shuffled: list[tuple[nn.Parameter, Tensor]] | None = None
        self.placement: GridPlacement | None = None
        self.grid: tuple[int, int] = (0, 0)

    def __call__(
        self,
        images: Sequence[LoadedImage],
        labels: Sequence[int | None],
        masks: Sequence[Bool[np.ndarray, "y x"] | None],
        controls: Sequence[bool],
    ) -> list[PhotoEvidence]:
        """Return the evidence on each photo.

        Args:
            images: The photos.
            labels: Index of the true class of each.
            masks: Annotated objects of each.
            controls: Whether controls are computed for it.
        """
        batch = self.explainer.prepare(images)
        explained = self.explainer.analyze(batch)
        layer = self._resolve(explained)
        first = self._run(explained, batch, layer)
        chosen = [row for row, control in enumerate(controls) if control]
        shuffled: dict[int, tuple[Any, int]] = {}
        if chosen:
            if self._shuffled is None:
                self._shuffled = _shuffled_weights(
                    explained.model, later_modules(explained.model, layer), self.seed
                )
            with _exchanged(self._shuffled):
                run = self._run(explained, batch.select(chosen), layer)
            shuffled = {row: (run, number) for number, row in enumerate(chosen)}
        rows = zip(images, labels, masks, strict=True)
        return [
            self._evidence(index, image, label, mask, first, shuffled.get(index))
            for index, (image, label, mask) in enumerate(rows)
        ]

    def locate(self, image: LoadedImage) -> None:
        """Find out where the cells of the layer lie, which the first photos do otherwise.

        Args:
            image: A photo.
        """
        self._resolve(self.explainer.analyze(self.explainer.prepare([image])))

    def _resolve(self, explained: ExplainedModel) -> FeatureLayer:
        chosen = evidence_layer(explained.info) if self._layer is None else self._layer
        layer = resolve_feature_layer(explained, chosen)
        self.grid, self.placement = layer.grid, layer.placement
        return layer

    def _run(self, explained: ExplainedModel, batch: PreparedImages, layer: FeatureLayer) -> "_Run":
        outputs: list[Tensor] = []

        def keep(output: Tensor) -> Tensor:
            outputs.append(output.detach().clone())  # the model may overwrite it
            return output

        target = _PredictedClass(explained.info.output)
        maps: list[AttentionMap] = []
        options = {"layer": _layer_name(layer)} if self.takes_layer else {}
        with intercept_layer(explained, layer, keep):
            if self.takes_layer:  # scores, features and map of one pass
                maps = self.explainer.map(batch, self.method, target, **options)
            else:
                with without_grad(explained.model):
                    target(explained.forward(batch.inputs))
        if not self.takes_layer:
            maps = self.explainer.map(batch, self.method, target.classes.tolist())
        features = to_grid(outputs[-1], layer).float().cpu().numpy()
        return _Run(batch, target.scores, maps, features, explained.info.output, layer)

    def _evidence(
        self,
        index: int,
        image: LoadedImage,
        label: int | None,
        mask: Bool[np.ndarray, "y x"] | None,
        run: "_Run",
        shuffled: "tuple[_Run, int] | None",
    ) -> PhotoEvidence:
        cells = CellGrid.of(run.layer.placement, run.layer.grid, run.batch.geometries[index])
        areas = cells.areas
        prediction, probability, log_odds = run.predicted(index)
        shares, top = run.evidence(index, cells, areas)
        more: dict[str, Any] = {}
        if shuffled is not None:
            other, number = shuffled
            more["untrained"], more["untrained_top"] = other.evidence(number, cells, areas)
            more["random"] = run.sample(index, self._random_cells(image.name, cells), areas)
        regions = {
            name: float((shares * fraction).sum())
            for name, fraction in cells.region_fractions().items()
        }
        return PhotoEvidence(
            image.name, prediction, probability, log_odds, label, shares, areas,
            None if mask is None else cells.mask_fractions(mask),
            cells.geometry, top, photo_attributes(image, cells.geometry), regions, **more,
        )  # fmt: skip

    def _random_cells(self, name: str, cells: CellGrid) -> Int[np.ndarray, "n 2"]:
        generator = np.random.default_rng([self.seed, zlib.crc32(name.encode())])
        order = generator.random(cells.grid) * cells.is_visible
        return separate_maxima(order, CELLS)


@dataclass(frozen=True, eq=False)
class _Run:
    """Scores, maps and features of a batch."""

    batch: PreparedImages
    scores: Float[Tensor, "b k"]
    maps: Sequence[AttentionMap]
    features: Float32[np.ndarray, "b c gy gx"]
    layout: OutputLayout
    layer: FeatureLayer

    def predicted(self, index: int) -> tuple[int, float, float]:
        """Return the predicted class of a photo, its probability and its log-odds."""
        row = self.scores[index : index + 1]
        prediction = int(row.argmax())
        share = float(probabilities(row, self.layout)[0, prediction])
        return prediction, share, float(class_log_odds(row, self.layout)[0, prediction])

    def evidence(
        self, index: int, cells: CellGrid, areas: Float[np.ndarray, "gy gx"]
    ) -> tuple[Float[np.ndarray, "gy gx"], CellSample]:
        """Return the shares of the evidence, and its maxima with their features."""
        placed = self.maps[index]
        values = placed.values.double().numpy()
        if values.shape != cells.grid or placed.placement != self.layer.placement:
            values = cells.resample(np.nan_to_num(values), placed.placement)
        positive = np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0).clip(0)
        maxima = separate_maxima(positive * cells.is_visible, CELLS)
        return cells.shares(values), self.sample(index, maxima, areas)

    def sample(
        self, index: int, cells: Int[np.ndarray, "n 2"], areas: Float[np.ndarray, "gy gx"]
    ) -> CellSample:
        """Return cells with their features."""
        values = self.features[index]
        mean = values.reshape(len(values), -1).astype(np.float64) @ areas.ravel()
        return CellSample(cells, values[:, cells[:, 0], cells[:, 1]].T - mean.astype(np.float32))


class _PredictedClass:
    """Score of the class that is predicted at the first call, whose scores are kept."""

    def __init__(self, layout: OutputLayout) -> None:
        self.layout = layout
        self.scores = torch.zeros(0, 0)
        self.classes = torch.zeros(0).long()

    def __call__(self, output: Any) -> Float[Tensor, " b"]:
        """Return the score of each image."""
        scores = class_scores(output, layout=self.layout)
        if not self.scores.numel():
            self.scores = scores.detach().double().cpu()
            self.classes = self.scores.argmax(1)
        return scores.gather(1, self.classes.to(scores.device)[:, None])[:, 0]


def _layer_name(layer: FeatureLayer) -> str:
    return layer.site if layer.call is None else f"{layer.site}#{layer.call}"


def later_modules(model: nn.Module, layer: FeatureLayer) -> list[str]:
    """Return the modules with weights behind a layer, in the order of the model.

    Example:
        >>> model = nn.Sequential(nn.Conv2d(3, 2, 1), nn.ReLU(), nn.Linear(4, 2))
        >>> later_modules(model, FeatureLayer("1", "b c y x", (2, 2)))
        ['2']
    """
    order = [site for site, _ in model.named_modules()]
    inside = [at for at, site in enumerate(order) if f"{site}.".startswith(f"{layer.site}.")]
    weighted = {site for group in cascading_module_groups(model, len(order)) for site in group}
    return [site for site in order[max(inside, default=0) + 1 :] if site in weighted]


def _shuffled_weights(
    model: nn.Module, sites: Sequence[str], seed: int
) -> list[tuple[nn.Parameter, Tensor]]:
    """Return the own weights of modules, each with its numbers in another order."""
    weights = [w for site in sites for w in model.get_submodule(site).parameters(recurse=False)]
    with shuffle_weights(model, sites, seed):
        after = [weight.detach().clone() for weight in weights]
    return list(zip(weights, after, strict=True))


@contextmanager
def _exchanged(weights: Sequence[tuple[nn.Parameter, Tensor]]) -> Iterator[None]:
    """Give parameters other values inside the block.

    The tensors are exchanged, not written: what was measured of the trained model stays valid.
    """
    own = [weight.data for weight, _ in weights]
    try:
        for weight, values in weights:
            weight.data = values
        yield
    finally:
        for (weight, _), values in zip(weights, own, strict=True):
            weight.data = values


def photo_attributes(image: LoadedImage, geometry: Geometry) -> dict[str, float]:
    """Return simple properties of a photo: brightness, contrast, saturation, 0 to 1, and shape."""
    height, width = image.size
    step = max(1, min(height, width) // 64)
    # Whole channels: numpy takes ten times as long over an axis of three.
    channels = np.moveaxis(image.pixels[::step, ::step], 2, 0).astype(np.float64, order="C") / 255
    red, green, blue = channels
    light = (red + green + blue) / 3
    highest, lowest = (each(each(red, green), blue) for each in (np.maximum, np.minimum))
    return {
        "brightness": round(float(light.mean()), 4),
        "contrast": round(float(light.std()), 4),
        "saturation": round(float((highest - lowest).mean()), 4),
        "aspect_ratio": round(width / height, 4),
        "seen_share": round(geometry.seen_share, 4),
    }
