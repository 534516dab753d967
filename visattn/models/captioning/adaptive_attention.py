"""Adaptive attention: a visual sentinel lets each word rely on the decoder instead of the image."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import linear

from visattn.blocks.additive import AdditiveAttention
from visattn.functional.attention import context_vector
from visattn.functional.captions import WordPacking, pack_words
from visattn.models.base import ImageEncoder
from visattn.models.captioning.attending_decoder import feature_projection, lstm_step
from visattn.models.captioning.captioner import (
    AttentionStep,
    Captioner,
    RecurrentState,
    TeacherForcedOutput,
)
from visattn.models.configurable import options_of


class AdaptiveAttention(nn.Module):
    """Additive attention over the grid and a visual sentinel.

    The softmax has one score more than the grid has places: that of the sentinel. Its weight beta
    is the share of the sentinel in the context vector, the rest comes from the grid.

    Example:
        >>> attention = AdaptiveAttention(5, attention_dim=7)
        >>> annotations = torch.zeros(2, 3, 5)
        >>> keys = attention.scorer.project_keys(annotations)
        >>> hidden = sentinel = torch.zeros(2, 5)
        >>> _, step = attention(hidden, sentinel, annotations, keys)
        >>> step.weights.shape, step.gate.shape
        (torch.Size([2, 3]), torch.Size([2]))

    Source:
        Lu et al. 2017, arXiv:1612.01887, equations 6, 7 and 11 to 13.
    """

    def __init__(self, feature_dim: int, *, attention_dim: int) -> None:
        super().__init__()
        self.scorer = AdditiveAttention(
            feature_dim, query_dim=feature_dim, attention_dim=attention_dim
        )
        self.sentinel_key = nn.Linear(feature_dim, attention_dim)

    def forward(
        self,
        hidden: Float[Tensor, "*b h"],
        sentinel: Float[Tensor, "*b h"],
        annotations: Float[Tensor, "*#b n h"],
        keys: Float[Tensor, "*#b n d"],
        without_sentinel: Bool[Tensor, " b"] | None = None,
    ) -> tuple[Float[Tensor, "*b h"], AttentionStep]:
        """Return the context vector and the attention; its gate is 1 - beta.

        Rows `without_sentinel` attend to the grid alone.
        """
        query = self.scorer.query(hidden)
        scores = self.scorer.scores(query, keys)
        sentinel_score = self.scorer.scores(query, self.sentinel_key(sentinel).unsqueeze(-2))
        # The softmax over places and sentinel, taken apart: the share of all places together, sum
        # exp z / (sum exp z + exp s) = sigmoid(logsumexp z - s), times the softmax over places
        # alone, which is the map.
        gate = (scores.logsumexp(-1, keepdim=True) - sentinel_score).sigmoid()
        if without_sentinel is not None:
            gate = gate.masked_fill(without_sentinel.unsqueeze(-1), 1.0)
        weights = self.scorer.tap(scores.softmax(-1))
        context = gate * context_vector(weights, annotations) + (1 - gate) * sentinel
        return context, AttentionStep(weights, gate.squeeze(-1))


@dataclass(frozen=True)
class AdaptiveDecoderState(RecurrentState):
    """Features of an image, and the LSTM state of each of its hypotheses."""

    annotations: Float[Tensor, "b n h"]
    keys: Float[Tensor, "b n d"]
    global_feature: Float[Tensor, "b e"]
    hidden: Float[Tensor, "b *k h"]
    cell: Float[Tensor, "b *k h"]


class AdaptiveDecoder(nn.Module):
    """LSTM decoder that attends after it has read a word, with a visual sentinel.

    At each step the LSTM reads the previous word and a global feature of the image. The sentinel is
    a gated view of its memory cell. The next word is predicted from the sum of the hidden state and
    the context vector.

    For the options see `KnowingWhenToLook`.

    Example:
        >>> decoder = AdaptiveDecoder(11, 8)
        >>> state = decoder.start(torch.zeros(2, 8, 3, 5))
        >>> logits, state, attention = decoder.step(state, torch.ones(2, 1, dtype=torch.long))
        >>> logits.shape, attention.weights.shape
        (torch.Size([2, 1, 11]), torch.Size([2, 1, 15]))

    Source:
        Lu et al. 2017, arXiv:1612.01887, equations 4 to 13. The output layer is that of the
        authors' code, tanh of a linear map before the vocabulary; the layer norm of the features
        and the option `sentinel_dropout` are in neither.
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
        if not 0 <= sentinel_dropout <= 1:
            raise ValueError(f"sentinel_dropout must be in [0, 1], got {sentinel_dropout}")
        self.sentinel_dropout = sentinel_dropout
        self.embed_dim = embed_dim
        self.hidden_size = hidden_size
        self.feature_proj = feature_projection(in_channels, hidden_size, feature_dropout)
        self.global_proj = nn.Sequential(nn.Linear(in_channels, embed_dim), nn.ReLU())
        self.embedding = nn.Embedding(num_words, embed_dim)
        self.lstm = nn.LSTMCell(2 * embed_dim, hidden_size)
        self.sentinel_input = nn.Linear(2 * embed_dim, hidden_size)
        self.sentinel_hidden = nn.Linear(hidden_size, hidden_size, bias=False)
        self.attention = AdaptiveAttention(hidden_size, attention_dim=attention_dim)
        self.output_hidden = nn.Linear(hidden_size, hidden_size)
        self.output = nn.Linear(hidden_size, num_words)
        self.dropout = nn.Dropout(dropout)

    def start(self, features: Float[Tensor, "b c y x"]) -> AdaptiveDecoderState:
        """Return the state before the first word, with one hypothesis per image."""
        places = features.flatten(2).transpose(1, 2).contiguous()
        annotations = self.feature_proj(places)
        scorer = self.attention.scorer
        scorer.tap.grid = (features.shape[-2], features.shape[-1])
        zeros = annotations.new_zeros(features.shape[0], 1, self.hidden_size)
        return AdaptiveDecoderState(
            annotations,
            scorer.project_keys(annotations),
            self.global_proj(places.mean(1)),
            zeros,
            zeros,
        )

    def step(
        self, state: AdaptiveDecoderState, token: Int[Tensor, "b k"]
    ) -> tuple[Float[Tensor, "b k v"], AdaptiveDecoderState, AttentionStep]:
        """Read one word per hypothesis; return next-word logits, the new state and attention."""
        words, images = self._input_gates(self.embedding(token), state.global_feature)
        gates = words + images.unsqueeze(1)
        hidden, cell, sentinel = self._advance(gates, state)
        context, attention = self.attention(
            hidden, sentinel, state.annotations.unsqueeze(1), state.keys.unsqueeze(1)
        )
        state = replace(state, hidden=hidden, cell=cell)
        return self._output(hidden, context), state, attention

    def teacher_force(
        self,
        features: Float[Tensor, "b c y x"],
        captions: Int[Tensor, "r t"],
        lengths: Int[Tensor, " r"] | WordPacking,
        image_indices: Int[Tensor, " r"] | None = None,
    ) -> TeacherForcedOutput:
        """Read whole captions; equal to `step` after `step`, several times faster."""
        packing = pack_words(lengths, image_indices)
        state = self.start(features)
        if image_indices is not None:
            state = state.select_images(image_indices)
        words, images = self._input_gates(self.embedding(captions), state.global_feature)
        gates = (words.transpose(0, 1) + images).unbind()
        zeros = state.hidden.squeeze(1)
        state = replace(state, hidden=zeros, cell=zeros)
        without_sentinel = self._drop_sentinel(len(captions), captions.device)
        hiddens = []
        contexts = []
        attentions = []
        for step, count in enumerate(packing.counts):
            if count < len(state.hidden):
                state = state.select_images(slice(count))
            hidden, cell, sentinel = self._advance(gates[step][:count], state)
            dropped = None if without_sentinel is None else without_sentinel[:count]
            context, attention = self.attention(
                hidden, sentinel, state.annotations, state.keys, dropped
            )
            state = replace(state, hidden=hidden, cell=cell)
            hiddens.append(hidden)
            contexts.append(context)
            attentions.append(attention)
        logits = self._output(torch.cat(hiddens), torch.cat(contexts))
        attention = AttentionStep.join(attentions)
        return TeacherForcedOutput(logits, attention, packing.rows, packing.steps)

    def _drop_sentinel(self, num_captions: int, device: torch.device) -> Bool[Tensor, " r"] | None:
        """Return which captions are trained without the sentinel; None outside of training."""
        if not (self.training and self.sentinel_dropout):
            return None
        return torch.rand(num_captions, device=device) < self.sentinel_dropout

    def _input_gates(
        self, words: Float[Tensor, "*b t e"], global_feature: Float[Tensor, "b e"]
    ) -> tuple[Float[Tensor, "*b t g"], Float[Tensor, "b g"]]:
        """Return the parts of the LSTM's and the sentinel's gates from words and from images."""
        # The sentinel has a gate with the inputs of the LSTM: its weights stand below those of the
        # four gates of the LSTM, and one product gives all five. Here are the parts that no step
        # waits for.
        weight = torch.cat((self.lstm.weight_ih, self.sentinel_input.weight))
        bias = torch.cat((self.lstm.bias_ih + self.lstm.bias_hh, self.sentinel_input.bias))
        from_word, from_image = weight.chunk(2, 1)
        return linear(self.dropout(words), from_word, bias), linear(global_feature, from_image)

    def _advance(
        self, gates: Float[Tensor, "*b g"], state: AdaptiveDecoderState
    ) -> tuple[Float[Tensor, "*b h"], Float[Tensor, "*b h"], Float[Tensor, "*b h"]]:
        """Return hidden state, cell and sentinel after one word."""
        recurrent = torch.cat((self.lstm.weight_hh, self.sentinel_hidden.weight))
        gates = gates + linear(state.hidden, recurrent)
        hidden, cell = lstm_step(gates[..., : -self.hidden_size], state.cell)
        return hidden, cell, gates[..., -self.hidden_size :].sigmoid() * cell.tanh()

    def _output(
        self, hidden: Float[Tensor, "*b h"], context: Float[Tensor, "*b h"]
    ) -> Float[Tensor, "*b v"]:
        """Return logits over the vocabulary."""
        return self.output(self.dropout(self.output_hidden(context + hidden).tanh()))


class KnowingWhenToLook(Captioner[AdaptiveDecoderState]):
    """Captioner with adaptive attention: a visual sentinel beside the places of the grid.

    The gate of each word is 1 - beta, the share of the image in its context vector: near 1 for
    words that are read from the image, near 0 for words that the decoder knows by itself.

    Args:
        words: The vocabulary; it begins with `SPECIAL_TOKENS`.
        encoder: Maps images to a grid of features.
        embed_dim: Dimension of the word embeddings and of the global feature.
        hidden_size: Hidden size of the LSTM, to which the features are projected.
        attention_dim: Dimension in which features and hidden state are compared.
        dropout: Dropout rate on word embeddings and before the vocabulary.
        feature_dropout: Dropout rate on features before the projection.
        sentinel_dropout: Fraction of the captions that are trained without the sentinel, as the
            spatial attention of the paper. It keeps a gradient at the attention: trained from
            random weights, the decoder otherwise learns to rely on the sentinel at all words. It is
            not in the paper.

    Raises:
        ValueError: If `sentinel_dropout` is not in [0, 1].

    Example:
        >>> from visattn.results.kinds import SPECIAL_TOKENS
        >>> from visattn.models.base import SmallEncoder
        >>> encoder = SmallEncoder((24, 40), channels=8)
        >>> words = (*SPECIAL_TOKENS, "red", "blue")
        >>> model = KnowingWhenToLook(words, encoder, hidden_size=11).eval()
        >>> features = encoder(torch.zeros(1, 3, 24, 40, dtype=torch.uint8))
        >>> output = model.search(features, max_length=7)
        >>> output.attention_steps.weights.shape[-1]  # a grid of 3×5 places
        15

    Source:
        Lu et al. 2017, "Knowing When to Look: Adaptive Attention via a Visual Sentinel for Image
        Captioning", arXiv:1612.01887; see `AdaptiveDecoder`.
    """

    gate_symbol = "1-β"

    @options_of(AdaptiveDecoder)
    def __init__(self, words: Sequence[str], encoder: ImageEncoder, **options: Any) -> None:
        super().__init__(words, encoder)
        self.decoder = AdaptiveDecoder(len(words), encoder.channels, **options)
