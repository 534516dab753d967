"""Set prediction losses of object detection: matching, classification and box losses."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn.functional import cross_entropy, l1_loss

from visattn.functional.boxes import center_to_corners, generalized_box_iou
from visattn.models.detr import BoxPrediction
from visattn.results.kinds import NO_OBJECT
from visattn.training.reduce import all_reduce, world_size


class Matches(NamedTuple):
    """Pairs of queries and objects; each index has one entry per pair."""

    layer: Int[Tensor, " p"]
    image: Int[Tensor, " p"]
    query: Int[Tensor, " p"]
    object: Int[Tensor, " p"]


@dataclass(frozen=True)
class SetCriterion:
    """Losses of a set of predictions, whose queries are matched to the objects.

    The same weights apply to the terms of the matching cost and of the loss. The sums are divided
    by the number of objects in the batch, over all processes, and added over the decoder layers.
    For the weights see `DetectionTask`.

    Example:
        >>> criterion = SetCriterion()
        >>> logits, box = torch.zeros(1, 1, 2, 3), torch.tensor([0.5, 0.5, 0.2, 0.2])
        >>> layers = BoxPrediction(logits, torch.stack((box, box / 2))[None, None])
        >>> labels, boxes = torch.tensor([[1]]), box[None, None]
        >>> criterion.match(layers, labels, boxes).query
        tensor([0])

    Source:
        Carion et al. 2020, arXiv:2005.12872, equations 1 and 2.
    """

    class_weight: float = 1.0
    l1_weight: float = 5.0
    giou_weight: float = 2.0
    no_object_weight: float = 0.1

    @torch.no_grad()
    def match(
        self,
        layers: BoxPrediction,
        labels: Int[Tensor, "b m"],
        boxes: Float[Tensor, "b m 4"],
    ) -> Matches:
        """Return the assignment of objects to queries with the smallest total cost, per layer.

        Raises:
            ValueError: If a prediction is NaN.
        """
        costs = self.costs(layers, labels, boxes).double().cpu().numpy()
        pairs: list[tuple[int, int, int, int]] = []
        for image, real in enumerate((labels != NO_OBJECT).cpu()):
            columns = real.nonzero().flatten().tolist()
            # Without the padding, which would take queries from objects.
            for layer in range(len(costs) if columns else 0):
                rows, picked = linear_sum_assignment(costs[layer, image][:, columns])
                pairs += [
                    (layer, image, row, columns[pick])
                    for row, pick in zip(rows.tolist(), picked.tolist(), strict=True)
                ]
        index = torch.tensor(pairs, dtype=torch.long, device=labels.device).view(-1, 4)
        return Matches(*index.unbind(1))

    def costs(
        self,
        layers: BoxPrediction,
        labels: Int[Tensor, "b m"],
        boxes: Float[Tensor, "b m 4"],
    ) -> Float[Tensor, "l b n m"]:
        """Return the cost of each pair of query and object, for each layer; in float32."""
        logits = layers.logits.float()
        predicted = layers.boxes.float()
        cost = -logits.softmax(-1)
        index = labels.clamp(min=0)[None, :, None].expand(*cost.shape[:3], -1)
        l1 = (predicted[:, :, :, None] - boxes[:, None]).abs().sum(-1)
        giou = generalized_box_iou(
            center_to_corners(predicted)[:, :, :, None], center_to_corners(boxes)[:, None]
        )
        return (
            self.class_weight * cost.gather(3, index)
            + self.l1_weight * l1
            - self.giou_weight * giou
        )

    def losses(
        self, layers: BoxPrediction, labels: Int[Tensor, "b m"], boxes: Float[Tensor, "b m 4"]
    ) -> dict[str, Float[Tensor, ""]]:
        """Return the weighted losses of predictions, summed over layers, the first axis.

        Padding has the label `NO_OBJECT`. Boxes are center x, center y, width and height, relative
        to the image. The names are `class`, `l1` and `giou`.
        """
        matches = self.match(layers, labels, boxes)
        at = (matches.layer, matches.image, matches.query)
        predicted = layers.boxes[at].float()
        true = boxes[matches.image, matches.object]
        classes = torch.full(layers.logits.shape[:3], NO_OBJECT, device=labels.device)
        classes[at] = labels[matches.image, matches.object]
        giou = generalized_box_iou(center_to_corners(predicted), center_to_corners(true))
        num_objects = (labels != NO_OBJECT).sum()
        count = num_objects.clamp(min=1)
        # DDP averages gradients, so the sums are divided by the mean number of objects per process.
        total = (all_reduce(num_objects.float()) / world_size()).clamp(min=1)
        class_loss = self._class_loss(layers.logits.float(), classes, count)
        return {
            "class": self.class_weight * class_loss / total,
            "l1": self.l1_weight * l1_loss(predicted, true, reduction="sum") / total,
            "giou": self.giou_weight * (1 - giou).sum() / total,
        }

    def _class_loss(
        self,
        logits: Float[Tensor, "l b n k"],
        classes: Int[Tensor, "l b n"],
        count: Int[Tensor, ""],
    ) -> Float[Tensor, ""]:
        """Return `count` times the mean cross-entropy of each layer, summed."""
        num_classes = logits.shape[-1]
        weights = logits.new_ones(num_classes)
        weights[-1] = self.no_object_weight
        classes = classes.where(classes != NO_OBJECT, num_classes - 1)
        # As in DETR, the cross-entropy is a weighted mean over queries, without division by the
        # number of objects: `count` cancels that division.
        means = [
            cross_entropy(layer.flatten(0, 1), target.flatten(), weights)
            for layer, target in zip(logits, classes, strict=True)
        ]
        return torch.stack(means).sum() * count
