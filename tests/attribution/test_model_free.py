"""Baseline maps that do not depend on a model."""

import torch

from visattn.attribution.saliency import BASELINES, center_maps, random_maps
from visattn.metrics.localization import peak_locations


def test_each_image_gets_a_map_that_does_not_depend_on_the_batch() -> None:
    images = torch.randn(2, 3, 11, 13)
    for make in BASELINES.values():
        maps = make(images, [3, 4])
        assert maps.shape[0] == 2
        assert maps.dtype == images.dtype
        assert bool((maps >= 0).all())
        assert torch.allclose(make(images[1:], [4]), maps[1:], atol=1e-5)


def test_center_maps_are_centered() -> None:
    maps = center_maps(torch.zeros(1, 3, 11, 13))
    assert peak_locations(maps).tolist() == [[5, 6]]
    assert torch.equal(maps, maps.flip(1))
    assert torch.equal(maps, maps.flip(2))


def test_different_seeds_give_different_maps() -> None:
    first, second = random_maps(torch.zeros(2, 1, 3, 3), [0, 1])
    assert not torch.equal(first, second)
