"""Sequence pooling of tokens."""

from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.tap import Tap
from visattn.blocks.transformer.token_attention import TokenLayout


class SequencePool(nn.Module):
    """Sequence pooling: softmax-weighted mean of the patch tokens, with learned scores.

    The tap receives one map.

    Example:
        >>> import torch
        >>> SequencePool(4)(torch.ones(1, 6, 4), TokenLayout((2, 3)))
        tensor([[1., 1., 1., 1.]], grad_fn=<SqueezeBackward1>)

    Source:
        Hassani et al. 2021, arXiv:2104.05704, section 3.2.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.score = nn.Linear(dim, 1)
        self.tap = Tap("tokens", single_query=True)

    def forward(self, x: Float[Tensor, "b n c"], layout: TokenLayout) -> Float[Tensor, "b c"]:
        """Return one vector per image from its patch tokens."""
        weights = self.score(x).mT.softmax(-1)
        if self.tap.wanted:
            self.tap.grid = layout.grid
            recorded = self.tap(weights.squeeze(1)).unsqueeze(1)
            weights = recorded if self.tap.differentiable else weights
        return (weights @ x).squeeze(1)
