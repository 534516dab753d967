"""Zeros in place of layers: of the same shape, with one number in memory or all of them."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from visattn.recording.key_sources import KeySources


class GatedAttention(nn.Module):
    """Returns what skipped layers, their products and attention give; sizes are all different."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 4)
        self.scale = nn.Parameter(torch.ones(4))
        self.experts = nn.Parameter(torch.ones(3, 1, 1, 4))

    def forward(self, states: Tensor) -> dict[str, Tensor]:
        """Return each step by its name."""
        up = self.linear(states)
        gate = F.silu(up)
        return {
            "linear": up,
            "activation": gate,
            "scaled": self.scale * gate,
            "scaled from the right": gate * self.scale,
            "broadcast": torch.mul(up, self.experts),
            "number": 2.0 * up,
            "attention": F.scaled_dot_product_attention(states, states, states[..., :3]),
        }


@pytest.mark.parametrize("share_zeros", [True, False])
def test_zeros_have_the_shapes_of_what_they_replace(*, share_zeros: bool) -> None:
    model, states = GatedAttention(), torch.rand(2, 5, 6)
    sources = KeySources(model, skip={id(model.linear.weight)}, share_zeros=share_zeros)
    with torch.no_grad():
        expected = model(states)
        with sources.collecting():
            results = model(states)
    for name, each in results.items():
        assert not each.any(), name
        assert each.shape == expected[name].shape, name
        numbers = each.untyped_storage().nbytes() // each.element_size()
        assert numbers == (1 if share_zeros else each.numel()), name
