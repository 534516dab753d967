"""Gaussian location policy: means, samples, initial locations, standard deviation."""

import math

import pytest
import torch
from torch import Tensor

from visattn.functional.reinforce import gaussian_log_prob
from visattn.models.glimpses.glimpse_model import InitLocation, LocationPolicy


def noise(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(5))


def policy(start: InitLocation = "center", spread: float = 0.5, **options: bool) -> LocationPolicy:
    return LocationPolicy(5, start, spread, **{"learn_std": False, **options})


def test_mean_is_a_linear_map_of_the_hidden_state() -> None:
    made, state = policy(), noise(7, 5) * 9
    place, (mean, sample) = made(state, torch.zeros(7, 2))
    wanted = state @ made.mean.weight.T + made.mean.bias
    torch.testing.assert_close(mean, wanted)
    assert mean.abs().max() > 1
    assert torch.equal(sample, mean)
    assert torch.equal(place, mean.clamp(-1, 1))


def test_sample_is_mean_plus_scaled_noise_without_clamping() -> None:
    made, off = policy(spread=0.25), noise(7, 2) * 9
    place, (mean, sample) = made(torch.zeros(7, 5), off)
    torch.testing.assert_close(sample, mean + off * 0.25)
    assert sample.abs().max() > 1
    assert torch.equal(place, sample.clamp(-1, 1))


def test_mean_outside_the_image_has_a_gradient() -> None:
    made = policy()
    torch.nn.init.constant_(made.mean.bias, 3.0)
    _, (mean, sample) = made(torch.zeros(4, 5), noise(4, 2))
    (-gaussian_log_prob(sample, mean, made.std) * torch.arange(4.0)).sum().backward()
    assert made.mean.bias.grad is not None
    assert (made.mean.bias.grad != 0).all()


def test_locations_and_samples_are_detached() -> None:
    place, (mean, sample) = policy()(noise(3, 5).requires_grad_(), noise(3, 2))
    assert mean.requires_grad
    assert not sample.requires_grad
    assert not place.requires_grad


def test_random_initial_location_is_uniform_and_no_action() -> None:
    torch.manual_seed(0)
    places, action = policy("random").initial_locations(torch.zeros(4000, 2))
    assert action is None
    assert places.abs().max() <= 1
    for axis in (0, 1):
        counts = torch.histc(places[:, axis], 8, -1, 1)
        assert float(((counts - 500) ** 2 / 500).sum()) < 24.4  # chi-square of 7, p = 0.001


def test_center_initial_location_is_no_action() -> None:
    places, action = policy("center").initial_locations(noise(3, 2))
    assert action is None
    assert places.tolist() == [[0, 0]] * 3


def test_learned_initial_location_is_an_action() -> None:
    made = policy("learned")
    torch.nn.init.constant_(made.init_mean, 0.75)
    places, action = made.initial_locations(torch.full((3, 2), 2.0))
    assert action is not None
    mean, sample = action
    assert mean.tolist() == [[0.75, 0.75]] * 3
    assert sample.tolist() == [[1.75, 1.75]] * 3
    assert places.tolist() == [[1, 1]] * 3
    assert mean.requires_grad
    assert not sample.requires_grad


@pytest.mark.parametrize("learn", [False, True])
@pytest.mark.parametrize("start", ["random", "center", "learned"])
def test_trainable_parameters_follow_the_options(start: InitLocation, learn: bool) -> None:
    made = policy(start, learn_std=learn)
    learned = {name for name, parameter in made.named_parameters() if parameter.requires_grad}
    wanted = {"mean.weight", "mean.bias"}
    wanted |= {"init_mean"} if start == "learned" else set()
    wanted |= {"log_std"} if learn else set()
    assert learned == wanted


def test_std_is_stored_as_its_logarithm() -> None:
    made = policy(spread=0.11)
    assert float(made.std) == pytest.approx(0.11)
    assert float(made.log_std) == pytest.approx(math.log(0.11))


@pytest.mark.parametrize("rotten", [math.nan, math.inf])
def test_nonfinite_location_is_refused(rotten: float) -> None:
    made = policy("learned").eval()
    torch.nn.init.constant_(made.mean.bias, rotten)
    torch.nn.init.constant_(made.init_mean, rotten)
    with pytest.raises(ValueError, match="NaN or infinity, because the weights hold NaN"):
        made(torch.zeros(3, 5), torch.zeros(3, 2))
    with pytest.raises(ValueError, match="go back to an earlier checkpoint"):
        made.initial_locations(torch.zeros(3, 2))


@pytest.mark.parametrize("rotten", [math.nan, math.inf])
def test_nonfinite_mean_in_training_keeps_the_location_on_the_image(rotten: float) -> None:
    """The loss is not finite, so that the guard skips the step; no pixel outside is read."""
    made = policy("learned").train()
    torch.nn.init.constant_(made.mean.bias, rotten)
    location, (mean, _) = made(torch.zeros(3, 5), torch.zeros(3, 2))
    assert not mean.isfinite().any()
    assert location.abs().amax() <= 1
