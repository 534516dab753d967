"""Luong (multiplicative) attention of a recurrent decoder: global, local-m and local-p."""

from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from visattn.blocks.tap import Tap
from visattn.functional.attention import (
    concat_scores,
    dot_scores,
    general_scores,
    location_scores,
    masked_softmax,
)
from visattn.functional.luong import (
    local_alignment,
    monotonic_centers,
    predicted_centers,
    predictive_alignment,
)
from visattn.functional.masks import length_mask

Score = Literal["dot", "general", "concat", "location"]
Alignment = Literal["global", "monotonic", "predictive"]


class LuongAttention(nn.Module):
    """Luong attention over annotations: global, or local in a window around a predicted position.

    Keys and values are the annotations. The attentional hidden state of the paper is left to the
    decoder.

    Args:
        annotation_dim: Dimension of an annotation.
        query_dim: Dimension of a query.
        score: Score function: `dot` (needs equal dimensions), `general` (bilinear), `concat`
            (one-hidden-layer MLP) or `location` (depends on the query alone).
        alignment: `global` over all annotations, `monotonic` in a window that moves with the
            decoding step (local-m), or `predictive` in a window around a position predicted from
            the query (local-p).
        hidden_dim: Hidden dimension of `concat` and `predictive`; query_dim if None.
        window_radius: Half-width of the window, in annotations.
        max_annotations: Largest number of annotations; required for `location`.

    Raises:
        ValueError: If score or alignment is unknown, `dot` gets different dimensions, `location`
            lacks `max_annotations`, or the radius is below 1.

    Example:
        >>> attention = LuongAttention(5, query_dim=3, alignment="predictive", window_radius=2)
        >>> context, weights = attention(torch.zeros(1, 2, 3), torch.zeros(1, 9, 5))
        >>> (weights[0, 0] > 0).int()  # a zero query predicts the middle, 4.5
        tensor([0, 0, 0, 1, 1, 1, 1, 0, 0], dtype=torch.int32)

    Source:
        Luong et al. 2015, arXiv:1508.04025, sections 3.1 and 3.2.
    """

    def __init__(
        self,
        annotation_dim: int,
        *,
        query_dim: int,
        score: Score = "general",
        alignment: Alignment = "global",
        hidden_dim: int | None = None,
        window_radius: float = 10.0,
        max_annotations: int | None = None,
    ) -> None:
        super().__init__()
        _check_options(score, alignment, annotation_dim, query_dim, window_radius, max_annotations)
        self.score: Score = score
        self.alignment: Alignment = alignment
        self.window_radius = window_radius
        hidden_dim = query_dim if hidden_dim is None else hidden_dim
        shapes = {
            "dot": {},
            "general": {"weight": (query_dim, annotation_dim)},
            "concat": {"weight": (hidden_dim, query_dim + annotation_dim), "vector": (hidden_dim,)},
            "location": {"weight": (max_annotations or 0, query_dim)},
        }[score]
        if alignment == "predictive":
            shapes |= {"center_weight": (hidden_dim, query_dim), "center_vector": (hidden_dim,)}
        self.weights = nn.ParameterDict(
            {name: _init_parameter(*shape) for name, shape in shapes.items()}
        )
        self.tap = Tap("words")

    def forward(
        self,
        query: Float[Tensor, "b n d"],
        annotations: Float[Tensor, "b m c"],
        *,
        lengths: Int[Tensor, " b"] | None = None,
        first_step: int = 0,
    ) -> tuple[Float[Tensor, "b n c"], Float[Tensor, "b n m"]]:
        """Return the context vector and attention weights of each query.

        Args:
            query: Hidden states of the decoder.
            annotations: Annotations to attend to.
            lengths: Number of valid annotations per row; all if None.
            first_step: Decoding step of the first query, from 0.
        """
        mask = None if lengths is None else length_mask(lengths, annotations.shape[1])
        scores = self.scores(query, annotations)
        weights = self.tap(self._align(query, scores, mask, lengths, first_step))
        return weights @ annotations, weights

    def scores(
        self, query: Float[Tensor, "b n d"], annotations: Float[Tensor, "b m c"]
    ) -> Float[Tensor, "b n m"]:
        """Return the score of each query with each annotation."""
        if self.score == "dot":
            return dot_scores(query, annotations)
        weight = self.weights["weight"]
        if self.score == "general":
            return general_scores(query, annotations, weight)
        if self.score == "concat":
            return concat_scores(query, annotations, weight, self.weights["vector"])
        return location_scores(query, weight, annotations.shape[1])

    def _align(
        self,
        query: Float[Tensor, "b n d"],
        scores: Float[Tensor, "b n m"],
        mask: Bool[Tensor, "b 1 m"] | None,
        lengths: Int[Tensor, " b"] | None,
        first_step: int,
    ) -> Float[Tensor, "b n m"]:
        if self.alignment == "global":
            return masked_softmax(scores, mask)
        if self.alignment == "monotonic":
            centers = monotonic_centers(query.shape[1], start=first_step, device=query.device)
            return local_alignment(scores, centers, radius=self.window_radius, mask=mask)
        weight = self.weights["center_weight"]
        vector = self.weights["center_vector"]
        num_valid = scores.shape[-1] if lengths is None else lengths
        centers = predicted_centers(query, weight, vector, num_valid)
        return predictive_alignment(scores, centers, radius=self.window_radius, mask=mask)

    def extra_repr(self) -> str:
        """Return the arguments shown by `repr`."""
        return f"score={self.score}, alignment={self.alignment}"


def _check_options(
    score: str,
    alignment: str,
    annotation_dim: int,
    query_dim: int,
    window_radius: float,
    max_annotations: int | None,
) -> None:
    if score not in get_args(Score) or alignment not in get_args(Alignment):
        raise ValueError(
            f"score must be one of {get_args(Score)} and alignment one of {get_args(Alignment)}, "
            f"got {score!r} and {alignment!r}"
        )
    if score == "dot" and annotation_dim != query_dim:
        raise ValueError(
            "score='dot' needs equal dimensions, got annotation_dim "
            f"{annotation_dim} and query_dim {query_dim}; use score='general'"
        )
    if score == "location" and (max_annotations is None or max_annotations < 1):
        raise ValueError(
            f"score='location' needs max_annotations of at least 1, got {max_annotations}"
        )
    if alignment != "global" and window_radius < 1:
        raise ValueError(f"window_radius must be at least 1, got {window_radius}")


def _init_parameter(*shape: int) -> nn.Parameter:
    """Return a parameter initialized uniformly with bound 1 / sqrt(fan-in)."""
    bound = shape[-1] ** -0.5
    return nn.Parameter(torch.empty(shape).uniform_(-bound, bound))
