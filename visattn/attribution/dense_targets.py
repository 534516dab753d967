"""Targets of dense models: pixels, regions, boxes and queries, bound to prepared images."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from visattn.attribution.regions import (
    MaskLike,
    box_text,
    boxes_to_image,
    cell_visibility,
    check_box,
    mask_on_grid,
    mask_to_runs,
    sample_at,
    visible_point,
)
from visattn.attribution.targets import TARGET_KEYS, class_name, resolve_class_index
from visattn.geometry.affine import Box, Geometry
from visattn.io.messages import format_names
from visattn.recording.model_info import ExplainedModel
from visattn.recording.outputs import (
    ImageDetections,
    query_boxes,
    query_logits,
    read_detections,
    segmentation_logits,
)
from visattn.results.info import MapInfo, Thing

Label = int | str | None
Part = Literal["score", "left", "top", "right", "bottom"]
SIDES = ("left", "top", "right", "bottom")


class BoundTarget(ABC):
    """A dense target on prepared images: a function from the output to one number per image.

    It also takes the output for variants of all images, which follow each other. Classes and
    regions that were left open are chosen in the first call, with the original images.

    Args:
        label: Class index or name; None to choose it.
    """

    def __init__(
        self, label: Label, explained: ExplainedModel, geometries: Sequence[Geometry]
    ) -> None:
        self.geometries = tuple(geometries)
        self.num_images = len(geometries)
        self.class_names = explained.class_names
        self.class_indices: tuple[int, ...] = ()
        """Class of each image."""
        if label is not None:
            self.class_indices = (resolve_class_index(label, explained),) * self.num_images
        self.initial_values: tuple[float, ...] = ()
        """Values of the first call."""

    def __call__(self, output: Any) -> Float[Tensor, " mb"]:
        """Return the value for each image.

        Raises:
            ValueError: If the output has not the form that the target needs, or nothing of the
                target is in it.
        """
        values = self.values(output)
        self.initial_values = self.initial_values or tuple(values.detach().tolist())
        return values

    @abstractmethod
    def values(self, output: Any) -> Float[Tensor, " mb"]:
        """Return the value for each image."""

    @abstractmethod
    def details(self, index: int) -> Thing:
        """Return the place of the target on an image."""

    def describe(self, index: int, class_names: Sequence[str]) -> MapInfo:
        """Return class, value and place of the target on an image."""
        label = self.class_indices[index] if self.class_indices else None
        return MapInfo(
            target=label,
            class_name=class_name(label, class_names),
            score=self.initial_values[index] if self.initial_values else None,
            thing=self.details(index) if self.initial_values else None,
            written=(*TARGET_KEYS, "thing"),
        )

    def select_classes(self, scores: Float[Tensor, "mb k"]) -> Float[Tensor, " mb"]:
        """Return the score of the class of each image; in the first call classes may be chosen."""
        if not self.class_indices:
            self.class_indices = tuple(scores[: self.num_images].argmax(1).tolist())
        if max(self.class_indices) >= scores.shape[1]:
            raise ValueError(
                f"the class must be an index from 0 to {scores.shape[1] - 1}, got "
                f"{max(self.class_indices)}"
            )
        indices = scores.new_tensor(self.class_indices).long()
        return scores.gather(1, indices.repeat(len(scores) // self.num_images)[:, None])[:, 0]

    def name(self, index: int) -> str:
        """Return the name of a class, or its index."""
        return self.class_names[index] if index < len(self.class_names) else f"class {index}"


class BoundPixel(BoundTarget):
    """A pixel (x, y) on prepared images."""

    def __init__(
        self,
        label: Label,
        explained: ExplainedModel,
        geometries: Sequence[Geometry],
        point: tuple[float, float],
    ) -> None:
        super().__init__(label, explained, geometries)
        self.point = point
        self.points = [visible_point(*point, geometry) for geometry in geometries]

    def values(self, output: Any) -> Float[Tensor, " mb"]:
        """Return the value for each image."""
        logits = segmentation_logits(output)
        points = logits.new_tensor(self.points).repeat(len(logits) // self.num_images, 1)
        return self.select_classes(sample_at(logits, points))

    def details(self, index: int) -> Thing:  # noqa: ARG002
        """Return the pixel."""
        return Thing("pixel", point=self.point)


class BoundRegion(BoundTarget):
    """A region on prepared images: a mask, or None for the predicted one."""

    def __init__(
        self,
        label: Label,
        explained: ExplainedModel,
        geometries: Sequence[Geometry],
        mask: MaskLike | None,
    ) -> None:
        super().__init__(label, explained, geometries)
        self.mask = mask
        self.regions: Tensor | None = None

    def values(self, output: Any) -> Float[Tensor, " mb"]:
        """Return the value for each image."""
        logits = segmentation_logits(output)
        if self.regions is None:
            self.regions = self._choose(logits[: self.num_images].detach())
        regions = self.regions.to(logits).repeat(len(logits) // self.num_images, 1, 1)
        return self.select_classes((logits * regions[:, None]).sum((2, 3)))

    def _choose(self, logits: Float[Tensor, "b k y x"]) -> Float[Tensor, "b y x"]:
        grid = (logits.shape[2], logits.shape[3])
        predicted = logits.argmax(1)
        if self.mask is not None:
            masks = [mask_on_grid(self.mask, geometry, grid) for geometry in self.geometries]
            regions = torch.stack(masks).to(logits.device)
            if not self.class_indices:
                pairs = zip(predicted, regions, strict=True)
                self.class_indices = tuple(
                    int(classes[mask].mode().values) for classes, mask in pairs
                )
            return regions.to(logits)
        visible = [cell_visibility(geometry, grid) for geometry in self.geometries]
        visible = torch.stack(visible).to(logits.device)
        wanted = predicted.new_tensor(self.class_indices)[:, None, None]
        regions = (predicted == wanted) & visible
        for index, region in enumerate(regions):
            if not bool(region.any()):
                present = predicted[index][visible[index]].unique().tolist()
                names = [self.name(number) for number in present]
                raise ValueError(
                    f"no pixel is predicted as {self.name(self.class_indices[index])}; predicted "
                    f"are {format_names(names, 6)}; choose one of these, or pass the region as a "
                    "mask"
                )
        return regions.to(logits)

    def details(self, index: int) -> Thing:
        """Return the region on the grid of the logits."""
        if self.regions is None:
            return Thing("region")
        grid, runs = mask_to_runs(self.regions[index] > 0)
        return Thing("region", grid=grid, runs=runs)


class BoundBox(BoundTarget):
    """A box on prepared images."""

    def __init__(
        self,
        label: Label,
        explained: ExplainedModel,
        geometries: Sequence[Geometry],
        box: Box | None,
        part: Part,
    ) -> None:
        super().__init__(label, explained, geometries)
        self.part = part
        self.num_classes = _num_classes(explained)
        self.boxes: tuple[Box, ...] = ()
        if box is not None:
            self.boxes = tuple(check_box(box, geometry) for geometry in geometries)

    def values(self, output: Any) -> Float[Tensor, " mb"]:
        """Return the sum of IoU² · score, or the mean side with these weights."""
        return torch.stack([self._value(index, *fields) for index, fields in self._read(output)])

    def _read(self, output: Any) -> list[tuple[int, tuple[ImageDetections, Tensor]]]:
        """Return index, detections and their boxes on the photo for each image."""
        size = self.geometries[0].input_size
        images = read_detections(output, size, self.num_classes)
        if not self.class_indices or not self.boxes or not self.initial_values:
            self._choose(images[: self.num_images])
        indices = [number % self.num_images for number in range(len(images))]
        return [
            (index, (detections, boxes_to_image(detections.boxes, self.geometries[index])))
            for index, detections in zip(indices, images, strict=True)
        ]

    def _choose(self, images: Sequence[ImageDetections]) -> None:
        """Choose box and class in the first call; refuse a box that nothing is detected at."""
        boxes = list(self.boxes)
        labels = list(self.class_indices)
        for index, detections in enumerate(images):
            placed = boxes_to_image(detections.boxes.detach(), self.geometries[index])
            scores = detections.scores.detach()
            if self.class_indices:
                scores = detections.of_class(labels[index]).detach()
            elif scores.ndim == 2:
                scores = scores.amax(1)
            if self.boxes:
                # The weights with which detections count for a box: what has none cannot be
                # explained.
                fits = scores * self._iou(index, placed).square()
            else:
                fits = scores * (placed[:, 2:] > placed[:, :2]).all(1)
            best = int(fits.argmax()) if len(fits) else -1
            if best < 0 or not bool(fits[best] > 0):
                raise ValueError(self._nothing_found(detections, placed, index))
            if not self.class_indices:
                labels.append(detections.best_class(best)[0])
            if not self.boxes:
                left, top, right, bottom = placed[best].tolist()
                boxes.append((left, top, right, bottom))
        self.boxes = tuple(boxes)
        self.class_indices = tuple(labels)

    def _nothing_found(self, detections: ImageDetections, placed: Tensor, index: int) -> str:
        what = self.name(self.class_indices[index]) if self.class_indices else "object"
        where = f" that overlaps {box_text(self.boxes[index])}" if self.boxes else ""
        best = [(*detections.best_class(number), placed[number]) for number in range(len(placed))]
        best.sort(key=lambda pair: -pair[1])
        listed = [
            f"{self.name(label)} at {box_text(box.tolist())} with {score:.2f}"
            for label, score, box in best
        ]
        detected = format_names(listed, 4) if listed else "nothing"
        return f"the model detects no {what}{where}; it detects {detected}"

    def _iou(self, index: int, boxes: Float[Tensor, "n 4"]) -> Float[Tensor, " n"]:
        from torchvision.ops import box_iou  # slow to import

        overlap = box_iou(boxes, boxes.new_tensor([self.boxes[index]]))[:, 0]
        return overlap.nan_to_num(0.0)  # of empty boxes

    def _value(
        self, index: int, detections: ImageDetections, boxes: Float[Tensor, "n 4"]
    ) -> Tensor:
        scores = detections.of_class(self.class_indices[index])
        weights = self._iou(index, boxes.detach()).square()
        if self.part == "score":
            return (weights * scores).sum()
        weights = weights * scores.detach()
        side = SIDES.index(self.part)
        total = weights.sum()
        if not bool(total > 0):  # lost under a perturbation: its sides are unknown
            return boxes.new_tensor(self.boxes[index][side])
        return (weights * boxes[:, side]).sum() / total

    def details(self, index: int) -> Thing:
        """Return the box and the part."""
        return Thing("box", box=self.boxes[index], part=self.part)


class BoundQuery(BoundTarget):
    """A query of a detector, or the token at a position of a sequence, on prepared images."""

    def __init__(
        self,
        label: Label,
        explained: ExplainedModel,
        geometries: Sequence[Geometry],
        index: int,
        part: Part | None,
    ) -> None:
        super().__init__(label, explained, geometries)
        self.kind = "token" if part is None else "query"
        self.part = part or "score"
        self.index = index
        self.boxes: tuple[Box, ...] = ()

    def values(self, output: Any) -> Float[Tensor, " mb"]:
        """Return the value for each image."""
        logits = query_logits(output)
        count = logits.shape[1]
        if not -count <= self.index < count:
            raise ValueError(
                f"the {self.kind} must be an index below {count}, the length of the output; got "
                f"{self.index}"
            )
        scores = self.select_classes(logits[:, self.index])
        if self.kind == "token":
            return scores
        try:
            boxes = self._photo_boxes(output)
        except ValueError:  # masks have no box
            if self.part != "score":
                raise
            return scores
        self.boxes = self.boxes or tuple(
            (left, top, right, bottom)
            for left, top, right, bottom in boxes[: self.num_images].tolist()
        )
        return scores if self.part == "score" else boxes[:, SIDES.index(self.part)]

    def _photo_boxes(self, output: Any) -> Float[Tensor, "mb 4"]:
        boxes = query_boxes(output, self.geometries[0].input_size)[:, self.index]
        images = [self.geometries[number % self.num_images] for number in range(len(boxes))]
        placed = (
            boxes_to_image(box[None], geometry) for box, geometry in zip(boxes, images, strict=True)
        )
        return torch.cat(list(placed))

    def details(self, index: int) -> Thing:
        """Return the index, and the predicted box if there is one."""
        box = self.boxes[index] if self.boxes else None
        return Thing(self.kind, index=self.index, part=self.part, box=box)


def _num_classes(explained: ExplainedModel) -> int | None:
    """Return the number of classes of a model without "no object"; None if it is unknown."""
    config = getattr(explained.model, "config", None)
    stated = getattr(config, "num_labels", None) or getattr(explained.model, "num_classes", None)
    return int(stated) if stated else len(explained.class_names) or None


class DenseTarget(ABC):
    """A thing on a photo that a dense model has an output for; coordinates are pixels of the photo.

    `visattn.explain` places it on the input of the network by the geometry of the photo.
    """

    label: Label

    @abstractmethod
    def bind(self, explained: ExplainedModel, geometries: Sequence[Geometry]) -> BoundTarget:
        """Return the target function for prepared images.

        Args:
            explained: The model.
            geometries: Geometry of each image.

        Raises:
            ValueError: If there is no such class, or the network does not see the thing.
        """


@dataclass(frozen=True)
class PixelTarget(DenseTarget):
    """The logit of a class at one pixel, for segmentation models.

    Args:
        label: Class index or name; None for the class that is predicted at the pixel.
        x: Column of the pixel on the photo, from 0.
        y: Row of the pixel.

    Example:
        >>> from visattn.attribution.explained_model import describe_model
        >>> explained = describe_model(torch.nn.Identity(), class_names=("sky", "cat"))
        >>> half = Geometry.identity((4, 8)).resized((2, 4))
        >>> target = PixelTarget("cat", x=6, y=3).bind(explained, [half])
        >>> logits = torch.arange(16.0).view(1, 2, 2, 4)  # the pixel is a quarter off the center
        >>> target(logits), target.describe(0, ("sky", "cat")).class_name
        (tensor([14.7500]), 'cat')
    """

    label: Label
    x: float
    y: float

    def bind(self, explained: ExplainedModel, geometries: Sequence[Geometry]) -> BoundTarget:
        """Return the target function for prepared images."""
        return BoundPixel(self.label, explained, geometries, (self.x, self.y))


@dataclass(frozen=True, eq=False)
class RegionTarget(DenseTarget):
    """The sum of the logits of a class over a region, for segmentation models.

    Grad-CAM of it is Seg-Grad-CAM, HiResCAM of it its elementwise form.

    Args:
        label: Class index or name; None, with a mask, for the class that is predicted most there.
        mask: True in the region, one value per pixel of the photo; None for the region that is
            predicted as the class, which is chosen in the first call and then kept.

    Raises:
        ValueError: If there is neither a class nor a mask.

    Example:
        >>> from visattn.attribution.explained_model import describe_model
        >>> explained = describe_model(torch.nn.Identity(), class_names=("sky", "cat"))
        >>> target = RegionTarget("cat").bind(explained, [Geometry.identity((2, 2))])
        >>> cat = torch.tensor([[[[0.0, 0.0], [0.0, 0.0]], [[1.0, -1.0], [2.0, -5.0]]]])
        >>> target(cat), target(-cat)  # the region of the first call is kept
        (tensor([3.]), tensor([-3.]))

    Source:
        Vinogradova, Dibrov and Myers 2020, arXiv:2002.11434, equation 2.
    """

    label: Label
    mask: MaskLike | None = None

    def __post_init__(self) -> None:
        """Check that there is a class or a mask."""
        if self.label is None and self.mask is None:
            raise ValueError("a region needs a class, a mask, or both; got neither")

    def bind(self, explained: ExplainedModel, geometries: Sequence[Geometry]) -> BoundTarget:
        """Return the target function for prepared images."""
        return BoundRegion(self.label, explained, geometries, self.mask)


@dataclass(frozen=True)
class BoxTarget(DenseTarget):
    """Score or side of the detections at a box, for detectors.

    Detections have no fixed order, so none is selected: the score is the sum of IoU² · score over
    all detections, and a side is their mean with these weights. The IoU is taken as a constant, so
    that gradients explain the score, or the side.

    Args:
        box: Left, top, right, bottom in pixels of the photo; None for the box of the detection with
            the highest score, which is chosen in the first call and then kept.
        label: Class index or name; None for that of the detection that fits the box best.
        part: `score`, or the side `left`, `top`, `right` or `bottom`, in pixels of the photo.

    Raises:
        ValueError: If the box is empty or there is no such part.

    Example:
        >>> from visattn.attribution.explained_model import describe_model
        >>> explained = describe_model(torch.nn.Identity(), class_names=("cat", "dog"))
        >>> target = BoxTarget((0, 0, 4, 4), "dog").bind(explained, [Geometry.identity((8, 8))])
        >>> boxes = torch.tensor([[0.0, 0.0, 4.0, 4.0], [0.0, 0.0, 4.0, 2.0], [4.0, 4.0, 8.0, 8.0]])
        >>> scores, labels = torch.tensor([0.5, 0.4, 0.9]), torch.tensor([1, 1, 1])
        >>> target([{"boxes": boxes, "scores": scores, "labels": labels}])  # 0.5 + 0.4 / 4
        tensor([0.6000])
    """

    box: Box | None
    label: Label = None
    part: Part = "score"

    def __post_init__(self) -> None:
        """Check the box and the part."""
        if self.box is not None:
            check_box(self.box)
        _check_part(self.part)

    def bind(self, explained: ExplainedModel, geometries: Sequence[Geometry]) -> BoundBox:
        """Return the target function for prepared images."""
        return BoundBox(self.label, explained, geometries, self.box, self.part)


@dataclass(frozen=True)
class QueryTarget(DenseTarget):
    """The class logit of a query, or a side of its box, for DETR and its successors.

    Args:
        query: Index of the query.
        label: Class index or name; None for the class that the query predicts.
        part: `score`, or the side `left`, `top`, `right` or `bottom`, in pixels of the photo.

    Example:
        >>> from visattn.attribution.explained_model import describe_model
        >>> explained = describe_model(torch.nn.Identity(), class_names=("cat", "star"))
        >>> target = QueryTarget(5, "star").bind(explained, [Geometry.identity((8, 8))])
        >>> target({"logits": torch.arange(14.0).view(1, 7, 2)})
        tensor([11.])
    """

    query: int
    label: Label = None
    part: Part = "score"

    def __post_init__(self) -> None:
        """Check the part."""
        _check_part(self.part)

    def bind(self, explained: ExplainedModel, geometries: Sequence[Geometry]) -> BoundTarget:
        """Return the target function for prepared images."""
        return BoundQuery(self.label, explained, geometries, self.query, self.part)


@dataclass(frozen=True)
class TokenTarget(DenseTarget):
    """The logit of a token at a position of an output sequence `[b, t, v]`.

    Args:
        position: Index of the position; -1 is the last.
        label: Index of the token, or its name among the class names; None for the predicted one.

    Example:
        >>> from visattn.attribution.explained_model import describe_model
        >>> explained = describe_model(torch.nn.Identity())
        >>> target = TokenTarget(-1).bind(explained, [Geometry.identity((8, 8))])
        >>> target(torch.tensor([[[1.0, 0.0], [2.0, 7.0]]])), target.class_indices
        (tensor([7.]), (1,))
    """

    position: int
    label: Label = None

    def bind(self, explained: ExplainedModel, geometries: Sequence[Geometry]) -> BoundTarget:
        """Return the target function for prepared images."""
        return BoundQuery(self.label, explained, geometries, self.position, None)


def _check_part(part: str) -> None:
    if part not in get_args(Part):
        raise ValueError(f"part must be one of {', '.join(get_args(Part))}; got {part!r}")
