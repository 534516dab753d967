"""Results besides maps and captions: answers, scan paths, detections, segmentations."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from visattn.geometry.affine import Box, Geometry, Margin
from visattn.results.attention_map import (
    AttentionMap,
    lists_of,
    read_place,
    tensor_of,
    truncate_text,
)
from visattn.results.display import shown
from visattn.results.info import MapInfo
from visattn.results.kinds import BACKGROUND, IGNORE_CLASS
from visattn.results.records import pack_array, unpack_array
from visattn.results.saving import SavedAsJson

_OF_COMMAND = ("provenance", "card", "boxes")  # what commands add to records
_OF_DETECTIONS = ("width", "height", "objects", "site", "maps", "shape", "points", "geometry",
                  *_OF_COMMAND)  # fmt: skip
_OF_SCAN_PATH = (
    "class", "probability", "class_names", "labels", "glimpses_per_label", "end_class",
    "glimpse_size", "num_scales", "locations", "boxes", "probabilities", "geometry", *_OF_COMMAND,
)  # fmt: skip
"""Keys of records beside which those of `MapInfo` stand."""


@dataclass(frozen=True, eq=False, repr=False)
class Answer(SavedAsJson):
    """The answer to a question about an image, with where the model looked."""

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
    """What limits the answer, such as unknown words; and how the maps were made."""

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

    def to_dict(self) -> dict[str, Any]:
        """Return question, answers and maps as plain values for JSON.

        Example:
            >>> Answer("Red?", ("red",), (("yes", 0.9),), None).to_dict()["answers"]
            [{'answer': 'yes', 'probability': 0.9}]
        """
        maps = self.maps
        made: dict[str, Any] = {}
        if maps is not None:
            made = {"site": maps.site, "kind": maps.kind, "made": maps.info.to_dict()}
        return {
            "question": self.question,
            "answers": [{"answer": text, "probability": share} for text, share in self.answers],
            "words": list(self.words),
            "unknown": list(self.unknown),
            "notes": list(self.notes),
            "hops": [] if maps is None else list(maps.labels),
            **({"maps": None} if maps is None else lists_of(maps.values)),
            "word_weights": None if self.word_weights is None else self.word_weights.tolist(),
            "geometry": None if maps is None else maps.place(),
            **made,
            **({"image": self.image} if self.image else {}),
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> "Answer":
        """Return the answer of a record.

        Args:
            record: What `to_dict` returned, or an entry of `questions` in a file of `visattn ask`.

        Example:
            >>> answer = Answer("Red?", ("red",), (("yes", 0.9),), None)
            >>> Answer.from_dict(answer.to_dict()).text
            'yes'
        """
        weights = record["word_weights"]
        maps = None
        if record["maps"] is not None:
            maps = AttentionMap(
                tensor_of(record), record["site"], record["kind"], read_place(record["geometry"]),
                MapInfo.from_dict(record["made"]), tuple(record["hops"]),
            )  # fmt: skip
        return cls(
            question=record["question"],
            words=tuple(record["words"]),
            answers=tuple((entry["answer"], entry["probability"]) for entry in record["answers"]),
            maps=maps,
            word_weights=None if weights is None else torch.tensor(weights),
            unknown=tuple(record["unknown"]),
            notes=tuple(record["notes"]),
            image=record.get("image", ""),
        )


class ReadLabel(NamedTuple):
    """A label that a glimpse model read."""

    name: str
    probability: float
    glimpse: int
    """Index of the glimpse after which it was read."""


def read_labels(
    probabilities: Float[np.ndarray, "t k"],
    class_names: Sequence[str],
    glimpses_per_label: int | None = None,
    end_class: str | None = None,
) -> list[ReadLabel]:
    """Return the labels that a model read, in order, up to the end of the sequence.

    Args:
        glimpses_per_label: Number of glimpses after which each label is read; by default a single
            label is read after the last glimpse.
        end_class: Name of the class that ends a sequence, which is the last label then.

    Example:
        >>> probabilities = np.eye(3)[[0, 1, 2, 2, 1, 1]]
        >>> [label[:2] for label in read_labels(probabilities, ("3", "7", "end"), 2, "end")]
        [('7', 1.0), ('end', 1.0)]
    """
    step = glimpses_per_label or len(probabilities)
    labels: list[ReadLabel] = []
    for glimpse in range(step - 1, len(probabilities), step):
        best = int(probabilities[glimpse].argmax())
        labels.append(ReadLabel(class_names[best], float(probabilities[glimpse, best]), glimpse))
        if class_names[best] == end_class:
            break
    return labels


def label_text(labels: Sequence[ReadLabel], end_class: str | None = None) -> tuple[str, float]:
    """Return the names of all labels but the end, and the probability of the sequence.

    Example:
        >>> label_text([ReadLabel("3", 0.5, 2), ReadLabel("7", 0.5, 5), ReadLabel("end", 1.0, 8)])
        ('3 7 end', 0.25)
        >>> label_text([ReadLabel("3", 0.5, 2), ReadLabel("end", 1.0, 5)], "end")
        ('3', 0.5)
    """
    names = [label.name for label in labels if label.name != end_class]
    probability = math.prod(label.probability for label in labels)
    return " ".join(names) or labels[-1].name, probability


def format_percent(probability: float) -> str:
    """Return a probability as a percentage; only 1.0 is formatted as 100 %.

    Example:
        >>> format_percent(0.003), format_percent(0.42), format_percent(0.9999)
        ('<1 %', '42 %', '>99 %')
    """
    if 0 < probability < 0.01:
        return "<1 %"
    return ">99 %" if 0.99 < probability < 1 else f"{100 * probability:.0f} %"


@dataclass(frozen=True, eq=False, repr=False)
class ScanPath(SavedAsJson):
    """Locations, windows and predictions of a glimpse model on one image.

    Args:
        probabilities: Class probabilities after each glimpse.
        locations: x and y of each glimpse on the input of the network, in [-1, 1], the initial
            location included.
        boxes: Left, top, right and bottom of each window, finest scale first, in pixels of the
            original image; outside the image the network sees the pad value.
        patches: Content of each window, as the network sees it.
        pixels: Input of the network.
        maps: One map per glimpse, placed on the original: 1 where pixels of the input are seen at
            full resolution, 1/2 where two by two are averaged, and so on; 0 elsewhere.
        glimpses_per_label: Number of glimpses after which each label of a sequence is read; None
            for a model with a single label.
        end_class: Name of the class that ends a sequence.
    """

    class_names: tuple[str, ...]
    probabilities: Float[Tensor, "t k"]
    locations: Float[Tensor, "t 2"]
    boxes: Float[Tensor, "t s 4"]
    patches: UInt8[Tensor, "t s c g g"]
    pixels: UInt8[Tensor, "c y x"]
    maps: AttentionMap
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
        return read_labels(
            self.probabilities.numpy(), self.class_names, self.glimpses_per_label, self.end_class
        )

    @property
    def prediction(self) -> str:
        """Predicted class after the last glimpse, or the labels of a sequence."""
        return label_text(self.labels, self.end_class)[0]

    @property
    def probability(self) -> float:
        """Probability of the prediction."""
        return label_text(self.labels, self.end_class)[1]

    @property
    def tags(self) -> dict[int, str]:
        """The label read after a glimpse, by its index; empty if there is a single label."""
        if self.glimpses_per_label is None:
            return {}
        return {label.glimpse: label.name for label in self.labels}

    def until_end(self) -> "ScanPath":
        """Return the scan path up to the end of its sequence of labels."""
        count = self.labels[-1].glimpse + 1
        maps = self.maps[:count] if len(self.maps) > count else self.maps
        return replace(
            self,
            probabilities=self.probabilities[:count],
            locations=self.locations[:count],
            boxes=self.boxes[:count],
            patches=self.patches[:count],
            maps=maps,
        )

    def summary(self) -> dict[str, Any]:
        """Return the scan path as plain values for JSON, without what the network sees."""
        return {
            "class": self.prediction,
            "probability": self.probability,
            "class_names": list(self.class_names),
            "labels": [label._asdict() for label in self.labels],
            "glimpses_per_label": self.glimpses_per_label,
            "end_class": self.end_class,
            **self.maps.info.to_dict(),
            "glimpse_size": self.patches.shape[-1],
            "num_scales": self.patches.shape[1],
            "locations": self.locations.tolist(),
            "boxes": self.boxes.tolist(),
            "probabilities": self.probabilities.tolist(),
            "geometry": self.maps.place(),
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the scan path as values of JSON; patches and pixels as `pack_array` packs them."""
        arrays = {"patches": self.patches, "pixels": self.pixels}
        packed = {
            key: pack_array(tensor.numpy()) for key, tensor in arrays.items() if tensor.numel()
        }
        return {**self.summary(), **packed}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> "ScanPath":
        """Return the scan path of a record.

        Args:
            record: What `to_dict` or `summary` returned, or the JSON file of `visattn glimpse`.
                Without what the network sees, patches and pixels have no channels.

        Raises:
            ValueError: If an array is damaged, or the record has no geometry.
        """
        place = read_place(record["geometry"])
        if place is None:
            raise ValueError("a scan path needs the geometry of its input, which the record lacks")
        boxes = torch.tensor(record["boxes"], dtype=torch.float64)
        count, scales, _ = boxes.shape
        side = record["glimpse_size"]
        # The record has windows in pixels of the image, computed from whole pixels of the input.
        windows = place.to_input(boxes.view(-1, 2)).view(boxes.shape).round()
        arrays = {
            "patches": torch.empty(count, scales, 0, side, side, dtype=torch.uint8),
            "pixels": torch.empty(0, *place.input_size, dtype=torch.uint8),
        }
        arrays |= {key: torch.from_numpy(unpack_array(record[key]).copy())
                 for key in arrays if key in record}  # fmt: skip
        info = MapInfo.from_dict(_without(record, (*_OF_SCAN_PATH, *arrays)))
        return cls(
            class_names=tuple(record["class_names"]),
            probabilities=torch.tensor(record["probabilities"], dtype=torch.float64),
            locations=torch.tensor(record["locations"], dtype=torch.float32),
            boxes=boxes,
            maps=resolution_maps(windows, place.input_size, place, info),
            glimpses_per_label=record["glimpses_per_label"],
            end_class=record["end_class"],
            **arrays,
        )


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
class Detections(SavedAsJson):
    """The objects that queries of a detector found in one image, with what each query attended to.

    Args:
        objects: The detections, those of `detect` in descending order of their scores.
        maps: For each, the weight of each cell of the feature map in the cross-attention of its
            query (mean over heads), placed on the original image.
    """

    objects: tuple[DetectedObject, ...]
    maps: AttentionMap

    def to_dict(self) -> dict[str, Any]:
        """Return objects and maps as plain values for JSON.

        Example:
            >>> dog = DetectedObject("dog", 0.9, (5.0, 5.0, 20.0, 25.0), 7)
            >>> place = Geometry.identity((30, 40))
            >>> maps = AttentionMap(torch.ones(1, 3, 4), "decoder", "queries", place)
            >>> record = Detections((dog,), maps).to_dict()
            >>> record["width"], record["objects"][0]["class"]
            (40, 'dog')
        """
        geometry = self.maps.geometry
        height, width = (None, None) if geometry is None else geometry.image_size
        return {
            "width": width,
            "height": height,
            "objects": [
                {
                    "class": detected.label,
                    "score": detected.score,
                    "box": list(detected.box),
                    "query": detected.query,
                }
                for detected in self.objects
            ],
            "site": self.maps.site,
            **self.maps.info.to_dict(),
            **lists_of(self.maps.values),
            "geometry": self.maps.place(),
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> "Detections":
        """Return the detections of a record.

        Args:
            record: What `to_dict` returned, or the JSON file of `visattn detect`.

        Example:
            >>> maps = AttentionMap(torch.ones(1, 3, 4), "decoder", "queries", labels=("dog",))
            >>> dog = DetectedObject("dog", 0.9, (5.0, 5.0, 20.0, 25.0), 7)
            >>> Detections.from_dict(Detections((dog,), maps).to_dict()).objects == (dog,)
            True
        """
        objects = tuple(
            DetectedObject(entry["class"], entry["score"], tuple(entry["box"]), entry["query"])
            for entry in record["objects"]
        )
        info = MapInfo.from_dict(_without(record, _OF_DETECTIONS))
        labels = tuple(detected.label for detected in objects)
        maps = AttentionMap(tensor_of(record), record["site"], "queries",
                            read_place(record["geometry"]), info, labels)  # fmt: skip
        return cls(objects, maps)


@dataclass(frozen=True, eq=False)
class Segmentation(SavedAsJson):
    """The segmentation of one photo.

    Args:
        labels: Class of each pixel of the photo; 255 outside of the network's input.
        class_names: Names of the classes.
        gates: Maps of the attention gates, from the coarsest to the finest, each on its own grid;
            () without gates.
        geometry: Geometry of the network's input on the photo.
    """

    labels: UInt8[np.ndarray, "y x"]
    class_names: tuple[str, ...]
    gates: tuple[AttentionMap, ...]
    geometry: Geometry

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

    def summary(self) -> dict[str, Any]:
        """Return classes, their shares and the geometry as plain values for JSON."""
        return {
            "class_names": list(self.class_names),
            "shares": self.shares(),
            "ignored": IGNORE_CLASS,
            "geometry": self.geometry.to_dict(),
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the segmentation as values of JSON; labels as `pack_array` packs them."""
        gates = [gate.to_dict() for gate in self.gates]
        return {**self.summary(), "labels": pack_array(self.labels), "gates": gates}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> "Segmentation":
        """Return the segmentation of a record.

        Args:
            record: What `to_dict` returned.

        Raises:
            ValueError: If the record has no label map, as those of `visattn segment`.

        Example:
            >>> labels = np.array([[0, 1]], np.uint8)
            >>> result = Segmentation(labels, ("sky", "cat"), (), Geometry.identity((1, 2)))
            >>> Segmentation.from_dict(result.to_dict()).shares()
            {'sky': 0.5, 'cat': 0.5}
        """
        if "labels" not in record:
            raise ValueError(
                "the record has shares of classes, but not the class of each pixel: visattn "
                "segment writes that to masks/NAME.png, and save of a Segmentation to its JSON file"
            )
        return cls(
            labels=unpack_array(record["labels"]).copy(),
            class_names=tuple(record["class_names"]),
            gates=tuple(AttentionMap.from_dict(gate) for gate in record["gates"]),
            geometry=Geometry.from_dict(record["geometry"]),
        )


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


def _without(record: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key not in keys}


def resolution_maps(
    windows: Float[Tensor, "t s 4"], size: tuple[int, int], geometry: Geometry, info: MapInfo
) -> AttentionMap:
    """Return for each glimpse and pixel the resolution at which it is seen, in (0, 1].

    Windows are those of the glimpses on the input, finest scale first.

    Example:
        >>> window = torch.tensor([[[0.0, 0, 1, 2], [-1, 0, 3, 2]]])
        >>> resolution_maps(window, (2, 4), Geometry.identity((2, 4)), MapInfo()).values[0, 0]
        tensor([1.0000, 0.5000, 0.5000, 0.0000])
    """
    values = torch.zeros(len(windows), *size)
    for scale in reversed(range(windows.shape[1])):  # the finest scale overwrites the others
        for value, box in zip(values, windows[:, scale].long().clamp(min=0).tolist(), strict=True):
            left, top, right, bottom = box
            value[top:bottom, left:right] = 0.5**scale
    labels = tuple(str(number) for number in range(1, len(windows) + 1))
    return AttentionMap(values, "retina", "glimpse", geometry, info, labels)
