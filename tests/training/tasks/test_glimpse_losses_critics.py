"""What reward is to be expected: two readings, both blind to the gradient of what they read."""

import math

import pytest
import torch

from visattn.training.tasks.glimpse_losses import ValueBaseline


@pytest.mark.parametrize("informed", [False, True])
def test_before_it_has_learned_it_expects_its_value(informed: bool) -> None:
    random = torch.Generator().manual_seed(1)
    states, told = torch.randn(2, 3, 4, 5, generator=random), torch.randn(2, 3, 4, generator=random)
    expected = ValueBaseline(5, value=0.25, informed=informed)(states, told)
    assert torch.equal(expected, torch.full((2, 3, 4), 0.25))


@pytest.mark.parametrize("informed", [False, True])
def test_nothing_flows_into_what_it_reads(informed: bool) -> None:
    critic = ValueBaseline(5, value=0.25, informed=informed)
    torch.nn.init.ones_(critic.reading.weight)
    states, told = torch.ones(2, 3, 4, 5, requires_grad=True), torch.ones(2, 3, 4).requires_grad_()
    critic(states, told).sum().backward()
    assert states.grad is None
    assert told.grad is None
    assert all(one.grad is not None for one in critic.parameters())


def test_only_an_informed_one_knows_the_true_class() -> None:
    states = torch.zeros(1, 1, 2, 5)
    told = torch.tensor([[[math.log(0.1), math.log(0.9)]]])
    for informed in (False, True):
        torch.manual_seed(0)
        critic = ValueBaseline(5, value=0.0, informed=informed)
        torch.nn.init.normal_(critic.reading.weight)
        unsure, sure = critic(states, told).flatten().tolist()
        assert (unsure != sure) == informed
