"""LSTM caption decoder with an exchangeable attention module."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import gumbel_softmax, linear

from visattn.blocks.additive import AdditiveAttention, SelectWeights
from visattn.blocks.base import FastDropout
from visattn.functional.captions import WordPacking, pack_words
from visattn.models.captioning.captioner import AttentionStep, RecurrentState, TeacherForcedOutput


@dataclass(frozen=True)
class AttendingDecoderState(RecurrentState):
    """Annotations and keys of an image, and the LSTM state of each of its hypotheses."""

    annotations: Float[Tensor, "b n c"]
    keys: Float[Tensor, "b n d"]
    hidden: Float[Tensor, "b *k h"]
    cell: Float[Tensor, "b *k h"]
    selection: "PlaceSelection | None" = None
    """Selects the places that are read; None leaves it to the attention module."""
    num_words: int = 0
    """Number of words read so far, the start token included."""


PlaceSelection = Callable[[Float[Tensor, "*b n"], AttendingDecoderState], Float[Tensor, "*b n"]]
"""Maps attention weights, in a state, to those with which the places are read."""


class CaptionAttention(nn.Module, ABC):
    """Selects what the decoder reads from the grid before each word.

    Soft attention takes the expectation over all places. Other selections, such as a sampled place
    (hard attention) or a visual sentinel (adaptive attention), subclass this class; the LSTM in
    `AttendingDecoder` stays the same. The state holds hidden state and memory cell.
    """

    @property
    @abstractmethod
    def hidden_weight(self) -> Float[Tensor, "q h"]:
        """Weights, without biases, of all linear maps of the hidden state, stacked.

        Teacher forcing computes them and the recurrent product of the LSTM as one product.
        """

    @abstractmethod
    def project_keys(
        self, annotations: Float[Tensor, "b n c"], grid_size: tuple[int, int]
    ) -> Float[Tensor, "b n d"]:
        """Return the part of the scores that is the same for all words, computed once per image.

        Args:
            annotations: Features of the grid, row by row.
            grid_size: Rows and columns of the grid.
        """

    @abstractmethod
    def forward(self, state: AttendingDecoderState) -> tuple[Float[Tensor, "b k c"], AttentionStep]:
        """Return the context vector and the attention of each hypothesis."""

    @abstractmethod
    def attend_projected(
        self, projected: Float[Tensor, "r q"], state: AttendingDecoderState
    ) -> tuple[Float[Tensor, "r c"], AttentionStep]:
        """Do the same for teacher forcing, with one caption per row.

        Args:
            projected: The hidden state times `hidden_weight`.
            state: Hidden state and cell have no beam axis here.
        """


class SoftAttention(CaptionAttention):
    """Soft attention: the expected feature under additive attention, scaled by a gate.

    For the dimensions see `ShowAttendTell`. Where `sample_temperature` is set, training reads
    relaxed samples of places instead (see `RelaxedPlaces`).

    Source:
        Xu et al. 2015, arXiv:1502.03044, equations 4 to 6 and 13; the gate beta is the scalar of
        section 4.2.1.
    """

    def __init__(self, feature_dim: int, hidden_size: int, attention_dim: int) -> None:
        super().__init__()
        self.attention_dim = attention_dim
        self.scorer = AdditiveAttention(
            feature_dim, query_dim=hidden_size, attention_dim=attention_dim
        )
        self.gate = nn.Linear(hidden_size, 1)
        self.sample_temperature: float | None = None

    def selection(self, state: AttendingDecoderState) -> SelectWeights | None:
        """Return the selection of the weights that are read; None for all of them."""
        if (select := state.selection) is not None:
            return lambda weights: select(weights, state)
        if self.training and self.sample_temperature is not None:
            return partial(_relaxed_sample, temperature=self.sample_temperature)
        return None

    @property
    def hidden_weight(self) -> Float[Tensor, "q h"]:
        """Weights of the query and of the gate, stacked."""
        return torch.cat((self.scorer.query.weight, self.gate.weight))

    def project_keys(
        self, annotations: Float[Tensor, "b n c"], grid_size: tuple[int, int]
    ) -> Float[Tensor, "b n d"]:
        """Return the keys of the additive attention."""
        self.scorer.tap.grid = grid_size
        return self.scorer.project_keys(annotations)

    def forward(self, state: AttendingDecoderState) -> tuple[Float[Tensor, "b k c"], AttentionStep]:
        """Return the gated expected feature and the attention of each hypothesis."""
        select = self.selection(state)
        context, weights = self.scorer(state.hidden, state.annotations, state.keys, select=select)
        gate = self.gate(state.hidden).sigmoid()
        return gate * context, AttentionStep(weights, gate.squeeze(-1))

    def attend_projected(
        self, projected: Float[Tensor, "r q"], state: AttendingDecoderState
    ) -> tuple[Float[Tensor, "r c"], AttentionStep]:
        """Do the same for teacher forcing, with one caption per row."""
        query, gate = projected.split((self.attention_dim, 1), 1)
        select = self.selection(state)
        context, weights = self.scorer.attend(query, state.annotations, state.keys, select=select)
        gate = (gate + self.gate.bias).sigmoid()
        return gate * context, AttentionStep(weights, gate.squeeze(-1))


def _relaxed_sample(weights: Float[Tensor, "*b n"], temperature: float) -> Float[Tensor, "*b n"]:
    # Weights that underflow would have an infinite logarithm, and then no gradient but NaN.
    return gumbel_softmax(weights.clamp_min(torch.finfo(weights.dtype).tiny).log(), temperature)


class AttendingDecoder(nn.Module):
    """LSTM decoder that attends to the feature grid before each word.

    At each step the attention module computes a context vector from the previous hidden state; the
    LSTM reads the previous word and the context vector; the deep output layer predicts the next
    word from the new hidden state, the previous word and the context vector.

    `attention` builds the attention module from the feature dimension, the hidden size and
    `attention_dim`; for the other options see `ShowAttendTell`.

    Example:
        >>> decoder = AttendingDecoder(11, 8, SoftAttention, attention_dim=7)
        >>> state = decoder.start(torch.zeros(2, 8, 3, 5))
        >>> logits, state, attention = decoder.step(state, torch.ones(2, 1, dtype=torch.long))
        >>> logits.shape, attention.weights.shape
        (torch.Size([2, 1, 11]), torch.Size([2, 1, 15]))

    Source:
        Xu et al. 2015, arXiv:1502.03044, equations 1 to 3 and 7. The projection, with layer norm
        and ReLU, is not in the paper.
    """

    def __init__(
        self,
        num_words: int,
        in_channels: int,
        attention: Callable[..., CaptionAttention],
        *,
        embed_dim: int = 128,
        hidden_size: int = 256,
        attention_dim: int = 128,
        dropout: float = 0.1,
        feature_proj_dim: int | None = None,
        feature_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if feature_dropout and feature_proj_dim is None:
            raise ValueError(
                f"feature_dropout={feature_dropout} needs a feature projection: set "
                "feature_proj_dim, or feature_dropout to 0"
            )
        self.feature_dim = feature_proj_dim or in_channels
        self.embed_dim = embed_dim
        self.hidden_size = hidden_size
        self.feature_proj = (
            feature_projection(in_channels, feature_proj_dim, feature_dropout)
            if feature_proj_dim
            else nn.Identity()
        )
        self.embedding = nn.Embedding(num_words, embed_dim)
        self.attention = attention(self.feature_dim, hidden_size, attention_dim=attention_dim)
        self.lstm = nn.LSTMCell(embed_dim + self.feature_dim, hidden_size)
        self.init_hidden = init_mlp(self.feature_dim, hidden_size)
        self.init_cell = init_mlp(self.feature_dim, hidden_size)
        self.output_hidden = nn.Linear(hidden_size, embed_dim)
        self.output_context = nn.Linear(self.feature_dim, embed_dim, bias=False)
        self.output = nn.Linear(embed_dim, num_words)
        self.dropout = nn.Dropout(dropout)

    def start(self, features: Float[Tensor, "b c y x"]) -> AttendingDecoderState:
        """Return the state before the first word, with one hypothesis per image."""
        annotations = self.feature_proj(features.flatten(2).transpose(1, 2).contiguous())
        mean = annotations.mean(1, keepdim=True)
        keys = self.attention.project_keys(annotations, (features.shape[-2], features.shape[-1]))
        return AttendingDecoderState(
            annotations, keys, self.init_hidden(mean), self.init_cell(mean)
        )

    def step(
        self, state: AttendingDecoderState, token: Int[Tensor, "b k"]
    ) -> tuple[Float[Tensor, "b k v"], AttendingDecoderState, AttentionStep]:
        """Read one word per hypothesis; return next-word logits, the new state and attention."""
        context, attention = self.attention(state)
        word = self.dropout(self.embedding(token))
        inputs = torch.cat((word, context), -1).flatten(0, 1)
        updated = self.lstm(inputs, (state.hidden.flatten(0, 1), state.cell.flatten(0, 1)))
        hidden, cell = (value.view(*token.shape, -1) for value in updated)
        state = replace(state, hidden=hidden, cell=cell, num_words=state.num_words + 1)
        return self._deep_output(hidden, word, context), state, attention

    def teacher_force(
        self,
        features: Float[Tensor, "b c y x"],
        captions: Int[Tensor, "r t"],
        lengths: Int[Tensor, " r"] | WordPacking,
        image_indices: Int[Tensor, " r"] | None = None,
        *,
        selection: PlaceSelection | None = None,
    ) -> TeacherForcedOutput:
        """Read whole captions; equal to `step` after `step`, several times faster.

        Keys are projected once per image, the words' part of the LSTM once for all steps, the
        linear maps of the hidden state are one product, and so is the map to the vocabulary.
        """
        packing = pack_words(lengths, image_indices)
        state = replace(self.start(features), selection=selection)
        if image_indices is not None:
            state = state.select_images(image_indices)
        words = self.dropout(self.embedding(captions))
        hidden, context, attention = self._decode(state, words, packing.counts)
        logits = self._deep_output(hidden, words[packing.rows, packing.steps], context)
        return TeacherForcedOutput(logits, attention, packing.rows, packing.steps)

    def _decode(
        self, state: AttendingDecoderState, words: Float[Tensor, "r t e"], active: Sequence[int]
    ) -> tuple[Float[Tensor, "p h"], Float[Tensor, "p c"], AttentionStep]:
        """Run the recurrence; step t has `active[t]` rows. All results are packed."""
        # The LSTM's input is [word, context], and four linear maps read the same hidden state. What
        # does not wait for the previous step leaves the loop; what reads one thing is stacked:
        #
        #     before the loop   W_word [all words] + b            one product for all steps
        #     in step t         [queries; gate; W_hh] hidden      one product, split afterwards
        #                       W_context context                 waits for the attention of t
        from_word, from_context = self.lstm.weight_ih.split((self.embed_dim, self.feature_dim), 1)
        bias = self.lstm.bias_ih + self.lstm.bias_hh
        word_gates = linear(words.transpose(0, 1), from_word, bias).unbind()  # one backward for all
        queries = self.attention.hidden_weight
        from_hidden = torch.cat((queries, self.lstm.weight_hh))
        state = replace(state, hidden=state.hidden.squeeze(1), cell=state.cell.squeeze(1))
        hiddens = []
        contexts = []
        attentions = []
        for step, count in enumerate(active):
            if count < len(state.hidden):  # captions that have ended stand last
                state = state.select_images(slice(count))
            projected, recurrent = linear(state.hidden, from_hidden).split(
                (len(queries), 4 * self.hidden_size), 1
            )
            context, attention = self.attention.attend_projected(projected, state)
            gates = word_gates[step][:count] + recurrent + linear(context, from_context)
            hidden, cell = lstm_step(gates, state.cell)
            state = replace(state, hidden=hidden, cell=cell, num_words=step + 1)
            hiddens.append(hidden)
            contexts.append(context)
            attentions.append(attention)
        return torch.cat(hiddens), torch.cat(contexts), AttentionStep.join(attentions)

    def _deep_output(
        self,
        hidden: Float[Tensor, "*b h"],
        word: Float[Tensor, "*b e"],
        context: Float[Tensor, "*b c"],
    ) -> Float[Tensor, "*b v"]:
        """Return logits over the vocabulary: the paper's deep output layer."""
        output = torch.tanh(self.output_hidden(hidden) + word + self.output_context(context))
        return self.output(self.dropout(output))


def init_mlp(in_dim: int, out_dim: int) -> nn.Sequential:
    """Return the network that computes an initial state of the LSTM from the mean feature."""
    return nn.Sequential(
        nn.Linear(in_dim, out_dim), nn.Tanh(), nn.Linear(out_dim, out_dim), nn.Tanh()
    )


def feature_projection(in_dim: int, out_dim: int, dropout: float) -> nn.Sequential:
    """Return the projection of features: dropout, linear layer, layer norm and ReLU."""
    return nn.Sequential(
        FastDropout(dropout), nn.Linear(in_dim, out_dim), nn.LayerNorm(out_dim), nn.ReLU()
    )


def lstm_step(
    gates: Float[Tensor, "*b gates"], cell: Float[Tensor, "*b h"]
) -> tuple[Float[Tensor, "*b h"], Float[Tensor, "*b h"]]:
    """Return hidden state and cell after one step; gates are in torch's order (i, f, g, o)."""
    input_gate, forget_gate, candidate, output_gate = gates.chunk(4, -1)
    cell = forget_gate.sigmoid() * cell + input_gate.sigmoid() * candidate.tanh()
    return output_gate.sigmoid() * cell.tanh(), cell
