"""The recurrent attention model: parts, rollouts, gradients, options and errors."""

import math
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

from visattn.functional.reinforce import gaussian_log_prob
from visattn.models.glimpses.ram import (
    GlimpseNet,
    GlimpseRNN,
    LocationPolicy,
    RecurrentAttentionModel,
    RNNType,
)

SMALL = {"hidden_size": 11, "what_dim": 7, "where_dim": 5}


def model(
    size: tuple[int, int] = (13, 17), channels: int = 1, **options: Any
) -> RecurrentAttentionModel:
    torch.manual_seed(0)
    means = [0.2, 0.5, 0.6][:channels]
    made = RecurrentAttentionModel(
        ("one", "two", "three"),
        size,
        means,
        [0.3] * channels,
        **{"num_glimpses": 4, "glimpse_size": 5, **SMALL, **options},
    )
    nn.init.normal_(made.policy.mean.weight, std=0.5)  # so that its locations differ
    return made.eval()


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(9))


def starts(count: int) -> Tensor:
    return torch.rand(count, 2, generator=torch.Generator().manual_seed(8)) * 2 - 1


# ---- the size of the paper's network


@pytest.mark.parametrize(
    ("size", "glimpse", "scales", "seeing"),
    [(28, 8, 1, 74_752), (60, 12, 3, 121_856), (100, 12, 4, 140_288)],
)
def test_parameter_counts_match_the_paper(
    size: int, glimpse: int, scales: int, seeing: int
) -> None:
    made = RecurrentAttentionModel(
        "0123456789", (size, size), [0.1], [0.3], glimpse_size=glimpse, num_scales=scales
    )
    parts = (made.glimpse_net, made.rnn, made.policy.mean, made.classifier)
    counts = [sum(parameter.numel() for parameter in part.parameters()) for part in parts]
    assert counts == [seeing, 131_584, 514, 2_570]
    trained = [parameter for parameter in made.parameters() if parameter.requires_grad]
    assert sum(parameter.numel() for parameter in trained) == sum(counts)


# ---- parts


@pytest.mark.parametrize("fusion", ["sum", "product"])
def test_glimpse_net_matches_its_equations(fusion: Literal["sum", "product"]) -> None:
    torch.manual_seed(1)
    sizes: dict[str, Any] = {"what_dim": 96, "where_dim": 160, "out_dim": 31}
    net = GlimpseNet(6, 3, encoder_type="linear", fusion=fusion, **sizes)
    patches, places = drawn(5, 2, 3, 3, 3), drawn(5, 2).requires_grad_()
    patch_layer, place = net.glimpse_encoder[1], net.location_encoder
    assert isinstance(patch_layer, nn.Linear)
    what = (patches.reshape(5, 54) @ patch_layer.weight.T + patch_layer.bias).clamp(min=0)
    where = (places @ place.weight.T + place.bias).clamp(min=0)
    what = what @ net.what_proj.weight.T + net.what_proj.bias
    where = where @ net.where_proj.weight.T + net.where_proj.bias
    both = (what + where if fusion == "sum" else what * where).clamp(min=0)
    actual = net(patches, places)
    torch.testing.assert_close(actual, both)
    actual.sum().backward()
    assert places.grad is None
    if fusion == "product":
        assert net.where_proj.bias.tolist() == [1.0] * 31  # it starts near the content alone


@pytest.mark.parametrize("core", ["rnn", "lstm", "gru"])
def test_rnn_matches_torch_cells(core: RNNType) -> None:
    torch.manual_seed(1)
    memory, inputs, state = GlimpseRNN(core, 7), drawn(3, 7), (drawn(3, 7) / 2, drawn(3, 7) / 3)
    cell: Any = memory.cell
    actual = memory(inputs, state[: memory.num_states])
    expected = cell(inputs, state) if core == "lstm" else (cell(inputs, state[0]),)
    for part, wanted in zip(actual, expected, strict=True):
        assert torch.equal(part, wanted)
    if core == "rnn":
        assert torch.equal(cell.weight_hh, 0.9 * torch.eye(7))
        wanted = inputs @ cell.weight_ih.T + cell.bias_ih + 0.9 * state[0] + cell.bias_hh
        torch.testing.assert_close(actual[0], wanted.clamp(min=0))


def test_policy_is_a_gaussian_around_a_linear_mean() -> None:
    policy, state, noise = LocationPolicy(5, 0.25), 9 * drawn(7, 5).requires_grad_(), drawn(7, 2)
    mean, sample = policy(state, noise)
    torch.testing.assert_close(mean, state @ policy.mean.weight.T + policy.mean.bias)
    torch.testing.assert_close(sample, mean + 0.25 * noise)
    assert sample.abs().max() > 1  # clamped by the environment
    assert mean.requires_grad
    assert not sample.requires_grad
    assert float(policy.log_std) == pytest.approx(math.log(0.25))
    nn.init.constant_(policy.mean.bias, 3.0)
    mean, sample = policy(torch.zeros(4, 5), drawn(4, 2))
    (-gaussian_log_prob(sample, mean, policy.std) * torch.arange(4.0)).sum().backward()
    assert policy.mean.bias.grad is not None
    assert (policy.mean.bias.grad != 0).all()  # outside of the image, too


def test_a_mean_that_is_not_finite_keeps_the_location_on_the_image() -> None:
    """The loss is not finite, so that the guard skips the step; no pixel outside is read."""
    made = model()
    nn.init.constant_(made.policy.mean.bias, math.nan)
    rollouts = made.rollout(shown(2))
    assert not rollouts.policy_means.isfinite().any()
    assert rollouts.locations.abs().amax() <= 1


# ---- the path


def shown(count: int, channels: int = 1) -> Tensor:
    return drawn(count, channels, 13, 17)


def test_a_rollout_is_the_equations_of_the_paper() -> None:
    made = model(channels=3, num_scales=2, rnn_type="gru", policy_std=0.8)
    images, start, noise = shown(3, 3), starts(6).view(3, 2, 2), drawn(3, 2, 4, 2)
    rollouts = made.rollout(images, num_rollouts=2, init_locations=start, noise=noise)
    pyramid, index = made.retina.pyramid(images), torch.tensor([0, 0, 1, 1, 2, 2])
    hidden, location = torch.zeros(6, 11), start.flatten(0, 1)
    for step in range(4):
        if step:
            mean = made.policy.mean(hidden)
            sample = mean + 0.8 * noise.flatten(0, 1)[:, step]
            at = (slice(None), slice(None), step - 1)
            torch.testing.assert_close(rollouts.policy_states[at].flatten(0, 1), hidden)
            torch.testing.assert_close(rollouts.policy_means[at].flatten(0, 1), mean)
            torch.testing.assert_close(rollouts.policy_samples[at].flatten(0, 1), sample)
            location = sample.clamp(-1, 1)
        torch.testing.assert_close(rollouts.locations[:, :, step].flatten(0, 1), location)
        glimpse = made.glimpse_net(made.retina(pyramid, location, index), location)
        hidden = made.rnn.cell(glimpse, hidden)
        logits = made.classifier(hidden)
        torch.testing.assert_close(rollouts.logits[:, :, step].flatten(0, 1), logits)
    assert rollouts.locations.abs().max() == 1


def test_fixed_locations_bypass_the_policy() -> None:
    made = model()
    path = starts(18).view(3, 6, 2)
    nn.init.constant_(made.policy.mean.bias, float("nan"))
    rollouts = made.rollout(shown(3), locations=path, num_rollouts=2)
    assert torch.equal(rollouts.locations, path[:, None].expand(-1, 2, -1, -1))
    assert rollouts.policy_means.shape == rollouts.policy_samples.shape == (3, 2, 0, 2)
    assert rollouts.logits.shape == (3, 2, 6, 3)
