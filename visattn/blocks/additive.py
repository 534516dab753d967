"""Additive (Bahdanau) attention of a recurrent decoder over annotations."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.tap import Tap
from visattn.functional.attention import additive_scores, context_vector

SelectWeights = Callable[[Float[Tensor, "*b n"]], Float[Tensor, "*b n"]]
"""Maps attention weights to those that are read, such as a single sampled place."""


class AdditiveAttention(nn.Module):
    """Additive attention: scores queries against annotations with a one-hidden-layer MLP.

    The keys do not depend on the query: compute them once with `project_keys` and pass them at
    every step. The values are the annotations, unprojected, as in the paper.

    Args:
        annotation_dim: Dimension of an annotation.
        query_dim: Dimension of a query.
        attention_dim: Dimension of projected queries and keys.

    Example:
        >>> attention = AdditiveAttention(5, query_dim=3, attention_dim=7)
        >>> annotations = torch.zeros(1, 4, 5)
        >>> keys = attention.project_keys(annotations)
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

    def project_keys(self, annotations: Float[Tensor, "b n c"]) -> Float[Tensor, "b n d"]:
        """Project annotations to keys, once for all queries."""
        return self.key(annotations)

    def forward(
        self,
        query: Float[Tensor, "b k h"],
        annotations: Float[Tensor, "b n c"],
        keys: Float[Tensor, "b n d"],
        *,
        select: SelectWeights | None = None,
    ) -> tuple[Float[Tensor, "b k c"], Float[Tensor, "b k n"]]:
        """Return context vectors and attention weights of k queries per image."""
        weights = self.attention_weights(self.query(query), keys.unsqueeze(1), select=select)
        return weights @ annotations, weights

    def attention_weights(
        self,
        query: Float[Tensor, "*b d"],
        keys: Float[Tensor, "*#b n d"],
        *,
        select: SelectWeights | None = None,
    ) -> Float[Tensor, "*b n"]:
        """Return the attention weights of projected queries, after the selection if there is one.

        Recorders see the weights that are read.
        """
        weights = self.scores(query, keys).softmax(-1)
        return self.tap(weights if select is None else select(weights))

    def scores(
        self, query: Float[Tensor, "*b d"], keys: Float[Tensor, "*#b n d"]
    ) -> Float[Tensor, "*b n"]:
        """Return the scores of projected queries, before the softmax."""
        return additive_scores(query.unsqueeze(-2), keys, self.vector).squeeze(-2)

    def attend(
        self,
        query: Float[Tensor, "b d"],
        annotations: Float[Tensor, "b n c"],
        keys: Float[Tensor, "b n d"],
        *,
        select: SelectWeights | None = None,
    ) -> tuple[Float[Tensor, "b c"], Float[Tensor, "b n"]]:
        """Return context vector and attention weights of one projected query per row."""
        weights = self.attention_weights(query, keys, select=select)
        return context_vector(weights, annotations), weights
