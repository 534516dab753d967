"""Scans on the images of which they were made, and many of them together."""

import io
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

import visattn
from visattn.models.ram.ram import RecurrentAttentionModel
from visattn.pipelines.draw_scanpaths import (
    Coverage,
    glimpse_animation,
    glimpse_panel,
    glimpse_wall,
)
from visattn.pipelines.scanpath import ScanPath, glimpses

RNG = np.random.default_rng(4)
PHOTOS = [RNG.integers(0, 256, (37, 53, 3), dtype=np.uint8) for _ in range(5)]


def scans(glimpse: int = 5) -> list[ScanPath]:
    torch.manual_seed(1)
    model = RecurrentAttentionModel(
        ("cat", "dog"), (23, 31), (0.5,) * 3, (0.3,) * 3, glimpse=glimpse, glimpses=3, width=7
    )
    return glimpses(model, PHOTOS, policy="random")


def test_panels_animations_and_walls_are_made_of_scans() -> None:
    found = scans()
    assert glimpse_panel(PHOTOS[0], found[0], name="a.png").shape[1] == 1200
    for moving, count in (
        (glimpse_animation(PHOTOS[0], found[0], width=240), 5),
        (glimpse_wall(PHOTOS, found, side=40, truths=["cat"] * 5), 5),
    ):
        with Image.open(io.BytesIO(moving)) as opened:
            assert getattr(opened, "n_frames", 1) == count


def test_a_map_of_a_glimpse_is_an_overlay_like_all_others() -> None:
    drawn = visattn.overlay(PHOTOS[0], scans()[0].maps[1])
    assert drawn.size == (53, 37)


def test_coverage_is_the_mean_of_maps() -> None:
    found, coverage = scans(), Coverage("random policy")
    for one in found:
        coverage.add(one)
    assert coverage.count == 5
    maps, whole, places, _, pixels = coverage._sums
    torch.testing.assert_close(
        maps, torch.stack([one.maps.values for one in found]).sum(0).double()
    )
    assert (whole <= 5).all()
    torch.testing.assert_close(
        whole / 5, torch.stack([o.maps.values.amax(0) for o in found]).mean(0).double()
    )
    torch.testing.assert_close(places, torch.stack([one.places for one in found]).double().sum(0))
    torch.testing.assert_close(pixels, torch.stack([one.pixels for one in found]).double().sum(0))
    assert coverage.panel().shape[1] == 1200


def test_one_image_has_coverage_without_spread() -> None:
    coverage = Coverage()
    coverage.add(scans()[0])
    assert coverage.panel().any()


@pytest.mark.parametrize("size", [(36, 53), (37, 52)])
def test_a_scan_belongs_to_its_image(size: tuple[int, int]) -> None:
    one = scans()[0]
    with pytest.raises(ValueError, match=r"made of an image of \(37, 53\) .* hand over"):
        glimpse_panel(np.zeros((*size, 3), np.uint8), one)
    with pytest.raises(ValueError, match="made of an image of None"):
        glimpse_animation(PHOTOS[0], replace(one, maps=replace(one.maps, geometry=None)))


def test_walls_have_a_scan_for_each_image() -> None:
    with pytest.raises(ValueError, match="got 4 images, 5 scans"):
        glimpse_wall(PHOTOS[:4], scans())


def test_coverage_is_of_one_model_and_of_something() -> None:
    coverage = Coverage()
    with pytest.raises(ValueError, match="at least one scan"):
        coverage.panel()
    coverage.add(scans()[0])
    small = replace(scans()[1], maps=replace(scans()[1].maps, values=torch.zeros(3, 7, 7)))
    with pytest.raises(ValueError, match=r"had \[3, 23, 31\] .* this one has \[3, 7, 7\]"):
        coverage.add(small)
