"""Set prediction losses of object detection: matching, classification and box losses."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn.functional import cross_entropy, l1_loss, one_hot
from torchvision.ops import sigmoid_focal_loss

from visattn.functional.boxes import center_to_corners, generalized_box_iou
from visattn.models.detr import BoxPrediction, ClassProbability, DetrOutput
from visattn.results.kinds import NO_OBJECT
from visattn.training.reduce import all_reduce_mean

_ALPHA = 0.25  # of the focal loss
_GAMMA = 2.0


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

    `sigmoid` has the focal loss, `softmax` cross-entropy. For the weights see `DetectionTask`.

    Example:
        >>> criterion = SetCriterion("sigmoid")
        >>> logits, box = torch.zeros(1, 1, 2, 3), torch.tensor([0.5, 0.5, 0.2, 0.2])
        >>> layers = BoxPrediction(logits, torch.stack((box, box / 2))[None, None])
        >>> labels, boxes = torch.tensor([[1]]), box[None, None]
        >>> criterion.match(layers, labels, boxes).query
        tensor([0])

    Source:
        Carion et al. 2020, arXiv:2005.12872, equations 1 and 2; focal loss and its cost: Lin et al.
        2017, arXiv:1708.02002, and the code of Zhu et al. 2020, arXiv:2010.04159.
    """

    class_probability: ClassProbability
    class_weight: float = 2.0
    l1_weight: float = 5.0
    giou_weight: float = 2.0
    no_object_weight: float = 0.1

    def losses(
        self, output: DetrOutput, labels: Int[Tensor, "b m"], boxes: Float[Tensor, "b m 4"]
    ) -> dict[str, Float[Tensor, ""]]:
        """Return the weighted losses of all predictions: `class`, `l1` and `giou`.

        Padding has the label `NO_OBJECT`. Boxes are center x, center y, width and height, relative
        to the image.
        """
        terms = [self.matched_losses(output.layers, labels, boxes)]
        if output.proposals is not None:
            proposals = BoxPrediction(output.proposals.logits[None], output.proposals.boxes[None])
            terms.append(self.matched_losses(proposals, labels, boxes))
        if output.denoising is not None:
            prediction, known, true = denoising_pairs(output.denoising, labels, boxes)
            terms.append(self.matched_losses(prediction, known, true, identity=True))
        return {name: torch.stack([term[name] for term in terms]).sum() for name in terms[0]}

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
            # Without the columns of padding, which would take queries from objects.
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
        if self.class_probability == "softmax":
            cost = -logits.softmax(-1)
        else:
            p = logits.sigmoid().clamp(1e-8, 1 - 1e-8)
            cost = _ALPHA * (1 - p) ** _GAMMA * -p.log() - (1 - _ALPHA) * p**_GAMMA * -(1 - p).log()
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

    def matched_losses(
        self,
        layers: BoxPrediction,
        labels: Int[Tensor, "b m"],
        boxes: Float[Tensor, "b m 4"],
        *,
        identity: bool = False,
    ) -> dict[str, Float[Tensor, ""]]:
        """Return the weighted losses of predictions, added over the layers, their first axis.

        With `identity`, query i belongs to object i; otherwise they are matched.
        """
        matches = identity_matches(layers) if identity else self.match(layers, labels, boxes)
        at = (matches.layer, matches.image, matches.query)
        predicted = layers.boxes[at].float()
        true = boxes[matches.image, matches.object]
        classes = torch.full(layers.logits.shape[:3], NO_OBJECT, device=labels.device)
        classes[at] = labels[matches.image, matches.object]
        giou = generalized_box_iou(center_to_corners(predicted), center_to_corners(true))
        num_objects = (labels != NO_OBJECT).sum()
        count = num_objects.clamp(min=1)
        # DDP averages gradients, so the sums are divided by the mean number of objects per process.
        total = all_reduce_mean(num_objects.float()).clamp(min=1)
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
        """Return the sum of the focal loss, or `count` times the mean cross-entropy, per layer."""
        num_classes = logits.shape[-1]
        if self.class_probability == "sigmoid":
            # Class -1, no object, becomes the column that is cut off: a row of zeros.
            targets = one_hot(classes + 1, num_classes + 1)[..., 1:].to(logits)
            return sigmoid_focal_loss(logits, targets, _ALPHA, _GAMMA, reduction="sum")
        weights = logits.new_ones(num_classes)
        weights[-1] = self.no_object_weight
        classes = classes.where(classes != NO_OBJECT, num_classes - 1)
        # As in DETR, the cross-entropy is a weighted mean over queries, which the number of objects
        # does not divide: `count` cancels that division.
        means = [
            cross_entropy(layer.flatten(0, 1), target.flatten(), weights)
            for layer, target in zip(logits, classes, strict=True)
        ]
        return torch.stack(means).sum() * count


def identity_matches(layers: BoxPrediction) -> Matches:
    """Return the matches of predictions whose query i belongs to object i."""
    ones = layers.logits.new_ones(layers.logits.shape[:3], dtype=torch.bool)
    layer, image, query = ones.nonzero().unbind(1)
    return Matches(layer, image, query, query)


def denoising_pairs(
    denoising: BoxPrediction, labels: Int[Tensor, "b m"], boxes: Float[Tensor, "b m 4"]
) -> tuple[BoxPrediction, Int[Tensor, "1 p"], Float[Tensor, "1 p 4"]]:
    """Return the predictions of denoising queries without padding, and the object of each."""
    groups = denoising.logits.shape[2] // labels.shape[1]
    # Indexing by a mask joins all images to a single one, in which query i belongs to object i and
    # no padding is left.
    real = (labels != NO_OBJECT).repeat(1, groups)
    prediction = BoxPrediction(
        denoising.logits[:, real].unsqueeze(1), denoising.boxes[:, real].unsqueeze(1)
    )
    known = labels.repeat(1, groups)[real]
    true = boxes.repeat(1, groups, 1)[real]
    return prediction, known[None], true[None]
