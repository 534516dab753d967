"""Frozen models are restored afterwards."""

import pytest
import torch
from torch import nn

from visattn.recording.float32 import in_float32
from visattn.recording.frozen import frozen, with_grad


def mixed() -> nn.Module:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Dropout(0.5), nn.Linear(3, 1))
    model.train()
    model[1].eval()
    model[3].requires_grad_(requires_grad=False)
    return model


def state(model: nn.Module) -> tuple[list[bool], list[bool], list[int]]:
    return (
        [module.training for module in model.modules()],
        [weight.requires_grad for weight in model.parameters()],
        torch.get_rng_state().tolist(),
    )


def test_modes_requires_grad_and_random_state_are_restored_also_after_an_error() -> None:
    model = mixed()
    before = state(model)
    with frozen(model):
        torch.rand(3)
        assert not any(module.training for module in model.modules())
        assert not any(weight.requires_grad for weight in model.parameters())
    assert state(model) == before
    with pytest.raises(RuntimeError, match="test error"), frozen(model):
        raise RuntimeError("test error")
    assert state(model) == before


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_gradients_are_enabled_inside_no_grad_and_inference_mode(mode: type) -> None:
    model = mixed()
    with mode():
        images = torch.zeros(5, 2)
        with frozen(model):
            inputs = with_grad(images)
            [gradient] = torch.autograd.grad(model(inputs).sum(), [inputs])
    assert gradient.shape == (5, 2)
    assert all(weight.grad is None for weight in model.parameters())


def test_half_precision_is_changed_in_place_and_computed_in_float32() -> None:
    half = torch.ones(2, dtype=torch.float16)
    for func, dtype in ((torch.Tensor.add_, torch.float16), (torch.Tensor.__add__, torch.float32)):
        _, [first, *_], _ = in_float32(func, (half, 1), {})
        assert first.dtype == dtype
        assert (first is half) == (dtype == torch.float16)
