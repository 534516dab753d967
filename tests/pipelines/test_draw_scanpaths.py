"""Figures of scan paths."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import visattn
from visattn.models.glimpses.ram import RecurrentAttentionModel
from visattn.pipelines.scanpath import glimpses
from visattn.results.values import ScanPath
from visattn.viz.figures import rgb
from visattn.viz.scanpaths import Coverage

RNG = np.random.default_rng(4)
PHOTOS = [RNG.integers(0, 256, (37, 53, 3), dtype=np.uint8) for _ in range(5)]


def make_scans(glimpse: int = 5) -> list[ScanPath]:
    torch.manual_seed(1)
    model = RecurrentAttentionModel(
        ("cat", "dog"),
        (23, 31),
        (0.5,) * 3,
        (0.3,) * 3,
        glimpse_size=glimpse,
        num_glimpses=3,
        hidden_size=7,
    )
    return glimpses(model, PHOTOS, policy="random")


def test_overlay_draws_a_glimpse_map() -> None:
    drawn = visattn.overlay(PHOTOS[0], make_scans()[0].maps[1])
    assert drawn.size == (53, 37)


def test_coverage_sums_maps_locations_and_pixels() -> None:
    scans, coverage = make_scans(), Coverage()
    for scan in scans:
        coverage.add(scan)
    assert coverage.count == 5
    maps, overall, locations, _, pixels = coverage._sums
    torch.testing.assert_close(
        maps, torch.stack([scan.maps.values for scan in scans]).sum(0).double()
    )
    assert (overall <= 5).all()
    torch.testing.assert_close(
        overall / 5, torch.stack([scan.maps.values.amax(0) for scan in scans]).mean(0).double()
    )
    torch.testing.assert_close(
        locations, torch.stack([scan.locations for scan in scans]).double().sum(0)
    )
    torch.testing.assert_close(pixels, torch.stack([scan.pixels for scan in scans]).double().sum(0))
    assert rgb(coverage.figure()).shape[1] == 1400


def test_coverage_of_one_image() -> None:
    coverage = Coverage()
    coverage.add(make_scans()[0])
    assert rgb(coverage.figure()).any()


def test_coverage_needs_scans_of_one_model() -> None:
    coverage = Coverage()
    with pytest.raises(ValueError, match="at least one scan path"):
        coverage.figure()
    coverage.add(make_scans()[0])
    scan = make_scans()[1]
    small = replace(scan, geometry=scan.geometry.resized((7, 7)))
    with pytest.raises(ValueError, match=r"expected maps of shape \[3, 23, 31\], got \[3, 7, 7\]"):
        coverage.add(small)
