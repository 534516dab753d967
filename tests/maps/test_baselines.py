"""Maps that know nothing of the model."""

import torch

from visattn.functional.map_locations import peaks
from visattn.maps.baselines import BASELINES, centre_maps, edge_maps, random_maps


def test_all_are_maps_of_each_picture() -> None:
    pictures = torch.randn(2, 3, 11, 13)
    for make in BASELINES.values():
        maps = make(pictures, [3, 4])
        assert maps.shape[0] == 2
        assert maps.dtype == pictures.dtype
        assert bool((maps >= 0).all())
        assert torch.allclose(make(pictures[1:], [4]), maps[1:], atol=1e-5)


def test_the_middle_is_the_middle() -> None:
    maps = centre_maps(torch.zeros(1, 3, 11, 13))
    assert peaks(maps).tolist() == [[5, 6]]
    assert torch.equal(maps, maps.flip(1))
    assert torch.equal(maps, maps.flip(2))


def test_edges_lie_where_the_picture_changes() -> None:
    pictures = torch.zeros(1, 3, 11, 13)
    pictures[:, :, 7:] = 1.0
    maps = edge_maps(pictures)[0]
    assert maps.amax(1).nonzero().flatten().tolist() == [6, 7]
    assert torch.allclose(edge_maps(pictures.mT).mT, edge_maps(pictures))


def test_other_seeds_draw_other_numbers() -> None:
    first, second = random_maps(torch.zeros(2, 1, 3, 3), [0, 1])
    assert not torch.equal(first, second)
