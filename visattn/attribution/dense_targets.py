"""Targets of dense models: pixels, regions, boxes, queries and tokens of a photo."""

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
from visattn.attribution.targets import class_name, resolve_class_index
from visattn.geometry.affine import Box, Geometry
from visattn.io.messages import format_names
from visattn.recording.outputs import (
    ImageDetections,
    query_boxes,
    query_logits,
    read_detections,
    segmentation_logits,
)
from visattn.recording.subject import Subject
from visattn.results.info import MapInfo, Thing

Label = int | str | None
Part = Literal["score", "left", "top", "right", "bottom"]
SIDES = ("left", "top", "right", "bottom")


class BoundTarget:
    """A dense target on prepared images: a function from the output to one number per image.

    It also takes the output for variants of all images, which follow each other. Classes, regions
    and boxes that were left open are chosen in the first call, with the original images.

    Args:
        target: The thing.
        explained: The model.
        geometries: Geometry of each image.
    """

    def __init__(
        self, target: "DenseTarget", explained: Subject, geometries: Sequence[Geometry]
    ) -> None:
        self.target = target
        self.explained = explained
        self.geometries = tuple(geometries)
        self.num_images = len(geometries)
        self.class_indices: tuple[int, ...] = ()
        """Class of each image."""
        if target.label is not None:
            index = resolve_class_index(target.label, explained)
            self.class_indices = (index,) * self.num_images
        self.places: Any = target.place(self.geometries)
        """Where the thing lies on each image; None if it is chosen in the first call."""
        self.initial_values: tuple[float, ...] = ()
        """Values of the first call."""

    def __call__(self, output: Any) -> Float[Tensor, " mb"]:
        """Return the value for each image.

        Raises:
            ValueError: If the output has not the form that the target needs, or nothing of the
                target is in it.
        """
        values = self.target.values(self, output)
        self.initial_values = self.initial_values or tuple(values.detach().tolist())
        return values

    def describe(self, index: int, class_names: Sequence[str]) -> MapInfo:
        """Return class, value and place of the target on an image."""
        label = self.class_indices[index] if self.class_indices else None
        return MapInfo(
            target=label,
            class_name=class_name(label, class_names),
            score=self.initial_values[index] if self.initial_values else None,
            thing=self.target.thing(self, index) if self.initial_values else None,
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
        return class_name(index, self.explained.class_names) or f"class {index}"


class DenseTarget(ABC):
    """A thing on a photo that a dense model has an output for; coordinates are pixels of the photo.

    `visattn.explain` places it on the input of the network by the geometry of the photo.
    """

    label: Label

    def bind(self, explained: Subject, geometries: Sequence[Geometry]) -> BoundTarget:
        """Return the target function for prepared images.

        Args:
            explained: The model.
            geometries: Geometry of each image.

        Raises:
            ValueError: If there is no such class, or the network does not see the thing.
        """
        return BoundTarget(self, explained, geometries)

    def place(self, geometries: Sequence[Geometry]) -> Any:  # noqa: ARG002 - nothing to place
        """Return where the thing lies on each image; None if that is not known yet."""
        return None

    @abstractmethod
    def values(self, bound: BoundTarget, output: Any) -> Float[Tensor, " mb"]:
        """Return the value for each image, by the output of the model."""

    @abstractmethod
    def thing(self, bound: BoundTarget, index: int) -> Thing:
        """Return the thing on an image."""


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

    def place(self, geometries: Sequence[Geometry]) -> list[tuple[float, float]]:
        """Return the pixel on each image."""
        return [visible_point(self.x, self.y, geometry) for geometry in geometries]

    def values(self, bound: BoundTarget, output: Any) -> Float[Tensor, " mb"]:
        """Return the logit at the pixel."""
        logits = segmentation_logits(output)
        points = logits.new_tensor(bound.places).repeat(len(logits) // bound.num_images, 1)
        return bound.select_classes(sample_at(logits, points))

    def thing(self, bound: BoundTarget, index: int) -> Thing:  # noqa: ARG002 - of all images
        """Return the pixel."""
        return Thing("pixel", point=(self.x, self.y))


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

    def values(self, bound: BoundTarget, output: Any) -> Float[Tensor, " mb"]:
        """Return the sum of the logits in the region."""
        logits = segmentation_logits(output)
        if bound.places is None:
            bound.places = self._choose(bound, logits[: bound.num_images].detach())
        regions = bound.places.to(logits).repeat(len(logits) // bound.num_images, 1, 1)
        return bound.select_classes((logits * regions[:, None]).sum((2, 3)))

    def _choose(
        self, bound: BoundTarget, logits: Float[Tensor, "b k y x"]
    ) -> Float[Tensor, "b y x"]:
        grid = (logits.shape[2], logits.shape[3])
        predicted = logits.argmax(1)
        if self.mask is not None:
            masks = [mask_on_grid(self.mask, geometry, grid) for geometry in bound.geometries]
            if not bound.class_indices:
                bound.class_indices = tuple(
                    int(classes[mask.to(classes.device)].mode().values)
                    for classes, mask in zip(predicted, masks, strict=True)
                )
            return torch.stack(masks).to(logits)
        visible = [cell_visibility(geometry, grid) for geometry in bound.geometries]
        visible = torch.stack(visible).to(logits.device)
        wanted = predicted.new_tensor(bound.class_indices)[:, None, None]
        regions = (predicted == wanted) & visible
        for index, region in enumerate(regions):
            if not bool(region.any()):
                present = predicted[index][visible[index]].unique().tolist()
                names = [bound.name(number) for number in present]
                raise ValueError(
                    f"no pixel is predicted as {bound.name(bound.class_indices[index])}; predicted "
                    f"are {format_names(names, 6)}; choose one of these, or pass the region as a "
                    "mask"
                )
        return regions.to(logits)

    def thing(self, bound: BoundTarget, index: int) -> Thing:
        """Return the region on the grid of the logits."""
        grid, runs = mask_to_runs(bound.places[index] > 0)
        return Thing("region", grid=grid, runs=runs)


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

    def place(self, geometries: Sequence[Geometry]) -> tuple[Box, ...] | None:
        """Return what each image shows of the box."""
        box = self.box
        return None if box is None else tuple(check_box(box, geometry) for geometry in geometries)

    def values(self, bound: BoundTarget, output: Any) -> Float[Tensor, " mb"]:
        """Return the sum of IoU² · score, or the mean side with these weights."""
        size = bound.geometries[0].input_size
        images = read_detections(output, size, _num_classes(bound.explained))
        if not bound.initial_values:
            self._choose(bound, images[: bound.num_images])
        numbered = ((number % bound.num_images, each) for number, each in enumerate(images))
        return torch.stack([self._value(bound, index, each) for index, each in numbered])

    def _choose(self, bound: BoundTarget, images: Sequence[ImageDetections]) -> None:
        """Choose box and class of each image; refuse a box that nothing is detected at."""
        boxes: list[Box] = []
        labels: list[int] = []
        for index, detections in enumerate(images):
            placed = boxes_to_image(detections.boxes.detach(), bound.geometries[index])
            scores = detections.scores.detach()
            if bound.class_indices:
                scores = detections.of_class(bound.class_indices[index]).detach()
            elif scores.ndim == 2:
                scores = scores.amax(1)
            if bound.places:
                # The weights with which detections count for a box: what has none cannot be
                # explained.
                fits = scores * _iou(bound.places[index], placed).square()
            else:
                fits = scores * (placed[:, 2:] > placed[:, :2]).all(1)
            best = int(fits.argmax()) if len(fits) else -1
            if best < 0 or not bool(fits[best] > 0):
                raise ValueError(_nothing_found(bound, detections, placed, index))
            labels.append(detections.best_class(best)[0])
            left, top, right, bottom = placed[best].tolist()
            boxes.append((left, top, right, bottom))
        bound.places = bound.places or tuple(boxes)
        bound.class_indices = bound.class_indices or tuple(labels)

    def _value(self, bound: BoundTarget, index: int, detections: ImageDetections) -> Tensor:
        boxes = boxes_to_image(detections.boxes, bound.geometries[index])
        scores = detections.of_class(bound.class_indices[index])
        weights = _iou(bound.places[index], boxes.detach()).square()
        if self.part == "score":
            return (weights * scores).sum()
        weights = weights * scores.detach()
        side = SIDES.index(self.part)
        total = weights.sum()
        if not bool(total > 0):  # lost under a perturbation: its sides are unknown
            return boxes.new_tensor(bound.places[index][side])
        return (weights * boxes[:, side]).sum() / total

    def thing(self, bound: BoundTarget, index: int) -> Thing:
        """Return the box and the part."""
        return Thing("box", box=bound.places[index], part=self.part)


def _iou(box: Box, boxes: Float[Tensor, "n 4"]) -> Float[Tensor, " n"]:
    from torchvision.ops import box_iou  # slow to import

    return box_iou(boxes, boxes.new_tensor([box]))[:, 0].nan_to_num(0.0)  # NaN of empty boxes


def _nothing_found(
    bound: BoundTarget, detections: ImageDetections, placed: Tensor, index: int
) -> str:
    what = bound.name(bound.class_indices[index]) if bound.class_indices else "object"
    where = f" that overlaps {box_text(bound.places[index])}" if bound.places else ""
    best = [(*detections.best_class(number), placed[number]) for number in range(len(placed))]
    best.sort(key=lambda pair: -pair[1])
    listed = [
        f"{bound.name(label)} at {box_text(box.tolist())} with {score:.2f}"
        for label, score, box in best
    ]
    detected = format_names(listed, 4) if listed else "nothing"
    return f"the model detects no {what}{where}; it detects {detected}"


@dataclass(frozen=True)
class QueryTarget(DenseTarget):
    """The class logit of a query, or a side of its box, for DETR and its successors.

    The map of `attention` shows what the query attended to.

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

    def values(self, bound: BoundTarget, output: Any) -> Float[Tensor, " mb"]:
        """Return the logit, or the side of the box on the photo."""
        scores = bound.select_classes(_row(output, self.query, "query"))
        try:
            boxes = query_boxes(output, bound.geometries[0].input_size)[:, self.query]
        except ValueError:  # masks have no box
            if self.part != "score":
                raise
            return scores
        placed = torch.cat([
            boxes_to_image(box[None], bound.geometries[number % bound.num_images])
            for number, box in enumerate(boxes)
        ])  # fmt: skip
        bound.places = bound.places or [tuple(box) for box in placed[: bound.num_images].tolist()]
        return scores if self.part == "score" else placed[:, SIDES.index(self.part)]

    def thing(self, bound: BoundTarget, index: int) -> Thing:
        """Return the index, and the predicted box if there is one."""
        box = bound.places[index] if bound.places else None
        return Thing("query", index=self.query, part=self.part, box=box)


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

    def values(self, bound: BoundTarget, output: Any) -> Float[Tensor, " mb"]:
        """Return the logit of the token."""
        return bound.select_classes(_row(output, self.position, "token"))

    def thing(self, bound: BoundTarget, index: int) -> Thing:  # noqa: ARG002 - of all images
        """Return the position."""
        return Thing("token", index=self.position, part="score")


def _row(output: Any, index: int, noun: str) -> Float[Tensor, "mb k"]:
    """Return the logits of a query or token."""
    logits = query_logits(output)
    count = logits.shape[1]
    if not -count <= index < count:
        raise ValueError(
            f"the {noun} must be an index below {count}, the length of the output; got {index}"
        )
    return logits[:, index]


def _num_classes(explained: Subject) -> int | None:
    """Return the number of classes of a model without "no object"; None if it is unknown."""
    config = getattr(explained.model, "config", None)
    stated = getattr(config, "num_labels", None) or getattr(explained.model, "num_classes", None)
    return int(stated) if stated else len(explained.class_names) or None


def _check_part(part: str) -> None:
    if part not in get_args(Part):
        raise ValueError(f"part must be one of {', '.join(get_args(Part))}; got {part!r}")
