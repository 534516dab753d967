"""What happens when parts are hidden, against the same done one image and mask at a time."""

import pytest
import torch
from small_subjects import images, linear_subject, small_cnn
from torch import Tensor

from visattn.attribution.perturbation import occlusion, rise
from visattn.attribution.targets import target_of
from visattn.functional.attribution.masks import random_grids, soft_masks


def test_occlusion_is_the_mean_fall_of_all_windows_over_a_pixel() -> None:
    subject, x = small_cnn(), images()
    found = occlusion(subject, x, target_of([1, 2], subject), window=5, stride=4, fill="black")
    model = subject.model.eval()
    with torch.no_grad():
        for row, number in ((0, 1), (1, 2)):
            total, counts = torch.zeros(2, 13, 17, dtype=torch.float64)
            whole = model(x[row : row + 1]).softmax(1)[0, number]
            for top in range(0, 13, 4):
                for left in range(0, 17, 4):
                    if top - 4 + 5 >= 13 or left - 4 + 5 >= 17:
                        continue  # the window before reached the border
                    hidden = x[row : row + 1].clone()
                    hidden[:, :, top : top + 5, left : left + 5] = -2
                    fall = whole - model(hidden).softmax(1)[0, number]
                    total[top : top + 5, left : left + 5] += fall
                    counts[top : top + 5, left : left + 5] += 1
            torch.testing.assert_close(found[row], total / counts)


def test_of_a_linear_model_a_window_of_one_pixel_falls_by_what_it_adds() -> None:
    weights = torch.randn(4, 3, 5, 7, dtype=torch.float64)
    subject, x = linear_subject(weights), torch.randn(2, 3, 5, 7, dtype=torch.float64)
    found = occlusion(subject, x, target_of(2, subject), window=1, of="scores")
    torch.testing.assert_close(found, (weights[2] * x).sum(1))


def test_rise_is_the_mean_of_masks_weighed_by_what_they_leave() -> None:
    subject, x = small_cnn(), images()
    options = {"masks": 11, "cells": 3, "kept": 0.4, "seed": 2}
    found = rise(subject, x, target_of([0, 3], subject), **options)
    seen = soft_masks(*random_grids(11, cells=3, kept=0.4, seed=2), (13, 17)).double()
    expected = torch.zeros(2, 13, 17, dtype=torch.float64)
    with torch.no_grad():
        for row, number in ((0, 0), (1, 3)):
            for mask in seen:
                score = subject.model.eval()((mask * x[row])[None]).softmax(1)[0, number]
                expected[row] += score * mask / (11 * 0.4)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("chunk", [1, 7, 100])
def test_neither_the_batch_nor_how_many_go_at_once_counts(chunk: int) -> None:
    subject, x = small_cnn(), images(3)

    def both(some: Tensor, chunk: int) -> Tensor:
        hidden = occlusion(subject, some, target_of(None, subject), window=4, chunk=chunk)
        return hidden + rise(subject, some, target_of(None, subject), masks=5, chunk=chunk)

    before = torch.get_rng_state()
    found = both(x, chunk)
    assert torch.equal(torch.get_rng_state(), before)
    for row in range(3):
        torch.testing.assert_close(both(x[row : row + 1], 32)[0], found[row])


def test_the_window_follows_the_size_of_the_image() -> None:
    subject = small_cnn()
    found = occlusion(subject, images(1), target_of(0, subject))
    assert torch.equal(
        found, occlusion(subject, images(1), target_of(0, subject), window=1, stride=1)
    )


def test_numbers_out_of_range_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    subject, x = small_cnn(), images()
    target = target_of(0, subject)
    monkeypatch.setattr("jaxtyping.config.jaxtyping_disable", True)  # as in daily use
    with pytest.raises(ValueError, match="so that all is covered"):
        occlusion(subject, x, target, window=3, stride=4)
    with pytest.raises(ValueError, match="kept between 0 and 1"):
        rise(subject, x, target, kept=0.0)
    with pytest.raises(ValueError, match="got chunk=0"):
        rise(subject, x, target, chunk=0)
    with pytest.raises(ValueError, match="of probabilities or of scores"):
        rise(subject, x, target, of="odds")  # pyright: ignore[reportArgumentType]
