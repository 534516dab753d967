"""Metrics of visual question answering: accuracy by question type, and maps on referents."""

from collections.abc import Mapping

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import one_hot

from visattn.metrics.grounding import (
    attention_correctness,
    box_coverage,
    pointing_hit,
    uniform_baseline,
)
from visattn.training.metrics import Sums

REFERENT_METRICS = ("pointing", "mass", "area")


class QuestionScores(Sums):
    """Accuracy of answers by question type, and that of the most frequent answer of each type.

    `accuracy` is the mean over all questions, `mean_accuracy` the mean over the types; then that of
    each group and of each type. With several answers per question, an answer counts by its VQA
    accuracy. `majority` is the accuracy of always giving the most frequent answer of a type, the
    mean over the types; a model that ignores the images reaches no more. `off_type_answers` is the
    fraction of answers that are correct for no question of that type. `num_questions` counts them.

    Args:
        types: Types of questions, with the group of each; an empty group is none.
        num_answers: Number of answers between which the model chooses.

    Example:
        >>> scores = QuestionScores({"shape": "", "side": ""}, 3)
        >>> available = torch.tensor([[1.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]])
        >>> predictions, types = torch.tensor([0, 2, 1, 1]), torch.tensor([0, 0, 0, 1])
        >>> scores.update(predictions, available, types)
        >>> {name: round(float(value), 2) for name, value in scores.compute().items()}
        {'accuracy': 0.5, 'mean_accuracy': 0.33, 'accuracy_shape': 0.67, 'accuracy_side': 0.0,
         'majority': 0.83, 'off_type_answers': 0.5, 'num_questions': 4.0}
    """

    correct: Tensor
    count: Tensor
    available: Tensor
    predicted: Tensor

    def __init__(self, types: Mapping[str, str], num_answers: int) -> None:
        kinds, table = (len(types),), (len(types), num_answers)
        super().__init__(correct=kinds, count=kinds, available=table, predicted=table)
        self.types = dict(types)
        self.groups = list(dict.fromkeys(group for group in types.values() if group))
        self.names = tuple(self._values())

    def update(
        self,
        predictions: Int[Tensor, " r"],
        available: Float[Tensor, "r k"],
        types: Int[Tensor, " r"],
    ) -> None:
        """Add answers, given as their index, the accuracy of each answer, and the types."""
        available = available.double()
        self.correct.index_add_(0, types, available.gather(1, predictions[:, None])[:, 0])
        self.count.index_add_(0, types, torch.ones_like(types, dtype=torch.float64))
        self.available.index_add_(0, types, available)
        chosen = one_hot(predictions, available.shape[1]).double()
        self.predicted.index_add_(0, types, chosen)

    def compute(self) -> dict[str, Tensor]:
        """Return all metrics by name; NaN for types without questions."""
        return self._values()

    def _values(self) -> dict[str, Tensor]:
        per_type = self.correct / self.count
        best = self.available.amax(1)
        values: dict[str, Tensor] = {
            "accuracy": self.correct.sum() / self.count.sum(),
            "mean_accuracy": per_type.nanmean(),
        }
        for group in self.groups:
            values[f"accuracy_{group}"] = self._of_group(self.correct, group)
        values |= {f"accuracy_{name}": per_type[i] for i, name in enumerate(self.types)}
        values["majority"] = (best / self.count).nanmean()
        for group in self.groups:
            values[f"majority_{group}"] = self._of_group(best, group)
        # Answers that are correct for no question of their type, which is only known at the end.
        off_type = (self.predicted * (self.available == 0)).sum()
        values["off_type_answers"] = off_type / self.count.sum()
        values["num_questions"] = self.count.sum()
        return {name: value.float() for name, value in values.items()}

    def _of_group(self, amounts: Float[Tensor, " types"], group: str) -> Float[Tensor, ""]:
        members = torch.tensor([own == group for own in self.types.values()], device=amounts.device)
        return amounts[members].sum() / self.count[members].sum()


def answer_scores(
    answers: Int[Tensor, " r"], soft_scores: Float[Tensor, "r k"] | None, num_answers: int
) -> Float[Tensor, "r k"]:
    """Return the accuracy of each possible answer: 1 for the correct one, or the VQA accuracy.

    The correct answer is -1 if the model does not know it. Without `soft_scores`, the VQA accuracy
    of each answer, each question has one answer.

    Example:
        >>> answer_scores(torch.tensor([1, -1]), None, 2)
        tensor([[0., 1.],
                [0., 0.]])
    """
    if soft_scores is not None:
        return soft_scores
    return one_hot(answers + 1, num_answers + 1)[:, 1:].float()


class ReferentScores(Sums):
    """How well the map of each hop matches the objects of each reasoning step.

    `pointing`: how often the center of the maximum cell is in the box of such an object; `mass`:
    attention inside of the boxes, by the exact area of each cell; `area`: their share of the image,
    which is the mass of uniform attention. Each combination of step and hop is counted separately.

    Args:
        num_steps: Maximum number of reasoning steps.
        num_hops: Number of maps of the model.

    Example:
        >>> scores = ReferentScores(num_steps=1, num_hops=1)
        >>> boxes = torch.tensor([[[[0.0, 0.0, 0.5, 1.0]]]])
        >>> scores.update(torch.tensor([[[[0.75, 0.25]]]]), boxes)
        >>> [float(value) for value in scores.compute().values()]
        [1.0, 0.75, 0.5]
    """

    sums: Tensor
    count: Tensor

    def __init__(self, *, num_steps: int, num_hops: int) -> None:
        shape = (num_hops, num_steps, len(REFERENT_METRICS))
        super().__init__(sums=shape, count=(num_steps,))
        self.names = tuple(
            f"hop_{hop + 1}_step_{step + 1}_{name}"
            for hop in range(num_hops)
            for step in range(num_steps)
            for name in REFERENT_METRICS
        )

    def update(
        self, attention: Float[Tensor, "r hops gy gx"], boxes: Float[Tensor, "r s o 4"]
    ) -> None:
        """Add the map of each hop, which sums to one, and what `referent_boxes` returns."""
        maps = attention.double()
        for step, step_boxes in enumerate(boxes.double().unbind(1)):
            rows = (step_boxes[..., 2:] > step_boxes[..., :2]).all(-1).any(-1)
            inside = step_boxes[rows][:, None]
            coverage = box_coverage(inside, (maps.shape[-2], maps.shape[-1]))
            values = (
                pointing_hit(maps[rows], inside).double(),
                attention_correctness(maps[rows], coverage),
                uniform_baseline(coverage).expand(-1, maps.shape[1]),
            )
            self.sums[:, step] += torch.stack(values, -1).sum(0)
            self.count[step] += rows.sum()

    def compute(self) -> dict[str, Tensor]:
        """Return all metrics by name; NaN without such steps."""
        means = (self.sums / self.count[:, None]).flatten().float()
        return dict(zip(self.names, means.unbind(), strict=True))


def referent_boxes(
    boxes: Float[Tensor, "b o 4"],
    referents: Bool[Tensor, "r s o"],
    image_indices: Int[Tensor, " r"],
    size: tuple[int, int],
) -> Float[Tensor, "r s o 4"]:
    """Return the boxes of the objects of each step as fractions of the image; zeros for others.

    `boxes` and `size` (height and width) are in pixels.

    Example:
        >>> boxes, chosen = torch.tensor([[[2.0, 0.0, 4.0, 4.0]]]), torch.ones(1, 1, 1) > 0
        >>> referent_boxes(boxes, chosen, torch.tensor([0]), (4, 8))
        tensor([[[[0.2500, 0.0000, 0.5000, 1.0000]]]])
    """
    sides = boxes.new_tensor([size[1], size[0], size[1], size[0]])
    return (boxes / sides)[image_indices][:, None] * referents[..., None]
