"""Segmentation losses: plain references in float64, values by hand, ignored pixels."""

import math

import pytest
import torch
from torch.nn.functional import binary_cross_entropy, cross_entropy, one_hot

from visattn.training.segmentation.losses import (
    dice_loss,
    focal_loss,
    gate_supervision_loss,
    pixel_cross_entropy,
)


def batch(seed: int, classes: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(2, classes, 7, 11, generator=random)
    labels = torch.randint(classes, (2, 7, 11), generator=random)
    labels[torch.rand(2, 7, 11, generator=random) < 0.2] = 255
    return logits, labels


@pytest.mark.parametrize("background", [False, True])
def test_dice_is_that_of_the_counted_pixels(*, background: bool) -> None:
    logits, labels = batch(3)
    counted, first = labels != 255, 0 if background else 1
    predicted = logits.double().softmax(1).movedim(1, -1)[counted][:, first:]
    true = one_hot(labels[counted], 5)[:, first:]
    inside, total = (predicted * true).sum(0), (predicted + true).sum(0)
    expected = (1 - (2 * inside + 0.7) / (total + 0.7)).mean()
    loss = dice_loss(logits, labels, background=background, smooth=0.7)
    torch.testing.assert_close(loss.double(), expected)


def test_absent_classes_cost_nothing_and_the_loss_stays_between_0_and_1() -> None:
    labels = torch.zeros(1, 3, 3, dtype=torch.uint8)
    sure = torch.stack([torch.full((1, 3, 3), v) for v in (90.0, -90.0, -90.0)], 1)
    assert float(dice_loss(sure, labels)) == pytest.approx(0, abs=1e-6)
    assert 0 <= float(dice_loss(-sure, labels)) <= 1


def test_ignored_pixels_have_no_influence() -> None:
    logits, labels = batch(4)
    changed = torch.where((labels == 255)[:, None], -7 * logits + 3, logits).requires_grad_()
    for loss in (dice_loss, focal_loss, pixel_cross_entropy):
        torch.testing.assert_close(loss(changed, labels), loss(logits, labels))
        nothing = loss(changed, torch.full_like(labels, 255))
        (gradient,) = torch.autograd.grad(nothing, changed)
        assert (float(nothing.detach()), bool(gradient.any())) == (0, False)


def test_the_focal_loss_by_hand_and_without_gamma() -> None:
    logits, labels = batch(2)
    expected = cross_entropy(logits, labels, ignore_index=255)
    torch.testing.assert_close(focal_loss(logits, labels, gamma=0.0), expected)
    torch.testing.assert_close(pixel_cross_entropy(logits, labels), expected)
    logits = torch.tensor([0.9, 0.1]).log().view(1, 2, 1, 1)
    for label, p in ((0, 0.9), (1, 0.1)):
        value = focal_loss(logits, torch.full((1, 1, 1), label), gamma=3.0)
        assert float(value) == pytest.approx(-((1 - p) ** 3) * math.log(p), rel=1e-5)


def test_losses_are_computed_in_float32_under_autocast() -> None:
    logits, labels = batch(5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for loss in (dice_loss, focal_loss):
            assert loss(logits, labels).dtype == torch.float32
        assert gate_supervision_loss(torch.full((2, 7, 11), 0.3), labels).dtype == torch.float32


def test_a_gate_is_supervised_by_the_share_of_objects_among_the_counted_pixels() -> None:
    labels = batch(9)[1][:, :6, :10]
    gates = torch.rand(2, 3, 5, generator=torch.Generator().manual_seed(2))
    cells = labels.unfold(1, 2, 2).unfold(2, 2, 2).flatten(3)
    counted = (cells != 255).sum(-1).float()
    share = ((cells > 0) & (cells != 255)).sum(-1) / counted.clamp(min=1)
    expected = binary_cross_entropy(gates, share, counted, reduction="sum") / counted.sum()
    torch.testing.assert_close(gate_supervision_loss(gates, labels), expected)
