"""Losses of visual question answering: of the answers, and of where each hop should look."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from visattn.data.questions.batch import QuestionBatch
from visattn.metrics.maps.grounding import box_coverage


def answer_loss(
    logits: Float[Tensor, "r k"], batch: QuestionBatch, *, label_smoothing: float = 0.0
) -> Float[Tensor, ""]:
    """Return the cross-entropy of answers; against soft labels if several people answered.

    Questions without an answer that the model knows are left out.

    Args:
        logits: Logits of the answers.
        batch: The questions with their answers.
        label_smoothing: Label smoothing.
    """
    if batch.soft_scores is None:
        targets: Tensor = batch.answers
        known: Int[Tensor, " q"] = (batch.answers >= 0).nonzero()[:, 0]
    else:
        totals = batch.soft_scores.sum(1, keepdim=True)
        targets = batch.soft_scores / totals.clamp(min=1e-9)
        known = (totals[:, 0] > 0).nonzero()[:, 0]
    if not len(known):
        return logits.sum() * 0
    return cross_entropy(logits[known], targets[known], label_smoothing=label_smoothing)


def hop_targets(
    batch: QuestionBatch,
    grid: tuple[int, int],
    num_hops: int,
    boxes_to_cells: Callable[[Tensor], Tensor] = lambda boxes: boxes,
) -> Float[Tensor, "r {num_hops} n"]:
    """Return how much of each cell is covered by the objects that each hop should look at.

    Hop k should look at the objects of step k, and hops beyond the last step at those of the last
    step. A cell counts by the object that covers most of it.

    Args:
        batch: Questions with boxes and referents.
        grid: Rows and columns of cells.
        num_hops: Number of hops.
        boxes_to_cells: Of the model's encoder, which knows where its cells lie.

    Returns:
        Zeros for questions without referents.
    """
    boxes, referents = batch.boxes, batch.referents
    if boxes is None or referents is None:
        return torch.zeros(len(batch.answers), num_hops, grid[0] * grid[1])
    height, width = batch.images.shape[2:]
    sides = boxes.new_tensor([width, height, width, height])
    placed = boxes_to_cells(boxes / sides)
    covered = box_coverage(placed[:, :, None], grid).flatten(-2)[batch.image_indices]
    last_step = referents.any(-1).sum(1).clamp(min=1) - 1
    hops = torch.arange(num_hops, device=boxes.device)
    steps = torch.minimum(hops, last_step[:, None])
    chosen = referents.gather(1, steps[..., None].expand(-1, -1, referents.shape[2]))
    return (covered[:, None] * chosen[..., None]).amax(2)
