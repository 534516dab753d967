"""Additive (Bahdanau) attention of a recurrent decoder over annotations."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.tap import Tap
from visattn.functional.attention import additive_scores


class AdditiveAttention(nn.Module):
    """Additive attention: softmax over v · tanh(W_a annotation + W_q query).

    The keys do not depend on the query: compute them once with `key` and pass them at every step.
    The values are the annotations, unprojected, as in the paper.

    Args:
        annotation_dim: Dimension of an annotation.
        query_dim: Dimension of a query.
        attention_dim: Dimension of projected queries and keys.

    Example:
        >>> attention = AdditiveAttention(5, query_dim=3, attention_dim=7)
        >>> annotations = torch.zeros(1, 4, 5)
        >>> keys = attention.key(annotations)
        >>> context, weights = attention(torch.zeros(1, 2, 3), annotations, keys)
        >>> weights[0, 0]
        tensor([0.2500, 0.2500, 0.2500, 0.2500], grad_fn=<SelectBackward0>)

    Source:
        Xu et al. 2015, arXiv:1502.03044, equations 4 to 6; the only bias is in the keys.
    """

    def __init__(self, annotation_dim: int, *, query_dim: int, attention_dim: int) -> None:
        super().__init__()
        self.key = nn.Linear(annotation_dim, attention_dim)
        self.query = nn.Linear(query_dim, attention_dim, bias=False)
        self.vector = nn.Parameter(
            torch.empty(attention_dim).uniform_(-(attention_dim**-0.5), attention_dim**-0.5)
        )
        self.tap = Tap("words")

    def forward(
        self,
        query: Float[Tensor, "b k h"],
        annotations: Float[Tensor, "b n c"],
        keys: Float[Tensor, "b n d"],
    ) -> tuple[Float[Tensor, "b k c"], Float[Tensor, "b k n"]]:
        """Return context vectors and attention weights of k queries per image."""
        weights = self.tap(self.scores(query, keys).softmax(-1))
        return weights @ annotations, weights

    def scores(
        self, query: Float[Tensor, "b k h"], keys: Float[Tensor, "b n d"]
    ) -> Float[Tensor, "b k n"]:
        """Return the scores, before the softmax."""
        return additive_scores(self.query(query), keys, self.vector)
