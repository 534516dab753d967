"""Losses of set prediction: by hand, matching against all permutations, and empty images."""

from itertools import permutations

import pytest
import torch

from visattn.functional.boxes import center_to_corners, generalized_box_iou
from visattn.models.detr import BoxPrediction
from visattn.results.kinds import NO_OBJECT
from visattn.training.detection.losses import SetCriterion

TRUE = torch.tensor([[[0.5, 0.5, 0.2, 0.4], [0.2, 0.3, 0.1, 0.1]]])


def random_layers(layers: int, images: int, queries: int, classes: int) -> BoxPrediction:
    random = torch.Generator().manual_seed(6)
    logits = torch.randn(layers, images, queries, classes, generator=random)
    boxes = torch.rand(layers, images, queries, 4, generator=random) * 0.5 + 0.2
    return BoxPrediction(logits, boxes)


def test_cross_entropy_by_hand() -> None:
    logits = torch.tensor([[[[2.0, 0.0, 1.0], [0.0, 0.0, 3.0]]]])
    boxes = TRUE[None].clone()
    criterion = SetCriterion()
    losses = criterion.losses(BoxPrediction(logits, boxes), torch.tensor([[0]]), TRUE[:, :1])
    log_probs = logits[0, 0].log_softmax(-1)
    expected = -(log_probs[0, 0] + 0.1 * log_probs[1, 2]) / 1.1
    torch.testing.assert_close(losses["class"], expected)
    assert losses["l1"].item() == losses["giou"].item() == 0


@pytest.mark.parametrize("num_queries", [5, 2])  # 2: fewer than objects
def test_matching_is_the_cheapest_of_all_permutations(num_queries: int) -> None:
    layers = random_layers(2, 3, num_queries, 4)
    labels = torch.tensor([[1, 2, 0], [2, NO_OBJECT, NO_OBJECT], [0, 0, NO_OBJECT]])
    true = torch.rand(3, 3, 4, generator=torch.Generator().manual_seed(8)) * 0.4 + 0.1
    criterion = SetCriterion()
    costs, matches = criterion.costs(layers, labels, true), criterion.match(layers, labels, true)
    for layer in range(2):
        for image, count in enumerate((3, 1, 2)):
            own = (matches.layer == layer) & (matches.image == image)
            rows, columns = matches.query[own], matches.object[own]
            table = costs[layer, image, :, :count]
            assert len(set(rows.tolist())) == len(set(columns.tolist())) == min(table.shape)
            table = table if num_queries >= count else table.mT
            best = min(
                sum(float(table[row, column]) for column, row in enumerate(picked))
                for picked in permutations(range(len(table)), table.shape[1])
            )
            total = float(costs[layer, image, rows, columns].sum())
            assert total == pytest.approx(best, rel=1e-5, abs=1e-5)


def test_costs_are_l1_of_centers_giou_of_corners_and_class() -> None:
    layers = random_layers(1, 1, 5, 3)
    costs = SetCriterion().costs(layers, torch.tensor([[1, 0]]), TRUE)
    probabilities = layers.logits[0, 0].softmax(-1)
    for query in range(5):
        for number, label in enumerate((1, 0)):
            box, true = layers.boxes[0, 0, query], TRUE[0, number]
            giou = generalized_box_iou(center_to_corners(box), center_to_corners(true))
            expected = 5 * (box - true).abs().sum() - 2 * giou - probabilities[query, label]
            torch.testing.assert_close(costs[0, 0, query, number], expected)


@pytest.mark.parametrize("length", [0, 2])
def test_images_without_objects_train_the_classes_only(length: int) -> None:
    layers = BoxPrediction(*(part.requires_grad_() for part in random_layers(2, 2, 3, 4)))
    labels = torch.full((2, length), NO_OBJECT)
    losses = SetCriterion().losses(layers, labels, torch.zeros(2, length, 4))
    assert losses["l1"].item() == losses["giou"].item() == 0
    assert losses["class"].item() > 0
    sum(losses.values()).backward()  # type: ignore[union-attr]
    assert layers.logits.grad is not None
    assert float(layers.logits.grad.abs().sum()) > 0


def test_losses_are_per_object_and_summed_over_layers() -> None:
    layers, labels = random_layers(1, 1, 5, 3), torch.tensor([[1, 0]])
    criterion = SetCriterion()
    once = criterion.losses(layers, labels, TRUE)
    doubled = BoxPrediction(*(part.expand(2, 2, -1, -1) for part in layers))
    twice = criterion.losses(doubled, labels.expand(2, -1), TRUE.expand(2, -1, -1))
    for name, loss in once.items():
        torch.testing.assert_close(twice[name], 2 * loss)  # two layers; as many per object
