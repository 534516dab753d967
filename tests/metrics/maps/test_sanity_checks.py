"""Weights that are shuffled, and are back afterwards."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from visattn.metrics.maps.sanity_checks import (
    cascading_module_groups,
    cascading_randomization,
    map_similarity,
    shuffle_weights,
)


def network() -> nn.Sequential:
    torch.manual_seed(3)
    stem = nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.ReLU())
    return nn.Sequential(stem, nn.Conv2d(5, 7, 3), nn.ReLU(), nn.Conv2d(7, 11, 3)).eval()


def test_parts_go_from_the_top_and_leave_nothing_out() -> None:
    assert cascading_module_groups(network(), 4) == [("3",), ("1",), ("0.1",), ("0.0",)]
    assert cascading_module_groups(network(), 3) == [("3", "1"), ("0.1",), ("0.0",)]
    assert cascading_module_groups(network(), 99) == cascading_module_groups(network(), 4)
    with pytest.raises(ValueError, match="the model have weights"):
        cascading_module_groups(nn.ReLU(), 2)


def test_weights_are_shuffled_and_restored_also_after_an_error() -> None:
    model = network()
    before = {name: one.clone() for name, one in model.state_dict().items()}
    with shuffle_weights(model, ["0.0", "3"]):
        now = {name: one.clone() for name, one in model.state_dict().items()}
    changed = {name for name, one in now.items() if not torch.equal(one, before[name])}
    assert changed == {"0.0.weight", "0.0.bias", "3.weight", "3.bias"}
    assert torch.equal(*(one["3.weight"].flatten().sort().values for one in (now, before)))
    with pytest.raises(KeyError, match="on purpose"), shuffle_weights(model, ["1"]):
        raise KeyError("on purpose")
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())


def test_maps_of_the_model_forget_and_maps_of_the_image_do_not() -> None:
    model, images = network(), torch.randn(2, 3, 17, 19)
    made: list[Callable[[], Tensor]] = [
        lambda: model(images)[:, 0].detach(),
        lambda: images.mean(1),
    ]
    of_model, of_image = (cascading_randomization(model, maps, num_steps=4) for maps in made)
    assert of_model.shape == (2, 4)
    assert torch.equal(of_image, torch.ones(2, 4))
    assert bool((of_model[:, -1].abs() < 0.7).all())
    again = cascading_randomization(model, made[0], num_steps=4)
    assert torch.equal(again, of_model)


def test_likeness_of_maps_of_other_grids_and_of_none() -> None:
    rising = torch.arange(12.0).view(1, 3, 4)
    assert map_similarity(rising, rising).item() == pytest.approx(1)
    assert map_similarity(rising, torch.full((1, 3, 4), torch.nan)).item() == 0
    coarse = torch.tensor([[[0.0], [1.0], [2.0]]])
    assert map_similarity(rising, coarse).item() > 0.9
