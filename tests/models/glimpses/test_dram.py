"""DRAM: what each layer sees, what trains it, and the order of its labels."""

from typing import Any

import pytest
import torch
from random_numbers import numbers, pixels
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from visattn.functional.reinforce import gaussian_log_prob, reinforce_loss
from visattn.models.glimpses.dram import DRAM


def dram(channels: int = 1, **options: Any) -> DRAM:
    torch.manual_seed(0)
    settings = {
        "max_objects": 2, "num_glimpses_per_object": 2, "glimpse_size": 5, "num_scales": 2,
        "hidden_size": 11, "what_dim": 7, "where_dim": 3, "context_size": 6, **options,
    }  # fmt: skip
    model = DRAM("abcd", (13, 17), [0.2, 0.5, 0.6][:channels], [0.3] * channels, **settings)
    nn.init.normal_(model.policy.mean.weight, std=0.5)  # so that it looks around
    return model.eval()


def shown() -> Tensor:
    return dram().normalize(pixels(3, 1, 13, 17))


@pytest.mark.parametrize("rnn_type", ["lstm", "gru", "rnn"])
def test_rollout_matches_two_recurrent_layers_written_out(rnn_type: str) -> None:
    model = dram(rnn_type=rnn_type)
    inputs, noise = model.normalize(pixels(3, 1, 13, 17)), torch.randn(3, 1, 4, 2)
    rollout = model.rollout(inputs, noise=noise)
    thumbnails = torch.nn.functional.interpolate(inputs, (6, 6), mode="area")
    context = model.context_net(thumbnails)
    lower: Any = (torch.zeros(3, 11),) * 2 if rnn_type == "lstm" else torch.zeros(3, 11)
    upper: Any = context[:, :11].tanh()
    upper = (upper, context[:, 11:]) if rnn_type == "lstm" else upper
    pyramid = model.retina.pyramid(inputs)

    def hidden(state: Any) -> Tensor:
        return state[0] if isinstance(state, tuple) else state

    for step in range(4):
        mean = model.policy.mean(hidden(upper))
        location = (mean + model.policy.std * noise[:, 0, step]).clamp(-1, 1)
        torch.testing.assert_close(rollout.policy_states[:, 0, step], hidden(upper))
        torch.testing.assert_close(rollout.policy_means[:, 0, step], mean)
        torch.testing.assert_close(rollout.locations[:, 0, step], location)
        glimpse = model.glimpse_net(model.retina(pyramid, location, torch.arange(3)), location)
        lower = model.rnn.cell(glimpse, lower)
        upper = model.upper_rnn.cell(hidden(lower), upper)
        logits = model.classifier(hidden(lower))
        torch.testing.assert_close(rollout.logits[:, 0, step], logits)


def trained_parts(model: DRAM, loss: Tensor) -> set[str]:
    model.zero_grad()
    loss.backward(retain_graph=True)
    return {
        name
        for name, part in model.named_children()
        if any(w.grad is not None and bool(w.grad.any()) for w in part.parameters())
    }


@pytest.mark.parametrize("backprop", [False, True])
def test_each_loss_trains_its_own_parts(backprop: bool) -> None:
    model = dram()
    rollout = model.rollout(
        model.normalize(pixels(3, 1, 13, 17)), sample=True, backprop_policy_to_core=backprop
    )
    classification = cross_entropy(rollout.logits.flatten(0, 2), torch.arange(12) % 4)
    core = {"glimpse_net", "rnn", "classifier"}
    assert trained_parts(model, classification) == core  # neither context nor policy
    log_probs = gaussian_log_prob(rollout.policy_samples, rollout.policy_means, 0.1)
    policy = {"policy", "upper_rnn", "context_net"}
    assert set(model.policy_modules) == policy
    expected = policy | ({"glimpse_net", "rnn"} if backprop else set())
    assert trained_parts(model, reinforce_loss(log_probs, torch.ones_like(log_probs))) == expected


def test_labels_are_read_after_their_last_glimpse() -> None:
    cases: list[tuple[dict[str, Any], tuple[int, ...]]] = [
        ({}, (3, 2, 4)), ({"max_objects": 1}, (3, 4)), ({"end_class": "end"}, (3, 3, 5)),
    ]  # fmt: skip
    for options, shape in cases:
        model = dram(**options)
        labels = model.num_labels
        assert model.num_glimpses == 2 * labels
        assert model.num_glimpses_per_label == 2
        logits = model(pixels(3, 1, 13, 17))
        assert logits.shape == shape, options
        rollout = model.rollout(shown())
        assert torch.equal(logits.view(3, labels, -1), rollout.logits[:, 0, 1::2]), options
        assert rollout.policy_means.shape == (3, 1, 2 * labels, 2)  # the first location, too


def test_given_samples_take_the_place_of_those_of_the_policy() -> None:
    model, path = dram(), numbers(3, 1, 4, 2, dtype=torch.float32)
    rollout = model.rollout(model.normalize(pixels(3, 1, 13, 17)), samples=path)
    assert torch.equal(rollout.policy_samples, path)
    assert torch.equal(rollout.locations, path.clamp(-1, 1))
    fixed = model.rollout(model.normalize(pixels(3, 1, 13, 17)), locations=path[:, 0].clamp(-1, 1))
    torch.testing.assert_close(rollout.logits, fixed.logits)
    torch.testing.assert_close(rollout.policy_means, model.policy.mean(rollout.policy_states))


def test_rollouts_of_an_image_share_its_context() -> None:
    model = dram()
    rollout = model.rollout(shown(), num_rollouts=2)
    torch.testing.assert_close(rollout.logits[:, 0], rollout.logits[:, 1])
    torch.testing.assert_close(rollout.logits[:, :1], model.rollout(shown()).logits)
