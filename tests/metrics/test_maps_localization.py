"""Localization scores of maps: peaks, energy and IoU."""

import pytest
import torch

from visattn.metrics.localization import (
    LocalizationRule,
    LocalizationScores,
    is_constant_map,
    localization_scores,
)

MASK = torch.zeros(6, 8, dtype=torch.bool)
MASK[1:3, 2:5] = True
BOX = torch.zeros(6, 8, dtype=torch.bool)
BOX[1:4, 2:6] = True


def test_map_equal_to_the_mask_has_perfect_scores() -> None:
    result = localization_scores(MASK.double(), MASK, BOX, LocalizationRule())
    assert result == LocalizationScores(1.0, 1.0, 1.0, 1.0, 1.0, 6 / 48, 12 / 48)
    assert list(result.to_dict()) == [
        "point", "point_box", "energy", "energy_box", "iou", "area", "area_box",
    ]  # fmt: skip


def test_nan_cells_are_excluded() -> None:
    values = torch.ones(6, 8)
    values[:, 4:] = torch.nan
    values[1, 2] = 2.0
    result = localization_scores(values, MASK, BOX, LocalizationRule())
    assert result.area == pytest.approx(4 / 24)
    assert result.area_box == pytest.approx(6 / 24)
    assert result.energy == pytest.approx(5 / 25)
    assert result.iou == pytest.approx(1 / 4)
    with pytest.raises(ValueError, match="no part of the region is visible"):
        localization_scores(values, MASK & values.isnan(), BOX, LocalizationRule())


def test_peak_beside_the_object_is_within_tolerance() -> None:
    values = torch.zeros(6, 8)
    values[3, 5] = 1.0  # one pixel down and right of the corner of the mask, inside the box
    result = [localization_scores(values, MASK, BOX, LocalizationRule(px)) for px in (0, 1.4, 1.5)]
    assert [score.point for score in result] == [0, 0, 1]
    assert [score.point_box for score in result] == [1, 1, 1]


def test_constant_map_has_no_peak() -> None:
    for flat in (torch.zeros(6, 8), torch.full((6, 8), 0.5)):
        result = localization_scores(
            flat, MASK, torch.ones(6, 8, dtype=torch.bool), LocalizationRule(99)
        )
        assert (result.point, result.point_box, result.iou) == (0, 0, 0)
    assert is_constant_map(torch.tensor([torch.nan, torch.inf]))
    assert is_constant_map(torch.tensor([torch.nan]))


def test_rule_options_are_validated() -> None:
    with pytest.raises(ValueError, match="at least 0"):
        LocalizationRule(-1)
    with pytest.raises(ValueError, match="from 0 to below 1"):
        LocalizationRule(0, 1.0)
