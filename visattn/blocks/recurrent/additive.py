"""Additive attention of a recurrent network over a grid of annotations."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.tap import Tap
from visattn.functional.attention.scores import additive_scores, attended


class AdditiveAttention(nn.Module):
    """Look at annotations with a query: one softmax row over all places per query.

    The keys do not depend on the query: project them once with `keys` and hand them to every
    step. The values are the annotations themselves, unprojected, as in the paper.

    Args:
        width: Width of an annotation.
        query: Width of a query.
        dim: Width of the space in which both meet.

    Example:
        >>> look = AdditiveAttention(5, query=3, dim=7)
        >>> places = torch.zeros(1, 4, 5)
        >>> context, weights = look(torch.zeros(1, 2, 3), places, look.keys(places))
        >>> weights[0, 0]
        tensor([0.2500, 0.2500, 0.2500, 0.2500], grad_fn=<SelectBackward0>)

    Source:
        Xu et al. 2015, arXiv:1502.03044, equations 4 to 6; keys carry the only bias.
    """

    def __init__(self, width: int, *, query: int, dim: int) -> None:
        super().__init__()
        self.key = nn.Linear(width, dim)
        self.query = nn.Linear(query, dim, bias=False)
        self.vector = nn.Parameter(torch.empty(dim).uniform_(-(dim**-0.5), dim**-0.5))
        self.tap = Tap("words")

    def keys(self, annotations: Float[Tensor, "b n c"]) -> Float[Tensor, "b n d"]:
        """Project annotations to keys, once for all queries."""
        return self.key(annotations)

    def forward(
        self,
        query: Float[Tensor, "b k h"],
        annotations: Float[Tensor, "b n c"],
        keys: Float[Tensor, "b n d"],
    ) -> tuple[Float[Tensor, "b k c"], Float[Tensor, "b k n"]]:
        """Return what k queries per image see, and where they look."""
        weights = self.weights(self.query(query), keys.unsqueeze(1))
        return weights @ annotations, weights

    def weights(
        self, query: Float[Tensor, "*b d"], keys: Float[Tensor, "*#b n d"]
    ) -> Float[Tensor, "*b n"]:
        """Return where projected queries look."""
        scores = additive_scores(query.unsqueeze(-2), keys, self.vector).squeeze(-2)
        return self.tap(scores.softmax(-1))

    def look(
        self,
        query: Float[Tensor, "b d"],
        annotations: Float[Tensor, "b n c"],
        keys: Float[Tensor, "b n d"],
    ) -> tuple[Float[Tensor, "b c"], Float[Tensor, "b n"]]:
        """Return what one projected query per row sees, and where it looks."""
        weights = self.weights(query, keys)
        return attended(weights, annotations), weights
