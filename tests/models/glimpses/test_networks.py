"""The retina module against its functions."""

import pytest
import torch
from torch import Tensor

from visattn.models.glimpses.retina import (
    Backend,
    Retina,
    crop_glimpses,
    glimpse_pyramid,
    sample_glimpses,
)


def noise(*shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("backend", ["crop", "bilinear"])
def test_module_matches_its_function(backend: Backend) -> None:
    around = torch.tensor([0.1, 0.5, 0.9])
    images, places = noise(3, 3, 7, 11), noise(5, 2) * 2 - 1
    which = torch.tensor([0, 2, 2, 1, 0])
    retina = Retina(3, 2, around, backend)
    shown = retina.build_pyramid(images)
    see = crop_glimpses if backend == "crop" else sample_glimpses
    pyramid = glimpse_pyramid(images, num_scales=2, pad_value=around)
    wanted = see(pyramid, places, glimpse_size=3, image_indices=which)
    assert torch.equal(retina(shown, places, which), wanted)
    assert torch.equal(retina(shown, places[:3]), see(pyramid, places[:3], glimpse_size=3))


def test_crop_and_sample_differ_between_pixels() -> None:
    images, places = noise(1, 1, 8, 8), torch.tensor([[0.06, 0.0]])
    snapped, between = (
        retina(retina.build_pyramid(images), places)
        for retina in (Retina(4, 1, torch.zeros(1), kind) for kind in ("crop", "bilinear"))
    )
    assert (snapped - between).abs().max() > 0.05


def test_retina_has_no_parameters_and_no_state() -> None:
    retina = Retina(3, 2, torch.zeros(3))
    assert list(retina.parameters()) == []
    assert retina.state_dict() == {}
    assert retina.double().pad_value.dtype == torch.float64


def test_only_sampled_glimpses_have_location_gradients() -> None:
    images = noise(1, 1, 9, 9)
    reached = {}
    for backend in ("crop", "bilinear"):
        places = torch.tensor([[0.03, -0.05]], requires_grad=True)
        retina = Retina(4, 1, torch.zeros(1), backend)
        output = retina(retina.build_pyramid(images), places)
        reached[backend] = output.requires_grad
    assert reached == {"crop": False, "bilinear": True}
