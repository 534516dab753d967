"""Sequence recognizer: reads a row of symbols with the attention variants of Luong et al.

score        additive   v . tanh(W_a a + b + W_q h)    Bahdanau et al. 2015
             concat     v . tanh(W [h; a])
             general    h . W a
             dot        h . a
             location   W h                            without the features
alignment    global        softmax over all positions
             monotonic     softmax over the columns around one that advances (local-m)
             predictive    the same around a predicted column, times a Gaussian (local-p)
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear

from visattn.blocks.additive import AdditiveAttention
from visattn.blocks.base import check_choice
from visattn.blocks.tap import Tap
from visattn.functional.attention import additive_scores
from visattn.models.base import ImageEncoder
from visattn.models.captioning.captioner import AttentionStep, Captioner, RecurrentState
from visattn.models.captioning.show_attend_tell import ShowAttendTellDecoder

AttentionScore = Literal["additive", "dot", "general", "concat", "location"]
Alignment = Literal["global", "monotonic", "predictive"]


class LuongScores(nn.Module):
    """Scores of a query with each position, with the interface of `AdditiveAttention`.

    Source:
        Luong et al. 2015, arXiv:1508.04025, section 3.1.
    """

    def __init__(
        self, score: str, feature_dim: int, query_dim: int, attention_dim: int, num_positions: int
    ) -> None:
        super().__init__()
        self.score = score
        self.query_dim = query_dim
        shapes: dict[str, tuple[int, ...]] = {
            "dot": {},
            "general": {"weight": (query_dim, feature_dim)},
            "concat": {
                "weight": (attention_dim, query_dim + feature_dim),
                "vector": (attention_dim,),
            },
            "location": {"weight": (num_positions, query_dim)},
        }[score]
        bounds = {name: shape[-1] ** -0.5 for name, shape in shapes.items()}  # 1 / sqrt(fan-in)
        self.weights = nn.ParameterDict(
            {
                name: torch.empty(shape).uniform_(-bounds[name], bounds[name])
                for name, shape in shapes.items()
            }
        )
        self.tap = Tap("words")

    def key(self, features: Float[Tensor, "b n c"]) -> Float[Tensor, "b n d"]:
        """Return the part of the scores that depends only on the features, once per image."""
        if self.score != "concat":
            return features
        return linear(features, self.weights["weight"][:, self.query_dim :])

    def scores(
        self, query: Float[Tensor, "b k h"], keys: Float[Tensor, "b n d"]
    ) -> Float[Tensor, "b k n"]:
        """Return the scores, before the softmax."""
        if self.score == "dot":
            return query @ keys.mT
        weight = self.weights["weight"]
        if self.score == "general":
            return query @ weight @ keys.mT
        if self.score == "location":
            return linear(query, weight)
        return additive_scores(
            linear(query, weight[:, : self.query_dim]), keys, self.weights["vector"]
        )


class ColumnAttention(nn.Module):
    """Soft attention with a choice of scores, global or local along the horizontal axis.

    A window contains all positions of the columns around its center. The context vector is the
    expected feature; for a predicted window it is scaled by the sum of the weights, which the
    Gaussian makes less than 1. This sum is the gate of the `AttentionStep`, whose weights sum to 1.

    For the options see `SequenceRecognizer`.

    Source:
        Luong et al. 2015, arXiv:1508.04025, section 3.2. As in Bahdanau et al. and unlike Luong et
        al., the query is the hidden state before the word. There, windows cover a sentence.
    """

    columns: Tensor

    def __init__(
        self,
        feature_dim: int,
        hidden_size: int,
        attention_dim: int,
        *,
        grid_size: tuple[int, int],
        score: AttentionScore,
        alignment: Alignment,
        window_radius: float,
        window_step: float,
    ) -> None:
        super().__init__()
        check_choice("score", score, get_args(AttentionScore))
        check_choice("alignment", alignment, get_args(Alignment))
        self.alignment: Alignment = alignment
        self.window_radius = window_radius
        self.window_step = window_step
        rows, columns = grid_size
        if score == "additive":
            self.scorer: Any = AdditiveAttention(
                feature_dim, query_dim=hidden_size, attention_dim=attention_dim
            )
        else:
            self.scorer = LuongScores(
                score, feature_dim, hidden_size, attention_dim, rows * columns
            )
        if alignment == "predictive":
            self.center_hidden = nn.Linear(hidden_size, attention_dim, bias=False)
            self.center_vector = nn.Parameter(torch.zeros(attention_dim))
        self.register_buffer(
            "columns", torch.arange(columns).repeat(rows).float(), persistent=False
        )

    def project_keys(self, features: Float[Tensor, "b n c"]) -> Float[Tensor, "b n d"]:
        """Return the part of the scores that does not depend on the word."""
        return self.scorer.key(features)

    def forward(self, state: RecurrentState) -> tuple[Float[Tensor, "b k c"], AttentionStep]:
        """Return the context vector and the attention of each hypothesis."""
        aligned = self.align(self.scorer.scores(state.hidden, state.keys), state)
        gate = aligned.sum(-1) if self.alignment == "predictive" else aligned.new_ones(())
        weights = self.scorer.tap(aligned / gate.unsqueeze(-1))
        context = gate.unsqueeze(-1) * (weights @ state.features)
        return context, AttentionStep(weights, gate.expand(weights.shape[:-1]))

    def align(
        self, scores: Float[Tensor, "b k n"], state: RecurrentState
    ) -> Float[Tensor, "b k n"]:
        """Return attention weights; those of a predicted window sum to less than 1."""
        if self.alignment == "global":
            return scores.softmax(-1)
        last = self.columns[-1]
        if self.alignment == "monotonic":
            center = last.clamp(max=state.num_words * self.window_step)  # until the last column
        else:
            hidden = self.center_hidden(state.hidden).tanh()
            center = last * (hidden @ self.center_vector).sigmoid().unsqueeze(-1)
        distance = self.columns - center
        outside = distance.abs() > self.window_radius
        weights = scores.masked_fill(outside, -torch.inf).softmax(-1)
        if self.alignment == "monotonic":
            return weights
        # The radius of the window is two standard deviations.
        gaussian = torch.exp(-2 * (distance / self.window_radius).square())
        return weights * gaussian.to(weights.dtype)


class SequenceRecognizer(Captioner):
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
        ValueError: If an option is unknown.

    Example:
        >>> import torch
        >>> from visattn.results.kinds import SPECIAL_TOKENS
        >>> from visattn.models.base import SmallEncoder
        >>> encoder = SmallEncoder((24, 40), channels=8)
        >>> model = SequenceRecognizer((*SPECIAL_TOKENS, *"0123456789"), encoder, score="general")
        >>> features = encoder.eval()(torch.zeros(1, 3, 24, 40, dtype=torch.uint8))
        >>> output = model.eval().search(features, max_length=5)
        >>> output.attention_steps.weights.shape[-1]  # a grid of 3×5 positions
        15

    Source:
        Bahdanau et al. 2015, arXiv:1409.0473; Luong et al. 2015, arXiv:1508.04025; on images:
        Shi et al. 2016, arXiv:1603.03915. The decoder is that of `ShowAttendTell` without its gate.
    """

    attention_site = "decoder.attention.scorer.tap"

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
        self.decoder = ShowAttendTellDecoder(
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
