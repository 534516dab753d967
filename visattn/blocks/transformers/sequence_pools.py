"""From tokens to one, by weights that each token asks for itself."""

from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.taps import Tap
from visattn.blocks.transformers.token_layouts import TokenLayout
from visattn.functional.kept_tokens import weights_in_place


class SequencePool(nn.Module):
    """Take a mean of the tokens of the grid, weighted by a softmax over a linear map of each.

    The weights are a map, which the tap shows.

    Args:
        width: Of a token.

    Example:
        >>> import torch
        >>> SequencePool(4)(torch.ones(1, 6, 4), TokenLayout((2, 3)))
        tensor([[1., 1., 1., 1.]], grad_fn=<SqueezeBackward1>)

    Source:
        Hassani et al. 2021, arXiv:2104.05704, section 3.2.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.score = nn.Linear(width, 1)
        self.tap = Tap("tokens", lone=True)

    def forward(self, x: Float[Tensor, "b n c"], layout: TokenLayout) -> Float[Tensor, "b c"]:
        """Return one vector for each picture; the tokens are those of the grid alone."""
        weights = self.score(x).mT.softmax(-1)
        if self.tap.wanted:
            layout.check_woven(woven=self.tap.woven)
            shown = weights.squeeze(1)
            if layout.kept is not None:
                shown = weights_in_place(shown, layout.kept, count=layout.tokens - layout.before)
            self.tap.grid, self.tap.notes = layout.grid, {**layout.notes, "pool": "sequence"}
            shown = self.tap(shown)
            weights = shown.unsqueeze(1) if self.tap.woven else weights
        return (weights @ x).squeeze(1)
