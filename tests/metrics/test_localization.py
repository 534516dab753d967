"""Localization scores, by hand and of whole maps."""

import math

import pytest
import torch
from hypothesis import given, settings, strategies as st

from visattn.metrics.localization import (
    energy_pointing_game,
    is_constant_map,
    localization_scores,
    peak_locations,
    pointing_game_hits,
    threshold_iou,
)

MASK = torch.zeros(6, 8, dtype=torch.bool)
MASK[1:3, 2:5] = True
BOX = torch.zeros(6, 8, dtype=torch.bool)
BOX[1:4, 2:6] = True


def test_nan_cells_are_excluded() -> None:
    values = torch.ones(6, 8)
    values[:, 4:] = torch.nan
    values[1, 2] = 2.0
    result = localization_scores(values, MASK, BOX)
    assert result["area"] == pytest.approx(4 / 24)
    assert result["area_box"] == pytest.approx(6 / 24)
    assert result["energy"] == pytest.approx(5 / 25)
    assert result["iou"] == pytest.approx(1 / 4)
    with pytest.raises(ValueError, match="no part of the region is visible"):
        localization_scores(values, MASK & values.isnan(), BOX)
    with pytest.raises(ValueError, match="got only NaN"):
        peak_locations(torch.full((2, 3, 3), torch.nan))


def test_peak_beside_the_object_is_within_tolerance() -> None:
    values = torch.zeros(6, 8)
    values[3, 5] = 1.0  # one pixel down and right of the corner of the mask, inside the box
    result = [localization_scores(values, MASK, BOX, tolerance=px) for px in (0, 1.4, 1.5)]
    assert [scores["point"] for scores in result] == [0, 0, 1]
    assert [scores["point_box"] for scores in result] == [1, 1, 1]


def test_constant_map_has_no_peak() -> None:
    for flat in (torch.zeros(6, 8), torch.full((6, 8), 0.5)):
        result = localization_scores(flat, MASK, torch.ones_like(MASK), tolerance=99)
        assert (result["point"], result["point_box"], result["iou"]) == (0, 0, 0)
    assert is_constant_map(torch.tensor([torch.nan, torch.inf]))
    assert is_constant_map(torch.tensor([torch.nan]))


SIZE = (5, 7)


@given(st.integers(0, 10_000))
@settings(max_examples=15, deadline=None)
def test_scores_match_loops(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(3, *SIZE, generator=generator, dtype=torch.float64)
    values[torch.rand(3, *SIZE, generator=generator) < 0.2] = torch.nan
    masks = torch.rand(3, *SIZE, generator=generator) < 0.4
    places = peak_locations(values)
    hits = pointing_game_hits(places, masks, 1.5)
    energies, overlaps = energy_pointing_game(values, masks), threshold_iou(values, masks, 0.25)
    for number, (own, mask) in enumerate(zip(values.tolist(), masks.tolist(), strict=True)):
        cells = [(y, x) for y in range(5) for x in range(7) if not math.isnan(own[y][x])]
        y, x = max(cells, key=lambda cell: own[cell[0]][cell[1]])
        assert places[number].tolist() == [y, x]
        near = [(v, u) for v in range(5) for u in range(7) if math.hypot(v - y, u - x) <= 1.5]
        assert bool(hits[number]) == any(mask[v][u] for v, u in near)
        mass = {cell: max(own[cell[0]][cell[1]], 0.0) for cell in cells}
        inside = sum(value for (v, u), value in mass.items() if mask[v][u])
        assert float(energies[number]) == pytest.approx(inside / sum(mass.values()), abs=1e-12)
        low, high = min(own[v][u] for v, u in cells), max(own[v][u] for v, u in cells)
        above = {(v, u) for v, u in cells if own[v][u] > low + 0.25 * (high - low)}
        wanted = {(v, u) for v, u in cells if mask[v][u]}
        share = len(above & wanted) / len(above | wanted)
        assert float(overlaps[number]) == pytest.approx(share, abs=1e-12)


def test_peak_of_an_upsampled_cell_is_its_center() -> None:
    cell = torch.zeros(1, 9, 11)
    cell[0, 3:6, 5:10] = 1.0
    assert peak_locations(cell).tolist() == [[4, 7]]


def test_map_without_mass_has_zero_energy() -> None:
    mask = torch.ones(1, *SIZE, dtype=torch.bool)
    assert energy_pointing_game(-torch.ones(1, *SIZE), mask).item() == 0
    assert threshold_iou(torch.zeros(1, *SIZE), ~mask).item() == 0
