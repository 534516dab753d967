"""`torch.jit.trace` accepts every block, alone and in a model."""

from typing import cast

import pytest
import torch
from host_models import image, residual_net
from torch import nn

from visattn.blocks.registry import create_block, list_blocks
from visattn.insertion.insertion import insert

# torch.jit.trace is deprecated, and warns of each size that it stores as a constant.
pytestmark = [
    pytest.mark.compile,  # sizes are tensors in a trace, which shape checks do not support
    pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning"),
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
]


@pytest.mark.parametrize("learning", [True, False])
def test_every_block_traces_with_and_without_gradients(learning: bool) -> None:
    for name in list_blocks():
        block = create_block(name, 8).eval()
        x, other = torch.randn(2, 8, 7, 5), torch.randn(3, 8, 5, 11)
        with torch.set_grad_enabled(learning):
            traced = cast("nn.Module", torch.jit.trace(block, x, check_trace=True))
            for inputs in (x, other):
                torch.testing.assert_close(traced(inputs), block(inputs), rtol=1e-5, atol=1e-5)


def test_model_with_blocks_traces() -> None:
    model, x = residual_net().eval(), image()
    insert(model, ["cbam", "coordinate", "simam"], position="residual", example=x, init="paper")
    traced = cast("nn.Module", torch.jit.trace(model, x, check_trace=True))
    torch.testing.assert_close(traced(x), model(x), rtol=1e-5, atol=1e-5)
