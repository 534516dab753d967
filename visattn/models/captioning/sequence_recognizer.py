"""Sequence recognizer: reads a row of symbols, attending to columns."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear

from visattn.blocks.additive import AdditiveAttention
from visattn.blocks.base import check_choice
from visattn.blocks.luong import Alignment, LuongAttention
from visattn.functional.attention import additive_scores, dot_scores
from visattn.functional.luong import local_alignment, predicted_centers, predictive_alignment
from visattn.models.base import ImageEncoder
from visattn.models.captioning.attending_decoder import (
    AttendingDecoder,
    AttendingDecoderState,
    CaptionAttention,
)
from visattn.models.captioning.captioner import AttentionStep, Captioner

AttentionScore = Literal["additive", "dot", "general", "concat", "location"]


class ColumnAttention(CaptionAttention):
    """Soft attention with a choice of score functions, global or local along the horizontal axis.

    A window contains all places of the columns around its center. The context vector is the
    expected feature; for a predicted window it is scaled by the sum of the weights, which the
    Gaussian makes less than 1. This sum is the gate of the `AttentionStep`, whose weights sum to 1.

    For the options see `SequenceRecognizer`.

    Source:
        Bahdanau et al. 2015, arXiv:1409.0473, for `additive`; Luong et al. 2015, arXiv:1508.04025,
        sections 3.1 and 3.2, for the others. As in Bahdanau et al. and unlike Luong et al., the
        query is the hidden state before the word. There, windows lie on a sentence.
    """

    columns: Tensor

    def __init__(
        self,
        feature_dim: int,
        hidden_size: int,
        *,
        grid_size: tuple[int, int],
        score: AttentionScore = "additive",
        alignment: Alignment = "global",
        attention_dim: int = 128,
        window_radius: float = 3.0,
        window_step: float = 2.0,
    ) -> None:
        super().__init__()
        _check_options(score, alignment, window_radius, window_step)
        self.grid_size = grid_size
        self.hidden_size = hidden_size
        self.score: AttentionScore = score
        self.alignment: Alignment = alignment
        self.window_radius = window_radius
        self.window_step = window_step
        if score == "additive":
            self.scorer = AdditiveAttention(
                feature_dim, query_dim=hidden_size, attention_dim=attention_dim
            )
        else:
            self.scorer = LuongAttention(
                feature_dim,
                query_dim=hidden_size,
                score=score,
                hidden_dim=attention_dim,
                max_annotations=grid_size[0] * grid_size[1],
            )
        if alignment == "predictive":
            self.center_hidden = nn.Linear(hidden_size, attention_dim, bias=False)
            self.center_vector = nn.Parameter(torch.zeros(attention_dim))
        columns = torch.arange(grid_size[1]).repeat(grid_size[0]).float()
        self.register_buffer("columns", columns, persistent=False)

    @property
    def hidden_weight(self) -> Float[Tensor, "q h"]:
        """Weight of the query; empty for dot products, whose query is the hidden state."""
        if isinstance(self.scorer, AdditiveAttention):
            return self.scorer.query.weight
        if self.score == "dot":
            return self.columns.new_zeros(0, self.hidden_size)
        weight = self.scorer.weights["weight"]
        # `linear` takes the transpose of its weight, `general_scores` the weight as it is.
        if self.score == "general":
            return weight.T
        return weight[:, : self.hidden_size]  # of `concat` and `location`

    def project_keys(
        self, annotations: Float[Tensor, "b n c"], grid_size: tuple[int, int]
    ) -> Float[Tensor, "b n d"]:
        """Return what the scores need of the annotations, computed once per image."""
        if grid_size != self.grid_size:
            raise ValueError(f"features must have the grid {self.grid_size}, got {grid_size}")
        self.scorer.tap.grid = grid_size
        if isinstance(self.scorer, AdditiveAttention):
            return self.scorer.project_keys(annotations)
        if self.score == "concat":
            return linear(annotations, self.scorer.weights["weight"][:, self.hidden_size :])
        return annotations

    def forward(self, state: AttendingDecoderState) -> tuple[Float[Tensor, "b k c"], AttentionStep]:
        """Return the context vector and the attention of each hypothesis."""
        return self._attend(linear(state.hidden, self.hidden_weight), state)

    def attend_projected(
        self, projected: Float[Tensor, "r q"], state: AttendingDecoderState
    ) -> tuple[Float[Tensor, "r c"], AttentionStep]:
        """Do the same for teacher forcing, with one caption per row."""
        state = replace(state, hidden=state.hidden.unsqueeze(1), cell=state.cell.unsqueeze(1))
        context, attention = self._attend(projected.unsqueeze(1), state)
        step = AttentionStep(attention.weights.squeeze(1), attention.gate.squeeze(1))
        return context.squeeze(1), step

    def _attend(
        self, query: Float[Tensor, "b k q"], state: AttendingDecoderState
    ) -> tuple[Float[Tensor, "b k c"], AttentionStep]:
        scores = self._scores(state.hidden if self.score == "dot" else query, state.keys)
        aligned = self._align(scores, state)
        gate = aligned.sum(-1)
        if self.alignment != "predictive":
            gate = torch.ones_like(gate)
        weights = self.scorer.tap(aligned / gate.unsqueeze(-1))
        context = gate.unsqueeze(-1) * (weights @ state.annotations)
        return context, AttentionStep(weights, gate)

    def _scores(
        self, query: Float[Tensor, "b k q"], keys: Float[Tensor, "b n d"]
    ) -> Float[Tensor, "b k n"]:
        if isinstance(self.scorer, AdditiveAttention):
            return additive_scores(query, keys, self.scorer.vector)
        if self.score == "concat":
            return additive_scores(query, keys, self.scorer.weights["vector"])
        return query if self.score == "location" else dot_scores(query, keys)

    def _align(
        self, scores: Float[Tensor, "b k n"], state: AttendingDecoderState
    ) -> Float[Tensor, "b k n"]:
        """Return attention weights; those of a predicted window sum to less than 1."""
        if self.alignment == "global":
            return scores.softmax(-1)
        radius = self.window_radius
        last = self.grid_size[1] - 1
        if self.alignment == "monotonic":
            center = min(state.num_words * self.window_step, last)  # stays at the last column
            centers = scores.new_full((1, 1), center)
            return local_alignment(scores, centers, radius=radius, positions=self.columns)
        centers = predicted_centers(
            state.hidden, self.center_hidden.weight, self.center_vector, last
        )
        return predictive_alignment(scores, centers, radius=radius, positions=self.columns)

    def extra_repr(self) -> str:
        """Return the arguments shown by `repr`."""
        return f"score={self.score}, alignment={self.alignment}, grid_size={self.grid_size}"


def _check_options(score: str, alignment: str, window_radius: float, window_step: float) -> None:
    check_choice("score", score, get_args(AttentionScore))
    check_choice("alignment", alignment, get_args(Alignment))
    if window_radius < 1 or window_step < 0:
        raise ValueError(
            "window_radius must be at least 1 and window_step at least 0 columns, got "
            f"{window_radius} and {window_step}"
        )


class SequenceRecognizer(Captioner[AttendingDecoderState]):
    """Recurrent decoder that attends to the image for each symbol, and predicts an end token.

    It is a captioner whose words are symbols, so that beam search, panels, pages and
    `visattn caption` work. Its attention has a choice of score functions and windows.

    Args:
        words: The symbols, after `SPECIAL_TOKENS`.
        encoder: Maps images to a grid of features.
        score: Score function: `additive` (one-hidden-layer MLP), `concat` (the same without a
            bias), `general` (bilinear), `dot`, or `location` (depends on the hidden state alone).
        alignment: `global`; `monotonic`, a window that moves by `window_step` columns with each
            symbol (local-m); or `predictive`, a window around a predicted column (local-p).
        embed_dim: Dimension of the symbol embeddings.
        hidden_size: Hidden size of the LSTM.
        attention_dim: Hidden dimension of `additive`, `concat` and the predicted column.
        window_radius: Columns of the grid to each side of the center of a window.
        window_step: Columns between the centers of consecutive monotonic windows; the first window
            is centered at column 0, the last ones stay at the last column.
        dropout: Dropout rate on embeddings and before the output layer.
        feature_proj_dim: Dimension to which features are projected, once per image; None for no
            projection. `dot` needs it to be `hidden_size`.

    Raises:
        ValueError: If an option is unknown or out of range, or the score function is `dot` and
            the dimensions differ.

    Example:
        >>> import torch
        >>> from visattn.results.kinds import SPECIAL_TOKENS
        >>> from visattn.models.base import SmallEncoder
        >>> encoder = SmallEncoder((24, 40), channels=8)
        >>> model = SequenceRecognizer((*SPECIAL_TOKENS, *"0123456789"), encoder, score="general")
        >>> features = encoder.eval()(torch.zeros(1, 3, 24, 40, dtype=torch.uint8))
        >>> output = model.eval().search(features, max_length=5)
        >>> output.attention_steps.weights.shape[-1]  # a grid of 3×5 places
        15

    Source:
        Bahdanau et al. 2015, arXiv:1409.0473; Luong et al. 2015, arXiv:1508.04025; on images:
        Shi et al. 2016, arXiv:1603.03915. The decoder is that of `ShowAttendTell` without its gate.
    """

    def __init__(
        self,
        words: Sequence[str],
        encoder: ImageEncoder,
        *,
        score: AttentionScore = "additive",
        alignment: Alignment = "global",
        embed_dim: int = 64,
        hidden_size: int = 128,
        attention_dim: int = 128,
        window_radius: float = 3.0,
        window_step: float = 2.0,
        dropout: float = 0.0,
        feature_proj_dim: int | None = None,
    ) -> None:
        super().__init__(words, encoder)
        if score == "dot" and (feature_proj_dim or encoder.channels) != hidden_size:
            raise ValueError(
                f"score='dot' needs features of hidden_size={hidden_size} channels, got "
                f"{feature_proj_dim or encoder.channels}; set feature_proj_dim to {hidden_size}"
            )
        self.decoder = AttendingDecoder(
            len(words),
            encoder.channels,
            partial(
                ColumnAttention,
                grid_size=encoder.grid_size,
                score=score,
                alignment=alignment,
                window_radius=window_radius,
                window_step=window_step,
            ),
            embed_dim=embed_dim,
            hidden_size=hidden_size,
            attention_dim=attention_dim,
            dropout=dropout,
            feature_proj_dim=feature_proj_dim,
        )
