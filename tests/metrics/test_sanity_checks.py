"""Model randomization: weights are randomized and restored, maps change."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from visattn.metrics.sanity_checks import (
    cascading_module_groups,
    cascading_randomization,
    map_similarity,
    shuffle_weights,
)


def network() -> nn.Sequential:
    torch.manual_seed(3)
    stem = nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.ReLU())
    return nn.Sequential(stem, nn.Conv2d(5, 7, 3), nn.ReLU(), nn.Conv2d(7, 11, 3)).eval()


def test_cascading_randomization_covers_all_modules_from_the_top() -> None:
    assert cascading_module_groups(network(), 4) == [("3",), ("1",), ("0.1",), ("0.0",)]
    assert cascading_module_groups(network(), 3) == [("3", "1"), ("0.1",), ("0.0",)]
    assert cascading_module_groups(network(), 99) == cascading_module_groups(network(), 4)


def test_weights_are_randomized_and_restored_also_after_an_error() -> None:
    model = network()
    before = {name: parameter.clone() for name, parameter in model.state_dict().items()}
    with shuffle_weights(model, ["0.0", "3"]):
        now = {name: parameter.clone() for name, parameter in model.state_dict().items()}
    changed = {name for name, parameter in now.items() if not torch.equal(parameter, before[name])}
    assert changed == {"0.0.weight", "0.0.bias", "3.weight", "3.bias"}
    assert torch.equal(
        *(parameter["3.weight"].flatten().sort().values for parameter in (now, before))
    )
    with pytest.raises(KeyError, match="on purpose"), shuffle_weights(model, ["1"]):
        raise KeyError("on purpose")
    assert all(
        torch.equal(parameter, before[name]) for name, parameter in model.state_dict().items()
    )


def test_model_dependent_maps_change_and_model_free_maps_do_not() -> None:
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


def test_similarity_of_maps_of_other_grids_and_of_missing_maps() -> None:
    rising = torch.arange(12.0).view(1, 3, 4)
    assert map_similarity(rising, rising).item() == pytest.approx(1)
    assert map_similarity(rising, torch.full((1, 3, 4), torch.nan)).item() == 0
    coarse = torch.tensor([[[0.0], [1.0], [2.0]]])
    assert map_similarity(rising, coarse).item() > 0.9
