"""Targets for dense models: a pixel, region, box or query of a photo.

All are given in pixels of the photo. `bind` maps them to the input of the network by the geometry
of the photo, and returns the function of the output to explain.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import avg_pool2d, grid_sample

from visattn.attribution.targets import Score, class_name, resolve_class_index
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
from visattn.results.info import Thing

Label = int | str | None
MaskLike = Any
"""A tensor, array or nested list [y, x]; nonzero in the region."""
_SAMPLES = 16  # points along a side of a cell


def _score(
    function: Callable[[Any, Score], Tensor],
    subject: Subject,
    label: Label,
    count: int,
    things: Sequence[Thing] = (),
) -> Score:
    classes = () if label is None else (resolve_class_index(label, subject),) * count
    return Score(classes, None, function, "thing", count, things=things)


@dataclass(frozen=True)
class PixelTarget:
    """The logit of a class at one pixel, for segmentation models.

    Args:
        label: Class index or name; None for the class predicted at the pixel.
        x: Column of the pixel on the photo, from 0.
        y: Row of the pixel.

    Example:
        >>> from visattn.recording.subject import describe_model
        >>> subject = describe_model(torch.nn.Identity(), class_names=("sky", "cat"))
        >>> half = Geometry.identity((4, 8)).resized((2, 4))
        >>> target = PixelTarget("cat", x=6, y=3).bind(subject, [half])
        >>> logits = torch.arange(16.0).view(1, 2, 2, 4)  # a quarter cell off a cell center
        >>> target(logits), target.describe(0, ("sky", "cat")).class_name
        (tensor([14.7500]), 'cat')
    """

    label: Label
    x: float
    y: float

    def bind(self, subject: Subject, geometries: Sequence[Geometry]) -> Score:
        """Return the score on prepared images."""
        points = torch.tensor([visible_point(self.x, self.y, each) for each in geometries])

        def logit(output: Any, score: Score) -> Float[Tensor, " mb"]:
            logits = segmentation_logits(output)
            repeated = points.to(logits).repeat(len(logits) // len(points), 1)
            return score.of_class(sample_at(logits, repeated))

        things = [Thing("pixel", point=(self.x, self.y))] * len(geometries)
        return _score(logit, subject, self.label, len(geometries), things)


@dataclass(frozen=True, eq=False)
class RegionTarget:
    """The sum of the logits of a class over a region, for segmentation models.

    With Grad-CAM this is Seg-Grad-CAM, with HiResCAM its elementwise form.

    Args:
        label: Class index or name; None, with a mask, for the most frequent predicted class there.
        mask: True in the region, one value per pixel of the photo; None for the region that is
            predicted as the class, chosen on the first call and then kept.

    Example:
        >>> from visattn.recording.subject import describe_model
        >>> subject = describe_model(torch.nn.Identity(), class_names=("sky", "cat"))
        >>> target = RegionTarget("cat").bind(subject, [Geometry.identity((2, 2))])
        >>> cat = torch.tensor([[[[0.0, 0.0], [0.0, 0.0]], [[1.0, -1.0], [2.0, -5.0]]]])
        >>> target(cat), target(-cat)  # the region of the first call is kept
        (tensor([3.]), tensor([-3.]))

    Source:
        Vinogradova, Dibrov and Myers 2020, arXiv:2002.11434, equation 2.
    """

    label: Label
    mask: MaskLike | None = None

    def bind(self, subject: Subject, geometries: Sequence[Geometry]) -> Score:
        """Return the score on prepared images.

        Raises:
            ValueError: If there is neither a class nor a mask.
        """
        if self.label is None and self.mask is None:
            raise ValueError("a region needs a class, a mask, or both; got neither")
        regions: list[Tensor] = []

        def total(output: Any, score: Score) -> Float[Tensor, " mb"]:
            logits = segmentation_logits(output)
            if not regions:
                predicted = logits[: len(geometries)].detach().argmax(1)
                rows = zip(predicted, geometries, strict=True)
                chosen = [self._choose(*row, subject, score) for row in rows]
                score.class_indices = tuple(label for label, _ in chosen)
                runs = [mask_to_runs(region) for _, region in chosen]
                score.things = [Thing("region", grid=grid, runs=each) for grid, each in runs]
                regions.append(torch.stack([region for _, region in chosen]))
            inside = regions[0].repeat(len(logits) // len(geometries), 1, 1)
            return score.of_class((logits * inside[:, None]).sum((2, 3)))

        return _score(total, subject, self.label, len(geometries))

    def _choose(
        self, predicted: Tensor, geometry: Geometry, subject: Subject, score: Score
    ) -> tuple[int, Bool[Tensor, "y x"]]:
        """Return the class and the region of an image, given the predicted class of each cell."""
        grid = (predicted.shape[0], predicted.shape[1])
        if self.mask is not None:
            region = mask_on_grid(self.mask, geometry, grid).to(predicted.device)
            return (*score.class_indices, int(predicted[region].mode().values))[0], region
        label, names = score.class_indices[0], subject.class_names
        visible = mask_on_grid(torch.ones(geometry.image_size), geometry, grid)
        visible = visible.to(predicted.device)
        region = (predicted == label) & visible
        if not bool(region.any()):
            present = [_name(each, names) for each in predicted[visible].unique().tolist()]
            raise ValueError(
                f"no pixel is predicted as {_name(label, names)}; the predicted classes are "
                f"{format_names(present, 6)}; choose one of these, or pass the region as a mask"
            )
        return label, region


@dataclass(frozen=True)
class BoxTarget:
    """The score of the detections at a box, for detectors.

    Detections have no fixed order, so no single one is selected: the score is the sum of
    IoU² · score over all detections. The IoU is treated as a constant, so that gradients explain
    the score.

    Args:
        box: Left, top, right, bottom in pixels of the photo; None for the box of the detection with
            the highest score, chosen on the first call and then kept.
        label: Class index or name; None for the class of the detection that fits the box best.

    Example:
        >>> from visattn.recording.subject import describe_model
        >>> subject = describe_model(torch.nn.Identity(), class_names=("cat", "dog"))
        >>> target = BoxTarget((0, 0, 4, 4), "dog").bind(subject, [Geometry.identity((8, 8))])
        >>> boxes = torch.tensor([[0.0, 0.0, 4.0, 4.0], [0.0, 0.0, 4.0, 2.0], [4.0, 4.0, 8.0, 8.0]])
        >>> scores, labels = torch.tensor([0.5, 0.4, 0.9]), torch.tensor([1, 1, 1])
        >>> target([{"boxes": boxes, "scores": scores, "labels": labels}])  # 0.5 + 0.4 / 4
        tensor([0.6000])
    """

    box: Box | None
    label: Label = None

    def bind(self, subject: Subject, geometries: Sequence[Geometry]) -> Score:
        """Return the score on prepared images."""
        shown = [self.box and check_box(self.box, geometry) for geometry in geometries]

        def overlapping(output: Any, score: Score) -> Float[Tensor, " mb"]:
            size = geometries[0].input_size
            detected = read_detections(output, size, _num_classes(subject))
            if not score.things:
                rows = list(zip(detected, geometries, shown, strict=False))
                labels = score.class_indices or (None,) * len(rows)
                chosen = [
                    _choose_detection(*row, label, subject.class_names)
                    for row, label in zip(rows, labels, strict=True)
                ]
                score.things = [Thing("box", box=box) for box, _ in chosen]
                score.class_indices = tuple(label for _, label in chosen)
            values: list[Tensor] = []
            for number, each in enumerate(detected):
                index = number % len(geometries)
                placed = boxes_to_image(each.boxes.detach(), geometries[index])
                scores = each.of_class(score.class_indices[index])
                values.append((_iou(score.things[index].box, placed).square() * scores).sum())
            return torch.stack(values)

        return _score(overlapping, subject, self.label, len(geometries))


def _choose_detection(
    detections: ImageDetections,
    geometry: Geometry,
    box: Box | None,
    label: int | None,
    names: Sequence[str],
) -> tuple[Box, int]:
    """Return the box, by default of the best detection, and the class of the best-fitting one."""
    placed = boxes_to_image(detections.boxes.detach(), geometry)
    scores = detections.scores.detach()
    if label is not None:
        scores = detections.of_class(label).detach()
    elif scores.ndim == 2:
        scores = scores.amax(1)
    # weights of the detections in the score; one with weight 0 cannot be explained
    weights = (placed[:, 2:] > placed[:, :2]).all(1) if box is None else _iou(box, placed).square()
    fits = scores * weights
    if not bool((fits > 0).any()):
        best = [(*detections.best_class(number), box) for number, box in enumerate(placed.tolist())]
        best.sort(key=lambda detection: -detection[1])
        listed = [f"{_name(k, names)} at {box_text(at)} with {each:.2f}" for k, each, at in best]
        raise ValueError(
            f"the model detects no {'object' if label is None else _name(label, names)}"
            f"{'' if box is None else f' that overlaps {box_text(box)}'}; it detects "
            f"{format_names(listed, 4) if listed else 'nothing'}"
        )
    chosen = int(fits.argmax())
    left, top, right, bottom = placed[chosen].tolist()
    label = detections.best_class(chosen)[0] if label is None else label
    return box or (left, top, right, bottom), label


def _iou(box: Any, boxes: Float[Tensor, "n 4"]) -> Float[Tensor, " n"]:
    from torchvision.ops import box_iou  # slow to import

    return box_iou(boxes, boxes.new_tensor([box]))[:, 0].nan_to_num(0.0)  # NaN of empty boxes


@dataclass(frozen=True)
class QueryTarget:
    """The class logit of a query, for DETR and its successors.

    The map of `attention` shows what the query attended to.

    Args:
        query: Index of the query.
        label: Class index or name; None for the class that the query predicts.

    Example:
        >>> from visattn.recording.subject import describe_model
        >>> subject = describe_model(torch.nn.Identity(), class_names=("cat", "star"))
        >>> target = QueryTarget(5, "star").bind(subject, [Geometry.identity((8, 8))])
        >>> target({"logits": torch.arange(14.0).view(1, 7, 2)})
        tensor([11.])
    """

    query: int
    label: Label = None

    def bind(self, subject: Subject, geometries: Sequence[Geometry]) -> Score:
        """Return the score on prepared images."""

        def logit(output: Any, score: Score) -> Float[Tensor, " mb"]:
            logits = query_logits(output)
            count = logits.shape[1]
            if not -count <= self.query < count:
                raise ValueError(f"the query must be an index below {count}, got {self.query}")
            score.things = score.things or self._things(output, geometries)
            return score.of_class(logits[:, self.query])

        return _score(logit, subject, self.label, len(geometries))

    def _things(self, output: Any, geometries: Sequence[Geometry]) -> list[Thing]:
        """Return the query for each image, with its predicted box if the model predicts boxes."""
        try:
            boxes = query_boxes(output, geometries[0].input_size)[:, [self.query]]
        except ValueError:
            return [Thing("query", index=self.query)] * len(geometries)
        placed = map(boxes_to_image, boxes.detach(), geometries)
        sides = [tuple(box[0].tolist()) for box in placed]
        return [Thing("query", index=self.query, box=box) for box in sides]


def _name(index: int, names: Sequence[str]) -> str:
    return class_name(index, names) or f"class {index}"


def _num_classes(subject: Subject) -> int | None:
    """Return the number of classes of a model, not counting "no object"; None if unknown."""
    config = getattr(subject.model, "config", None)
    stated = getattr(config, "num_labels", None) or getattr(subject.model, "num_classes", None)
    return int(stated) if stated else len(subject.class_names) or None


def visible_point(x: float, y: float, geometry: Geometry) -> tuple[float, float]:
    """Map the center of a pixel of the photo to the input, as fractions of its width and height.

    Raises:
        ValueError: If the pixel is outside of what the network sees.

    Example:
        >>> visible_point(2, 1, Geometry.identity((4, 8)).resized((2, 2)))
        (0.3125, 0.375)
    """
    center = torch.tensor([[[x + 0.5, y + 0.5]]], dtype=torch.float64)
    if not bool(_visible(center, geometry)):
        raise ValueError(_unseen(f"the pixel x={x:g}, y={y:g}", geometry))
    [[along, down]] = geometry.to_input(center[0]).tolist()
    return along / geometry.input_size[1], down / geometry.input_size[0]


def sample_at(
    maps: Float[Tensor, "b k gy gx"], points: Float[Tensor, "b 2"]
) -> Float[Tensor, "b k"]:
    """Sample each map at one point (x, y), interpolated between cell centers.

    Args:
        points: Fractions of the width and height of the input.

    Example:
        >>> sample_at(torch.tensor([[[[0.0, 1.0]]]]), torch.tensor([[0.5, 0.5]]))
        tensor([[0.5000]])
    """
    grid = (2 * points - 1)[:, None, None]
    sampled = grid_sample(maps, grid, padding_mode="border", align_corners=False)
    return sampled[:, :, 0, 0]


def mask_on_grid(
    mask: MaskLike, geometry: Geometry, grid: tuple[int, int]
) -> Bool[Tensor, "gy gx"]:
    """Return the cells of a grid that a region of the photo covers at least half.

    If there are none, all cells that it touches.

    Args:
        mask: One value per pixel of the photo, nonzero in the region.

    Raises:
        ValueError: If the mask does not have the size of the photo, or the network sees none of it.

    Example:
        >>> mask_on_grid([[0, 1, 1, 1]], Geometry.identity((1, 4)), (1, 2))
        tensor([[True, True]])
    """
    values = torch.as_tensor(mask) != 0
    if tuple(values.shape) != geometry.image_size:
        raise ValueError(
            f"the mask must have one value per pixel of the photo, {geometry.image_size} (height, "
            f"width), got shape {tuple(values.shape)}"
        )
    y, x = (
        (torch.arange(cells * _SAMPLES, dtype=torch.float64) + 0.5) * (side / cells / _SAMPLES)
        for cells, side in zip(grid, geometry.input_size, strict=True)
    )
    points = torch.stack(torch.meshgrid(x, y, indexing="xy"), -1)
    points = geometry.to_image(points.view(-1, 2)).view(points.shape)
    height, width = geometry.image_size
    columns, rows = points.floor().long().unbind(-1)
    inside = values[rows.clamp(0, height - 1), columns.clamp(0, width - 1)]
    inside = (inside & _visible(points, geometry)).double()
    share = avg_pool2d(inside[None], _SAMPLES)[0]
    cells = (share >= 0.5) | ((share > 0) & (share.max() < 0.5))
    if not bool(cells.any()):
        raise ValueError(_unseen("any pixel of the mask", geometry))
    return cells


def _visible(points: Float[Tensor, "gy gx 2"], geometry: Geometry) -> Bool[Tensor, "gy gx"]:
    left, top, right, bottom = geometry.region
    x, y = points.unbind(-1)
    return (x >= left) & (x <= right) & (y >= top) & (y <= bottom)


def boxes_to_image(boxes: Float[Tensor, "n 4"], geometry: Geometry) -> Float[Tensor, "n 4"]:
    """Map boxes from the input to the photo; differentiable.

    Example:
        >>> flipped = Geometry.identity((10, 20)).resized((5, 10)).flipped()
        >>> boxes_to_image(torch.tensor([[0.0, 0.0, 2.0, 5.0]]), flipped)
        tensor([[16.,  0., 20., 10.]])
    """
    corners = geometry.to_image(boxes.reshape(-1, 2)).view(-1, 2, 2)
    return torch.cat((corners.amin(1), corners.amax(1)), 1)


def check_box(box: Sequence[float], geometry: Geometry) -> Box:
    """Return a box, clipped to the part of the photo that the network sees.

    Raises:
        ValueError: If it is empty, or outside of that part.

    Example:
        >>> check_box((2, 1, 9, 3), Geometry.identity((4, 6)))
        (2.0, 1.0, 6.0, 3.0)
    """
    region = geometry.region
    left, top = (max(float(box[side]), region[side]) for side in (0, 1))
    right, bottom = (min(float(box[side]), region[side]) for side in (2, 3))
    if left >= right or top >= bottom:
        raise ValueError(_unseen(f"the box {box_text(box)} (left, top, right, bottom)", geometry))
    return left, top, right, bottom


def _unseen(what: str, geometry: Geometry) -> str:
    return (
        f"the network does not see {what}: it sees {box_text(geometry.region)} of the photo; use "
        "resize_mode='pad' or 'squash'"
    )


def box_text(box: Sequence[float]) -> str:
    """Return a box as text.

    Example:
        >>> box_text((1.0, 2.5, 30.04, 4))
        '(1, 2.5, 30, 4)'
    """
    return f"({', '.join(f'{round(float(side), 1):g}' for side in box)})"


def mask_to_runs(mask: Bool[Tensor, "y x"]) -> tuple[tuple[int, int], tuple[int, ...]]:
    """Return the shape of a mask and its run lengths, row by row, starting with a run of False.

    Example:
        >>> mask_to_runs(torch.tensor([[False, True], [True, False]]))
        ((2, 2), (1, 2, 1))
    """
    values, counts = torch.unique_consecutive(mask.flatten().cpu(), return_counts=True)
    runs = counts.tolist()
    # the first run is False, and empty if the first pixel is True
    return (mask.shape[0], mask.shape[1]), tuple([0, *runs] if bool(values[0]) else runs)


def mask_from_runs(grid: tuple[int, int], runs: Sequence[int]) -> Bool[Tensor, "y x"]:
    """Decode the run lengths of `mask_to_runs`.

    Example:
        >>> mask_from_runs((2, 2), (1, 2, 1))
        tensor([[False,  True],
                [ True, False]])
    """
    values = torch.arange(len(runs)) % 2 == 1
    return values.repeat_interleave(torch.tensor(runs)).view(*grid)
