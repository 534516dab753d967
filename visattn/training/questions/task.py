"""Training of visual question answering models."""

import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from visattn.data.captions.batch import num_paired
from visattn.data.questions.batch import QuestionBatch
from visattn.functional.captions import attention_supervision_loss
from visattn.metrics.grounding import box_coverage
from visattn.models.vqa.model import AnswerOutput, VQAModel
from visattn.training.metrics import Evaluation, WeightedMean
from visattn.training.optim import OptimConfig
from visattn.training.questions.metrics import (
    QuestionScores,
    ReferentScores,
    answer_scores,
    referent_boxes,
)
from visattn.training.reduce import (
    all_gather_union,
    all_reduce,
    ddp_loss_scale,
    world_size,
)
from visattn.training.task import Task


def answer_loss(
    logits: Float[Tensor, "r k"], batch: QuestionBatch, *, label_smoothing: float = 0.0
) -> tuple[Float[Tensor, ""], int]:
    """Return the mean cross-entropy of answers, and the number of answers in the mean.

    It uses soft labels if several people answered. Questions without an answer that the model knows
    are ignored; returns 0 and 0 if none remain.
    """
    if batch.soft_scores is None:
        targets: Tensor = batch.answers
        known: Int[Tensor, " q"] = (batch.answers >= 0).nonzero()[:, 0]
    else:
        totals = batch.soft_scores.sum(1, keepdim=True)
        targets = batch.soft_scores / totals.clamp(min=1e-9)
        known = (totals[:, 0] > 0).nonzero()[:, 0]
    if not len(known):
        # 0 with a graph, since DDP waits for the gradients of all processes.
        return logits.sum() * 0, 0
    loss = cross_entropy(logits[known], targets[known], label_smoothing=label_smoothing)
    return loss, len(known)


def hop_targets(
    batch: QuestionBatch,
    grid: tuple[int, int],
    num_hops: int,
) -> Float[Tensor, "r {num_hops} n"]:
    """Return how much of each cell is covered by the objects that each hop should look at.

    Hop k should look at the objects of step k, and hops beyond the last step at those of the last
    step. The value of a cell is the largest share that an object covers.

    Questions without referents have zeros.
    """
    boxes = batch.boxes
    referents = batch.referents
    if boxes is None or referents is None:
        return torch.zeros(len(batch.answers), num_hops, grid[0] * grid[1])
    height, width = batch.images.shape[2:]
    sides = boxes.new_tensor([width, height, width, height])
    covered = box_coverage((boxes / sides)[:, :, None], grid).flatten(-2)[batch.image_indices]
    # Four hops of a question with two steps look at the objects of the steps 0, 1, 1 and 1.
    last_step = referents.any(-1).sum(1).clamp(min=1) - 1
    hops = torch.arange(num_hops, device=boxes.device)
    steps = torch.minimum(hops, last_step[:, None])
    chosen = referents.gather(1, steps[..., None].expand(-1, -1, referents.shape[2]))
    return (covered[:, None] * chosen[..., None]).amax(2)


CONTROLS = ("other_image", "blank_image")
_FIRST_SCORE_STEPS = 10
_OPTIM = OptimConfig(warmup_steps=100, decay_start=0.5)


class QuestionTask(Task):
    """Train a visual question answering model.

    The loss is the cross-entropy of the answer; if several people answered, the targets are the VQA
    accuracies of the answers, divided by their sum.

    Metrics are those of `QuestionScores` and, if the data have the objects of a question, of
    `ReferentScores`. The test adds two controls: `other_image_...`, the same questions with the
    images of each pair swapped, and `blank_image_...`, with a gray image. A model that uses the
    images then drops to the level of the questions alone, which is best measured by a model trained
    with `blank_images: true`.

    Args:
        vqa_model: The model; it gets the words of the questions and the answers from the data.
        data_info: Values that the data module provides: `words`, `answers`, `question_types` and
            `num_steps`.
        hop_loss_weight: Weight of the supervision of maps: minus the log of the attention inside
            the objects that the question is about. Hop k is supervised by step k of the reasoning;
            hops beyond the last step by the last step.
        first_types: Types of questions that the training begins with: only their answers, and maps,
            count in the loss of the first `first_steps` steps. A model that must learn all types at
            once, without supervision of its maps, may never find where to look.
        first_steps: Steps of training on `first_types`, at most.
        first_accuracy: Accuracy of their answers, a running mean over some ten steps of training,
            at which these steps end before `first_steps`; how soon maps find where to look differs
            between seeds. None for the same number of steps in all runs.
        label_smoothing: Label smoothing of the cross-entropy.
        optim: The optimizer, by default AdamW with a learning rate of 1e-3 and a weight decay of
            1e-2; `lr_mults` for `encoder` and `decoder`.
        monitor: The validation metric that selects the best checkpoint.

    Raises:
        ValueError: If maps are supervised although the model has none or the data do not know the
            objects, or the data have no such `first_types`.
    """

    model: VQAModel
    idle_parameters = True  # timm backbones may have layers after their last stage

    def __init__(
        self,
        vqa_model: Callable[[list[str], list[str]], VQAModel],
        data_info: dict[str, Any],
        *,
        hop_loss_weight: float = 0.0,
        first_types: list[str] | None = None,
        first_steps: int = 0,
        first_accuracy: float | None = None,
        label_smoothing: float = 0.0,
        optim: OptimConfig = _OPTIM,
        monitor: str = "val/mean_accuracy",
    ) -> None:
        super().__init__(vqa_model(data_info["words"], data_info["answers"]), optim, monitor)
        self.model.question_beginnings = tuple(data_info.get("question_beginnings", ()))
        self.types = {name: index for index, name in enumerate(data_info["question_types"])}
        num_hops = len(self.model.hop_names)
        num_steps = data_info["num_steps"]
        if hop_loss_weight and not (num_hops and num_steps):
            raise ValueError(
                "hop_loss_weight supervises the maps of hops by the objects that a question is "
                "about: it needs a model with maps, and data with their objects; this model has "
                f"{num_hops} maps, the data {num_steps} steps of reasoning"
            )
        self.first_types = frozenset(first_types or ())
        if unknown := self.first_types - set(self.types):
            raise ValueError(f"first_types must be of {', '.join(self.types)}; got {unknown}")
        self.first_steps = first_steps
        self.first_accuracy = first_accuracy
        self._first_score = 0.0  # running mean; infinite after the threshold was reached
        self.hop_loss_weight = hop_loss_weight
        self.label_smoothing = label_smoothing
        types = data_info["question_types"]
        num_answers = len(self.model.answers)
        self.add_evaluations(lambda: QuestionEvaluation(types, num_answers, num_steps, num_hops))

    def training_step(self, batch: QuestionBatch, batch_idx: int) -> Tensor:
        """Return the loss of a batch; initially only of questions of the first types."""
        begins = self.global_step < self.first_steps and self._first_score < math.inf
        if begins:
            batch = batch.of_types(self.first_types)
        output = self._answer(batch)
        if begins and self.first_accuracy is not None:
            self._update_first_score(output, batch)
        loss, count = answer_loss(output.logits, batch, label_smoothing=self.label_smoothing)
        self.log("train/loss", loss.detach(), prog_bar=True, batch_size=len(batch.answers))
        loss = loss * ddp_loss_scale(count, loss.device)
        if self.hop_loss_weight and output.attention is not None and batch.boxes is not None:
            loss = loss + self.hop_loss_weight * self._hop_loss(output.attention, batch)
        return loss

    def evaluate(self, batch: QuestionBatch, split: str) -> None:
        """Update the metrics of a split; controls only outside of `fit`."""
        evaluation: QuestionEvaluation = self.evaluation(split)
        output = self._answer(batch)
        loss, count = answer_loss(output.logits, batch)
        evaluation.loss.update(loss * count, count)
        types = torch.tensor([self.types[q.type] for q in batch.rows()], device=self.device)
        available = answer_scores(batch.answers, batch.soft_scores, output.logits.shape[1])
        evaluation.scores.update(output.logits.argmax(1), available, types)
        referents = batch.referents
        if output.attention is not None and batch.boxes is not None and referents is not None:
            size = (batch.images.shape[2], batch.images.shape[3])
            boxes = referent_boxes(batch.boxes, referents, batch.image_indices, size)
            maps = output.attention.unflatten(2, self.model.grid_size)
            evaluation.referents.update(maps, boxes)
        if not self.fitting:
            paired = batch.image_indices < num_paired(batch)
            for name, other in zip(
                CONTROLS, (batch.swap_images(), batch.without_images()), strict=True
            ):
                predictions = self._answer(other).logits.argmax(1)[paired]
                evaluation.controls[name].update(predictions, available[paired], types[paired])

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Save the running accuracy of the first types."""
        super().on_save_checkpoint(checkpoint)
        checkpoint["visattn"]["first_score"] = self._first_score

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the running accuracy of the first types."""
        super().on_load_checkpoint(checkpoint)
        self._first_score = checkpoint.get("visattn", {}).get("first_score", 0.0)

    def _update_first_score(self, output: AnswerOutput, batch: QuestionBatch) -> None:
        """Update the running accuracy of the first types, equal in all processes."""
        chosen = output.logits.detach().argmax(1)
        available = answer_scores(batch.answers, batch.soft_scores, output.logits.shape[1])
        scores = available.gather(1, chosen[:, None])
        score = float(all_reduce(scores.mean())) / world_size()
        self._first_score += (score - self._first_score) / _FIRST_SCORE_STEPS
        self.log("train/first_accuracy", self._first_score, batch_size=len(batch.answers))
        if self.first_accuracy is not None and self._first_score >= self.first_accuracy:
            rank_zero_info(
                f"step {self.global_step:,}: {', '.join(sorted(self.first_types))} learned, the "
                "other question types follow"
            )
            self._first_score = math.inf

    def _answer(self, batch: QuestionBatch) -> AnswerOutput:
        return self.model(batch.images, batch.questions, batch.image_indices)

    def _hop_loss(
        self, attention: Float[Tensor, "r hops n"], batch: QuestionBatch
    ) -> Float[Tensor, ""]:
        """Return the mean loss of the maps of all hops against the objects of their steps."""
        targets = hop_targets(batch, self.model.encoder.grid_size, attention.shape[1])
        supervised = (targets.sum(-1) > 0).flatten()
        loss = attention_supervision_loss(
            attention.flatten(0, 1), targets.flatten(0, 1), supervised, "mass"
        )
        self.log("train/hop_loss", loss.detach(), batch_size=len(batch.answers))
        return loss * ddp_loss_scale(supervised.sum(), loss.device)


class QuestionEvaluation(Evaluation):
    """Metrics of a split: answers, the loss, referents, and the controls."""

    def __init__(
        self, types: dict[str, str], num_answers: int, num_steps: int, num_hops: int
    ) -> None:
        super().__init__()
        self.scores = QuestionScores(types, num_answers)
        self.loss = WeightedMean()
        self.referents = ReferentScores(num_steps=num_steps, num_hops=num_hops)
        self.controls: Any = nn.ModuleDict(
            {name: QuestionScores(types, num_answers) for name in CONTROLS}
        )
        self.names = (*self.scores.names, "loss", *self.referents.names)

    def compute(self) -> dict[str, Tensor]:
        """Return all metrics by name; controls if any process updated them."""
        values = {**self.scores.compute(), "loss": self.loss.compute()}
        metrics = {"referents": self.referents, **self.controls}
        updated = all_gather_union(name for name, each in metrics.items() if each.update_called)
        if "referents" in updated:
            values |= self.referents.compute()
        for name in (name for name in CONTROLS if name in updated):
            results = self.controls[name].compute()
            values |= {f"{name}_{key}": results[key] for key in ("accuracy", "mean_accuracy")}
            for group in self.scores.groups:
                values[f"{name}_accuracy_{group}"] = results[f"accuracy_{group}"]
        return values
