"""Outputs of segmentation and detection models: logit maps, detections, logits of queries."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from visattn.recording.model_outputs import describe_output

_MAP_KEYS = ("out", "logits", "pred_logits", "masks", "segmentation")
_QUERY_KEYS = ("logits", "pred_logits", "class_queries_logits")
_MASK_KEYS = ("masks_queries_logits", "pred_masks")
_CALLABLE = "pass a function of the output instead, from the output to one number for each image"


@dataclass(frozen=True, eq=False)
class ImageDetections:
    """Detections on one image.

    Args:
        boxes: Left, top, right, bottom in pixels of the network's input.
        scores: Score of each box; or of each box and class, between 0 and 1.
        labels: Class of each box; None if the scores have a column for each class.
        objectness: Probability of each box that it holds any object; None if the model has none.

    Example:
        >>> scores, labels = torch.tensor([0.9, 0.2]), torch.tensor([3, 5])
        >>> detections = ImageDetections(torch.zeros(2, 4), scores, labels)
        >>> detections.of_class(5)
        tensor([0.0000, 0.2000])
    """

    boxes: Float[Tensor, "n 4"]
    scores: Float[Tensor, " n"] | Float[Tensor, "n k"]
    labels: Int[Tensor, " n"] | None = None
    objectness: Float[Tensor, " n"] | None = None

    def of_class(self, index: int) -> Float[Tensor, " n"]:
        """Return the score of a class for each box.

        Raises:
            ValueError: If there is no such class.
        """
        if self.labels is not None:
            return self.scores * (self.labels == index)
        if not 0 <= index < self.scores.shape[1]:
            raise ValueError(
                f"the class must be an index from 0 to {self.scores.shape[1] - 1}, got {index}"
            )
        return self.scores[:, index]

    def best_class(self, index: int) -> tuple[int, float]:
        """Return the class of a box and its score."""
        if self.labels is not None:
            return int(self.labels[index]), float(self.scores[index].detach())
        score, label = self.scores[index].detach().max(0)
        return int(label), float(score)


def segmentation_logits(output: Any) -> Float[Tensor, "b k gy gx"]:
    """Return the score of each class at each cell, from the output of a segmentation model.

    It is the output itself, or its part `out` or `logits`. For models that classify masks (DETR for
    segmentation, MaskFormer, Mask2Former) it is the sum over queries of the class probabilities
    times the mask probabilities.

    Args:
        output: Output of the model.

    Raises:
        ValueError: If it has no such map.

    Example:
        >>> segmentation_logits({"out": torch.zeros(2, 21, 8, 8)}).shape
        torch.Size([2, 21, 8, 8])

    Source:
        Cheng et al. 2021, arXiv:2107.06278, section 3.4 (semantic inference of MaskFormer).
    """
    if _is_map(output):
        return output
    parts = _parts(output)
    masks = next((parts[key] for key in _MASK_KEYS if _is_map(parts.get(key))), None)
    queries = next((parts[key] for key in _QUERY_KEYS if _has_ndim(parts.get(key), 3)), None)
    if masks is not None and queries is not None and masks.shape[1] == queries.shape[1]:
        probabilities = queries.softmax(2)[..., :-1]  # without "no object"
        return torch.einsum("bqk,bqyx->bkyx", probabilities, masks.sigmoid())
    for key in _MAP_KEYS:
        if _is_map(parts.get(key)):
            return parts[key]
    raise ValueError(
        "a pixel or region needs the output of a segmentation model, a tensor [b, k, y, x] or a "
        f"part out or logits of this shape; got {describe_output(output)}; {_CALLABLE}"
    )


def query_logits(output: Any) -> Float[Tensor, "b q k"]:
    """Return the class logits of queries or tokens, from the output of a model.

    Args:
        output: A tensor, or an output with a part `logits`, `pred_logits` or
            `class_queries_logits`.

    Raises:
        ValueError: If it has none.

    Example:
        >>> query_logits({"logits": torch.zeros(2, 100, 92)}).shape
        torch.Size([2, 100, 92])
    """
    if _has_ndim(output, 3):
        return output
    parts = _parts(output)
    for key in _QUERY_KEYS:
        if _has_ndim(parts.get(key), 3):
            return parts[key]
    raise ValueError(
        "a query or token needs logits [b, q, k], as DETR and language models return them; got "
        f"{describe_output(output)}; {_CALLABLE}"
    )


def query_boxes(output: Any, size: tuple[int, int]) -> Float[Tensor, "b q 4"]:
    """Return the box of each query in pixels of the network's input.

    Args:
        output: An output with a part `pred_boxes`, or `boxes` beside `logits`: center, width and
            height between 0 and 1.
        size: Height and width of the network's input.

    Raises:
        ValueError: If it has none.

    Example:
        >>> query_boxes({"pred_boxes": torch.tensor([[[0.5, 0.5, 0.25, 0.5]]])}, (64, 128))
        tensor([[[48., 16., 80., 48.]]])
    """
    parts = _parts(output)
    boxes: Any = parts.get("pred_boxes", parts.get("boxes"))
    valid = _has_ndim(boxes, 3) and boxes.shape[2] == 4
    if not valid or not bool(((boxes >= 0) & (boxes <= 1)).all()):
        raise ValueError(
            "a box of a query needs pred_boxes [b, q, 4] of center, width and height between 0 and "
            f"1, got {describe_output(output)}; {_CALLABLE}"
        )
    center, half = boxes[..., :2], boxes[..., 2:] / 2
    corners = torch.cat((center - half, center + half), -1)
    return corners * corners.new_tensor((size[1], size[0]) * 2)


def read_detections(
    output: Any, size: tuple[int, int], num_classes: int | None = None
) -> list[ImageDetections]:
    """Return the detections on each image, from the output of a detector.

    Args:
        output: A list with a mapping of `boxes`, `scores` and `labels` for each image, as
            torchvision's detectors return it; or `logits` (or `pred_logits`) and `pred_boxes` of
            queries, as DETR and its successors do.
        size: Height and width of the network's input.
        num_classes: Number of classes of the model. Logits with one column more have a softmax with
            "no object" in the last one, logits with as many a sigmoid.

    Raises:
        ValueError: If the output is not of this form, or the number of classes is needed and
            unknown.

    Example:
        >>> boxes = torch.tensor([[0.0, 0.0, 4.0, 4.0]])
        >>> output = [{"boxes": boxes, "scores": torch.ones(1), "labels": torch.ones(1).long()}]
        >>> read_detections(output, (8, 8))[0].best_class(0)
        (1, 1.0)
    """
    if isinstance(output, Sequence) and not isinstance(output, str):
        images = [_parts(image) for image in cast("Sequence[Any]", output)]
        if images and all({"boxes", "scores", "labels"} <= set(image) for image in images):
            return [
                ImageDetections(image["boxes"], image["scores"], image["labels"])
                for image in images
            ]
    if not {"pred_boxes", "boxes"} & set(_parts(output)):
        raise ValueError(
            "a box needs the output of a detector: a list with boxes, scores and labels of each "
            f"image, or logits and pred_boxes of queries; got {describe_output(output)}; "
            f"{_CALLABLE}"
        )
    logits, boxes = query_logits(output), query_boxes(output, size)
    extra = None if num_classes is None else logits.shape[2] - num_classes
    if extra not in (0, 1):
        known = "is unknown" if num_classes is None else f"is {num_classes}"
        raise ValueError(
            f"the logits of a detector must have a column for each class, and one more if they "
            f'have "no object"; they have {logits.shape[2]}, and the number of classes {known}: '
            "pass the names of the classes, class_names="
        )
    if extra:
        shares = logits.softmax(2)
        scores, objectness = shares[..., :-1], 1 - shares[..., -1]
    else:
        scores = logits.sigmoid()
        objectness = scores.amax(2)
    triples = zip(boxes, scores, objectness, strict=True)
    return [ImageDetections(box, score, None, classes) for box, score, classes in triples]


def _parts(output: Any) -> dict[str, Any]:
    """Return the named parts of an output."""
    if isinstance(output, Mapping):
        return {str(key): part for key, part in cast("Mapping[Any, Any]", output).items()}
    if hasattr(output, "_fields"):
        return {name: getattr(output, name) for name in output._fields}
    return dict(vars(output)) if hasattr(output, "__dataclass_fields__") else {}


def _has_ndim(part: Any, ndim: int) -> bool:
    return isinstance(part, Tensor) and part.ndim == ndim and part.is_floating_point()


def _is_map(part: Any) -> bool:
    return _has_ndim(part, 4) and min(part.shape[2:]) > 0
