"""Multiplicative attention of a recurrent network, over all annotations or near a center."""

from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from visattn.blocks.tap import Tap
from visattn.functional.attention.luong import (
    local_alignment,
    monotonic_centers,
    predicted_centers,
    predictive_alignment,
)
from visattn.functional.attention.masks import from_lengths
from visattn.functional.attention.scores import (
    concat_scores,
    dot_scores,
    general_scores,
    location_scores,
)
from visattn.functional.attention.softmax import masked_softmax

Score = Literal["dot", "general", "concat", "location"]
Align = Literal["global", "monotonic", "predictive"]


class LuongAttention(nn.Module):
    """Look at annotations with the hidden state of a decoder: everywhere, or near one place.

    Keys and values are the annotations themselves. What a decoder makes of what it has seen (the
    attentional hidden state of the paper) is left to the decoder.

    Args:
        width: Width of an annotation.
        query: Width of a query.
        score: How a query is compared with an annotation: `dot` asks for one width, `general` puts
            a matrix between them, `concat` a layer over both, and `location` looks at places
            whatever they hold.
        align: Over what the weights lie: all annotations (`global`), a window that goes along with
            the queries (`monotonic`), or one around a place that the query foretells
            (`predictive`).
        dim: Width of the hidden layers of `concat` and `predictive`; that of the query if not said.
        radius: How many places a window reaches to each side.
        places: Most annotations that there may ever be, for `location`.

    Raises:
        ValueError: If score or align are unknown, `dot` is to compare two widths, `location` lacks
            the number of places, or the radius is below 1.

    Example:
        >>> look = LuongAttention(5, query=3, align="predictive", radius=2)
        >>> seen, weights = look(torch.zeros(1, 2, 3), torch.zeros(1, 9, 5))
        >>> (weights[0, 0] > 0).int()  # a query of zeros foretells the middle, 4.5
        tensor([0, 0, 0, 1, 1, 1, 1, 0, 0], dtype=torch.int32)

    Source:
        Luong et al. 2015, arXiv:1508.04025, sections 3.1 and 3.2.
    """

    def __init__(
        self,
        width: int,
        *,
        query: int,
        score: Score = "general",
        align: Align = "global",
        dim: int | None = None,
        radius: float = 10.0,
        places: int | None = None,
    ) -> None:
        super().__init__()
        _check(score, align, width, query, radius, places)
        self.score: Score = score
        self.align: Align = align
        self.radius = radius
        dim = query if dim is None else dim
        shapes = {
            "dot": {},
            "general": {"weight": (query, width)},
            "concat": {"weight": (dim, query + width), "vector": (dim,)},
            "location": {"weight": (places or 0, query)},
        }[score]
        if align == "predictive":
            shapes |= {"center_weight": (dim, query), "center_vector": (dim,)}
        self.learned = nn.ParameterDict({name: _drawn(*shape) for name, shape in shapes.items()})
        self.tap = Tap("words")

    def forward(
        self,
        query: Float[Tensor, "b n d"],
        annotations: Float[Tensor, "b m c"],
        *,
        lengths: Int[Tensor, " b"] | None = None,
        first: int = 0,
    ) -> tuple[Float[Tensor, "b n c"], Float[Tensor, "b n m"]]:
        """Return what each query sees, and where it looks.

        Args:
            query: Hidden states.
            annotations: What is looked at.
            lengths: How many annotations of each row are real; all if not said.
            first: Number of the first query, from 0: in a loop over steps, that of the step.
        """
        mask = None if lengths is None else from_lengths(lengths, annotations.shape[1])
        scores = self.scores(query, annotations)
        weights = self.tap(self._aligned(query, scores, mask, lengths, first))
        return weights @ annotations, weights

    def scores(
        self, query: Float[Tensor, "b n d"], annotations: Float[Tensor, "b m c"]
    ) -> Float[Tensor, "b n m"]:
        """Return how well each query fits each annotation."""
        if self.score == "dot":
            return dot_scores(query, annotations)
        weight = self.learned["weight"]
        if self.score == "general":
            return general_scores(query, annotations, weight)
        if self.score == "concat":
            return concat_scores(query, annotations, weight, self.learned["vector"])
        return location_scores(query, weight, annotations.shape[1])

    def _aligned(
        self,
        query: Float[Tensor, "b n d"],
        scores: Float[Tensor, "b n m"],
        mask: Bool[Tensor, "b 1 m"] | None,
        lengths: Int[Tensor, " b"] | None,
        first: int,
    ) -> Float[Tensor, "b n m"]:
        if self.align == "global":
            return masked_softmax(scores, mask)
        if self.align == "monotonic":
            centers = monotonic_centers(query.shape[1], first=first, device=query.device)
            return local_alignment(scores, centers, radius=self.radius, mask=mask)
        weight, vector = self.learned["center_weight"], self.learned["center_vector"]
        real = scores.shape[-1] if lengths is None else lengths
        centers = predicted_centers(query, weight, vector, real)
        return predictive_alignment(scores, centers, radius=self.radius, mask=mask)

    def extra_repr(self) -> str:
        """Return what is printed of it beside its parts."""
        return f"score={self.score}, align={self.align}"


def _check(
    score: str, align: str, width: int, query: int, radius: float, places: int | None
) -> None:
    if score not in get_args(Score) or align not in get_args(Align):
        raise ValueError(
            f"score must be one of {get_args(Score)} and align one of {get_args(Align)}, "
            f"got {score!r} and {align!r}"
        )
    if score == "dot" and width != query:
        raise ValueError(
            f"dot compares one width with itself, got annotations of {width} and queries of "
            f"{query}; general takes two"
        )
    if score == "location" and (places is None or places < 1):
        raise ValueError(f"location needs places, the most that there may be, got {places}")
    if align != "global" and radius < 1:
        raise ValueError(f"the radius of a window must be at least 1 place, got {radius}")


def _drawn(*shape: int) -> nn.Parameter:
    """Return numbers that keep a product of so many about as large as one of them."""
    bound = shape[-1] ** -0.5
    return nn.Parameter(torch.empty(shape).uniform_(-bound, bound))
