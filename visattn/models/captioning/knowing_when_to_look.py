"""Knowing When to Look: with a visual sentinel, words can rely on the decoder's memory.

    for each word   h, m = LSTM([word; image], h, m)
                    s = sigmoid(W_x [word; image] + W_h h) * tanh(m)    the sentinel
                    alpha, beta = softmax([scores of the grid, score of s])
                    c = sum alpha_i a_i + beta s
                    logits = W_o tanh(W_p (c + h))

Source:
    Lu et al. 2017, arXiv:1612.01887.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from visattn.blocks.additive import AdditiveAttention
from visattn.functional.captions import WordPacking
from visattn.models.base import ImageEncoder
from visattn.models.captioning.captioner import (
    AttentionStep,
    Captioner,
    RecurrentDecoder,
    RecurrentState,
    TeacherForcedOutput,
    feature_projection,
)
from visattn.models.configurable import options_of


@dataclass(frozen=True)
class AdaptiveState(RecurrentState):
    """State of the decoder."""

    image: Float[Tensor, "b 1 e"]
    """The global feature."""
    without_sentinel: Bool[Tensor, " b"] | None = None
    """Captions that attend to the grid only, without the sentinel."""


class AdaptiveAttention(nn.Module):
    """Additive attention over the grid and a visual sentinel.

    The softmax has one score more than the grid has positions: that of the sentinel. Its weight
    beta is the share of the sentinel in the context vector.

    Source:
        Lu et al. 2017, arXiv:1612.01887, equations 6, 7 and 11 to 13.
    """

    def __init__(self, feature_dim: int, attention_dim: int) -> None:
        super().__init__()
        self.scorer = AdditiveAttention(
            feature_dim, query_dim=feature_dim, attention_dim=attention_dim
        )
        self.sentinel_key = nn.Linear(feature_dim, attention_dim)

    def forward(
        self, state: AdaptiveState, sentinel: Float[Tensor, "b k h"]
    ) -> tuple[Float[Tensor, "b k h"], AttentionStep]:
        """Return the context vector and the attention; its gate is 1 - beta."""
        scores = self.scorer.scores(state.hidden, state.keys)
        key = torch.tanh(self.sentinel_key(sentinel) + self.scorer.query(state.hidden))
        sentinel_score = (key @ self.scorer.vector).unsqueeze(-1)
        # The softmax over positions and sentinel is the total share of the positions, sum exp z /
        # (sum exp z + exp s) = sigmoid(logsumexp z - s), times the softmax over the positions,
        # which is the map.
        gate = (scores.logsumexp(-1, keepdim=True) - sentinel_score).sigmoid()
        if state.without_sentinel is not None:
            gate = gate.masked_fill(state.without_sentinel[:, None, None], 1.0)
        weights = self.scorer.tap(scores.softmax(-1))
        context = gate * (weights @ state.features) + (1 - gate) * sentinel
        return context, AttentionStep(weights, gate.squeeze(-1))


class AdaptiveDecoder(RecurrentDecoder):
    """LSTM decoder that attends after it has read a word, with a visual sentinel.

    For the options see `KnowingWhenToLook`.

    Source:
        Lu et al. 2017, arXiv:1612.01887, equations 4 to 13. The output layer is that of the
        authors' code, tanh of a linear map before the vocabulary; neither has the layer norm of the
        features or `sentinel_dropout`.
    """

    def __init__(
        self,
        num_words: int,
        in_channels: int,
        *,
        embed_dim: int = 128,
        hidden_size: int = 256,
        attention_dim: int = 128,
        dropout: float = 0.1,
        feature_dropout: float = 0.0,
        sentinel_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.sentinel_dropout = sentinel_dropout
        self.feature_proj = feature_projection(in_channels, hidden_size, feature_dropout)
        self.global_proj = nn.Sequential(nn.Linear(in_channels, embed_dim), nn.ReLU())
        self.embedding = nn.Embedding(num_words, embed_dim)
        self.lstm = nn.LSTMCell(2 * embed_dim, hidden_size)
        self.sentinel_input = nn.Linear(2 * embed_dim, hidden_size)
        self.sentinel_hidden = nn.Linear(hidden_size, hidden_size, bias=False)
        self.attention = AdaptiveAttention(hidden_size, attention_dim)
        self.output_hidden = nn.Linear(hidden_size, hidden_size)
        self.output = nn.Linear(hidden_size, num_words)
        self.dropout = nn.Dropout(dropout)

    def start(self, features: Float[Tensor, "b c y x"]) -> AdaptiveState:
        """Return the state before the first word, with one hypothesis per image."""
        self.attention.scorer.tap.grid = (features.shape[-2], features.shape[-1])
        positions = features.flatten(2).mT.contiguous()
        projected = self.feature_proj(positions)
        zeros = projected.new_zeros(len(features), 1, projected.shape[-1])
        keys = self.attention.scorer.key(projected)
        image = self.global_proj(positions.mean(1, keepdim=True))
        return AdaptiveState(projected, keys, zeros, zeros, image=image)

    def attend(
        self, state: AdaptiveState, word: Float[Tensor, "b k e"]
    ) -> tuple[AdaptiveState, Float[Tensor, "b k h"], AttentionStep]:
        """Read the word and the image; attend with the new hidden state and the sentinel."""
        inputs = torch.cat((word, state.image.expand_as(word)), -1)
        gate = (self.sentinel_input(inputs) + self.sentinel_hidden(state.hidden)).sigmoid()
        state = state.read(self.lstm, inputs)
        context, attention = self.attention(state, gate * state.cell.tanh())
        return state, context, attention

    def predict(
        self,
        hidden: Float[Tensor, "*b h"],
        word: Float[Tensor, "*b e"],  # noqa: ARG002
        context: Float[Tensor, "*b h"],
    ) -> Float[Tensor, "*b v"]:
        """Return the logits of the next word."""
        return self.output(self.dropout(self.output_hidden(context + hidden).tanh()))

    def teacher_force(
        self,
        features: Float[Tensor, "b c y x"],
        captions: Int[Tensor, "r t"],
        lengths: Int[Tensor, " r"] | WordPacking,
        image_indices: Int[Tensor, " r"] | None = None,
        **of_captions: Any,
    ) -> TeacherForcedOutput:
        """Read whole captions; in training some of them without the sentinel."""
        if self.training and self.sentinel_dropout:
            numbers = torch.rand(len(captions), device=captions.device)
            of_captions["without_sentinel"] = numbers < self.sentinel_dropout
        return super().teacher_force(features, captions, lengths, image_indices, **of_captions)


class KnowingWhenToLook(Captioner):
    """Captioner with adaptive attention: a visual sentinel in addition to the grid positions.

    The gate of each word is 1 - beta, the share of the image in its context vector: near 1 for
    words that depend on the image, near 0 for words that the language predicts.

    Args:
        words: The vocabulary; it begins with `SPECIAL_TOKENS`.
        encoder: Maps images to a grid of features.
        embed_dim: Dimension of the word embeddings and of the global feature.
        hidden_size: Hidden size of the LSTM, to which the features are projected.
        attention_dim: Hidden dimension of the additive attention.
        dropout: Dropout rate on word embeddings and before the vocabulary.
        feature_dropout: Dropout rate on features before the projection.
        sentinel_dropout: Fraction of the captions that are trained without the sentinel, as in the
            spatial attention of the paper. It keeps a gradient in the attention: from random
            weights, the decoder otherwise learns to use the sentinel for all words. It is not in
            the paper.

    Example:
        >>> from visattn.results.kinds import SPECIAL_TOKENS
        >>> from visattn.models.base import SmallEncoder
        >>> encoder = SmallEncoder((24, 40), channels=8)
        >>> words = (*SPECIAL_TOKENS, "red", "blue")
        >>> model = KnowingWhenToLook(words, encoder, hidden_size=11).eval()
        >>> features = encoder(torch.zeros(1, 3, 24, 40, dtype=torch.uint8))
        >>> output = model.search(features, max_length=7)
        >>> output.attention_steps.weights.shape[-1]  # a grid of 3×5 positions
        15

    Source:
        Lu et al. 2017, "Knowing When to Look: Adaptive Attention via a Visual Sentinel for Image
        Captioning", arXiv:1612.01887; see `AdaptiveDecoder`.
    """

    attention_site = "decoder.attention.scorer.tap"

    @options_of(AdaptiveDecoder)
    def __init__(self, words: Sequence[str], encoder: ImageEncoder, **options: Any) -> None:
        super().__init__(words, encoder)
        self.decoder = AdaptiveDecoder(len(words), encoder.channels, **options)
