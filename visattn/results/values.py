"""Results besides maps and captions: answers, scan paths, detections, segmentations."""

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float64, UInt8
from torch import Tensor

from visattn.geometry.affine import Box, Geometry, Margin
from visattn.results.attention_map import AttentionMap, truncate_text
from visattn.results.info import MapInfo
from visattn.results.kinds import BACKGROUND
from visattn.results.records import Result, shown


@dataclass(frozen=True, eq=False, repr=False)
class Answer(Result):
    """The answer to a question about an image, with its attention maps."""

    question: str
    words: tuple[str, ...]
    """Words of the question as the model reads them."""
    answers: tuple[tuple[str, float], ...]
    """The most probable answers and their probabilities, the best first."""
    maps: AttentionMap | None
    """One attention map per hop, named by its labels, placed on the original image; None if the
    model has no maps."""
    word_weights: Float[Tensor, "hops t"] | None = None
    """Attention to the words for each hop; None if the model does not attend to words."""
    unknown: tuple[str, ...] = ()
    """Words of the question that the model does not know."""
    image: str = ""
    """Name of the image file; "" if unknown."""
    notes: tuple[str, ...] = ()
    """Notes on the answer, such as unknown words, and settings of the maps."""

    @property
    def text(self) -> str:
        """The most probable answer."""
        return self.answers[0][0]

    def __repr__(self) -> str:
        """Return question and answer in one line."""
        text, probability = self.answers[0]
        question = truncate_text(self.question, 80)
        maps = "no maps" if self.maps is None else f"{len(self.maps)} maps"
        return f"Answer({question!r}: {text!r}, {format_percent(probability)}, {maps})"


class ReadLabel(NamedTuple):
    """A label that a glimpse model read."""

    name: str
    probability: float
    glimpse: int
    """Index of the glimpse after which it was read."""


def format_percent(probability: float) -> str:
    """Return a probability as a percentage; only 1.0 is formatted as 100 %.

    Example:
        >>> [format_percent(share) for share in (0.0, 0.003, 0.42, 0.9999, 1.0)]
        ['0 %', '<1 %', '42 %', '>99 %', '100 %']
    """
    if 0 < probability < 0.01:
        return "<1 %"
    return ">99 %" if 0.99 < probability < 1 else f"{100 * probability:.0f} %"


@dataclass(frozen=True, eq=False, repr=False)
class ScanPath(Result):
    """Locations, windows and predictions of a glimpse model on one image.

    Args:
        probabilities: Class probabilities after each glimpse.
        locations: x and y of each glimpse on the input of the network, in [-1, 1], the initial
            location included.
        boxes: Left, top, right and bottom of each window, finest scale first, in pixels of the
            original image; outside the image the network sees the pad value.
        patches: Content of each window, as the network sees it.
        pixels: Input of the network.
        geometry: Geometry of the input on the original image.
        info: Model, policy and seed.
        glimpses_per_label: Number of glimpses after which each label of a sequence is read; None
            for a model with a single label.
        end_class: Name of the class that ends a sequence.
    """

    class_names: tuple[str, ...]
    probabilities: Float64[Tensor, "t k"]
    locations: Float[Tensor, "t 2"]
    boxes: Float64[Tensor, "t s 4"]
    patches: UInt8[Tensor, "t s c g g"]
    pixels: UInt8[Tensor, "c y x"]
    geometry: Geometry
    info: MapInfo = field(default_factory=MapInfo)
    glimpses_per_label: int | None = None
    end_class: str | None = None

    def __repr__(self) -> str:
        """Return the scan path in one line."""
        return (
            f"ScanPath({truncate_text(self.prediction)}, probability {self.probability:.3f}, "
            f"{len(self.locations)} glimpses)"
        )

    def _repr_png_(self) -> bytes | None:
        """Return the scan path on the network's input for notebooks."""
        return shown(self)

    @property
    def labels(self) -> list[ReadLabel]:
        """Labels that the model read, in order, up to the end of the sequence."""
        step = self.glimpses_per_label or len(self.probabilities)
        labels: list[ReadLabel] = []
        for glimpse in range(step - 1, len(self.probabilities), step):
            share, best = self.probabilities[glimpse].max(0)
            labels.append(ReadLabel(self.class_names[int(best)], float(share), glimpse))
            if labels[-1].name == self.end_class:
                break
        return labels

    @property
    def prediction(self) -> str:
        """Predicted class after the last glimpse, or the labels of a sequence but its end."""
        names = [label.name for label in self.labels]
        return " ".join(name for name in names if name != self.end_class) or names[-1]

    @property
    def probability(self) -> float:
        """Probability of the prediction; of a sequence that of all its labels."""
        return math.prod(label.probability for label in self.labels)

    @property
    def tags(self) -> dict[int, str]:
        """The label read after a glimpse, by its index; empty if there is a single label."""
        if self.glimpses_per_label is None:
            return {}
        return {label.glimpse: label.name for label in self.labels}

    @cached_property
    def maps(self) -> AttentionMap:
        """A map per glimpse, placed on the original, of the resolution at which pixels are seen.

        It is 1 where pixels of the input are seen as they are, 1/2 where two by two are averaged,
        and so on; 0 elsewhere.

        Example:
            >>> boxes = torch.tensor([[[0.0, 0, 1, 2], [-1, 0, 3, 2]]], dtype=torch.float64)
            >>> seen = torch.zeros(1, 2, 1, 2, 2, dtype=torch.uint8)
            >>> place = Geometry.identity((2, 4))
            >>> path = ScanPath(("a",), torch.ones(1, 1).double(), torch.zeros(1, 2), boxes, seen,
            ...                 torch.zeros(1, 2, 4, dtype=torch.uint8), place)
            >>> path.maps.values[0, 0]
            tensor([1.0000, 0.5000, 0.5000, 0.0000])
        """
        # Boxes are windows of whole pixels of the input, in pixels of the image.
        windows = self.geometry.to_input(self.boxes.view(-1, 2)).view(self.boxes.shape).round()
        values = torch.zeros(len(windows), *self.geometry.input_size)
        for scale in reversed(range(windows.shape[1])):  # the finest scale overwrites the others
            boxes = windows[:, scale].long().clamp(min=0).tolist()
            for value, (left, top, right, bottom) in zip(values, boxes, strict=True):
                value[top:bottom, left:right] = 0.5**scale
        labels = tuple(str(number) for number in range(1, len(windows) + 1))
        return AttentionMap(values, "retina", "glimpse", self.geometry, self.info, labels)

    def until_end(self) -> "ScanPath":
        """Return the scan path up to the end of its sequence of labels."""
        names, count = (
            ("probabilities", "locations", "boxes", "patches"),
            self.labels[-1].glimpse + 1,
        )
        return replace(self, **{name: getattr(self, name)[:count] for name in names})


@dataclass(frozen=True)
class DetectedObject:
    """One detection.

    Args:
        label: Name of its class.
        score: Probability of the class, from 0 to 1.
        box: Left, top, right, bottom in pixels of the original image.
        query: Index of its query.
    """

    label: str
    score: float
    box: Box
    query: int


@dataclass(frozen=True, eq=False)
class Detections(Result):
    """The objects that queries of a detector found in one image, with what each query attended to.

    Args:
        objects: The detections, those of `detect` in descending order of their scores.
        maps: For each, the weight of each cell of the feature map in the cross-attention of its
            query (mean over heads), placed on the original image.
    """

    objects: tuple[DetectedObject, ...]
    maps: AttentionMap


@dataclass(frozen=True, eq=False)
class Segmentation(Result):
    """The segmentation of one photo.

    Args:
        labels: Class of each pixel of the photo; 255 outside of the network's input.
        class_names: Names of the classes.
        gates: Maps of the attention gates, from the coarsest to the finest, each on its own grid;
            () without gates.
        geometry: Geometry of the network's input on the photo.
        image: Name of the photo; "" if unknown.
    """

    labels: UInt8[np.ndarray, "y x"]
    class_names: tuple[str, ...]
    gates: tuple[AttentionMap, ...]
    geometry: Geometry
    image: str = ""

    @property
    def has_background(self) -> bool:
        """Whether class 0 is the background."""
        return self.class_names[0] == BACKGROUND

    def shares(self) -> dict[str, float]:
        """Return the share of the segmented pixels of each class that has any, largest first."""
        counts = np.bincount(self.labels.ravel(), minlength=256)[: len(self.class_names)]
        total = max(1, int(counts.sum()))
        order = sorted(range(len(counts)), key=lambda number: -counts[number])
        return {self.class_names[n]: float(counts[n] / total) for n in order if counts[n]}


@dataclass(frozen=True, eq=False)
class RecordedLayer:
    """Attention of one layer to one image.

    Args:
        weights: Attention of each head, from each query to each place of the key grid.
        grid: Rows and columns of the queries on the grid.
        margin: Pixels of the network's input that no key covers, as in `AttentionMap`.
        shares: Share of each query in what the scores read; equal for a single query.
    """

    index: int
    site: str
    weights: Float[Tensor, "h q y x"]
    heads: tuple[int, ...]
    grid: tuple[int, int]
    prefix_queries: tuple[str, ...]
    num_prefix_keys: int
    margin: Margin = (0, 0)
    shares: tuple[float, ...] = ()
