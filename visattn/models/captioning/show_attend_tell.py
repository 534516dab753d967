"""Show, Attend and Tell: an LSTM that looks at the whole grid, softly, before each word."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import linear

from visattn.blocks.recurrent.additive import AdditiveAttention
from visattn.functional.captioning.losses import packed_rows
from visattn.models.captioner import AttentionStep, Captioner, TeacherForcedOutput
from visattn.models.encoder import ImageEncoder


@dataclass(frozen=True)
class ShowAttendTellState:
    """What is fixed for an image (annotations, keys) and what each hypothesis carries on."""

    annotations: Float[Tensor, "b n c"]
    keys: Float[Tensor, "b n d"]
    hidden: Float[Tensor, "b k h"]
    cell: Float[Tensor, "b k h"]

    def of_beams(self, parents: Int[Tensor, "b k"]) -> Self:
        """Return the state in which hypothesis j continues hypothesis `parents[:, j]`."""
        chosen = parents.unsqueeze(-1).expand(-1, -1, self.hidden.shape[-1])
        carried = self.hidden.gather(1, chosen), self.cell.gather(1, chosen)
        return type(self)(self.annotations, self.keys, *carried)

    def of_images(self, kept: Tensor) -> Self:
        """Return the state of these images, by number or by mark."""
        return type(self)(
            self.annotations[kept], self.keys[kept], self.hidden[kept], self.cell[kept]
        )


class ShowAttendTell(Captioner[ShowAttendTellState]):
    """Show, Attend and Tell with soft attention.

    Before each word it scores every place of the grid against what it has said so far, takes the
    mean of the features under these weights, and gates it. The word is told from the new hidden
    state, the word before, and what was seen.

    Args:
        words: The vocabulary; it begins with `SPECIALS`.
        encoder: What turns images into a grid of features.
        word_width: Width of a word's embedding.
        hidden: Width of the LSTM.
        attention: Width of the space in which places and hidden state meet.
        dropout: Share of the units dropped before the vocabulary and of the word embeddings.
        projection: Width to which features are projected, once per image, before anything looks
            at them; None takes them as they are.
        feature_dropout: Share of the features dropped before they are projected.

    Raises:
        ValueError: If features are to be dropped that are not projected.

    Example:
        >>> from visattn.models.captioner import SPECIALS
        >>> from visattn.models.encoder import SmallEncoder
        >>> encoder = SmallEncoder((24, 40), channels=8)
        >>> model = ShowAttendTell((*SPECIALS, "red", "blue"), encoder, hidden=11).eval()
        >>> features = encoder(torch.zeros(1, 3, 24, 40, dtype=torch.uint8))
        >>> found = model.search(features, max_length=7)
        >>> found.looks.weights.shape[-1]  # a grid of 3×5 places
        15

    Source:
        Xu et al. 2015, arXiv:1502.03044, equations 1 to 7 and 13 (deep output); the gate beta is
        the scalar of section 4.2.1. Dropout sits on embeddings and before the vocabulary; the
        projection, with layer norm and ReLU, is not in the paper.
    """

    def __init__(
        self,
        words: Sequence[str],
        encoder: ImageEncoder,
        *,
        word_width: int = 128,
        hidden: int = 256,
        attention: int = 128,
        dropout: float = 0.1,
        projection: int | None = None,
        feature_dropout: float = 0.0,
    ) -> None:
        super().__init__(words, encoder)
        if feature_dropout and projection is None:
            raise ValueError(
                f"feature_dropout {feature_dropout} goes with a projection; give its width, or 0"
            )
        self.word_width, self.hidden, self.attention = word_width, hidden, attention
        self.dropout, self.projection, self.feature_dropout = dropout, projection, feature_dropout
        self.width = width = projection or encoder.channels
        self.project = (
            _projection(encoder.channels, projection, feature_dropout)
            if projection
            else nn.Identity()
        )
        self.embed = nn.Embedding(len(words), word_width)
        self.look = AdditiveAttention(width, query=hidden, dim=attention)
        self.gate = nn.Linear(hidden, 1)
        self.cell = nn.LSTMCell(word_width + width, hidden)
        self.first_hidden = _perceptron(width, hidden)
        self.first_cell = _perceptron(width, hidden)
        self.tell_hidden = nn.Linear(hidden, word_width)
        self.tell_seen = nn.Linear(width, word_width, bias=False)
        self.tell = nn.Linear(word_width, len(words))
        self.drop = nn.Dropout(dropout)

    def start(self, features: Float[Tensor, "b c y x"]) -> ShowAttendTellState:
        """Return the state before the first word, with one hypothesis per image."""
        annotations = self.project(features.flatten(2).transpose(1, 2).contiguous())
        mean = annotations.mean(1, keepdim=True)
        keys = self.look.keys(annotations)
        self.look.tap.grid = (features.shape[-2], features.shape[-1])
        return ShowAttendTellState(
            annotations, keys, self.first_hidden(mean), self.first_cell(mean)
        )

    def step(
        self, state: ShowAttendTellState, token: Int[Tensor, "b k"]
    ) -> tuple[Float[Tensor, "b k v"], ShowAttendTellState, AttentionStep]:
        """Read one word per hypothesis; return scores of the next, the new state and the look."""
        seen, weights = self.look(state.hidden, state.annotations, state.keys)
        gate = self.gate(state.hidden).sigmoid()
        seen, word = gate * seen, self.drop(self.embed(token))
        inputs = torch.cat((word, seen), -1).flatten(0, 1)
        carried = self.cell(inputs, (state.hidden.flatten(0, 1), state.cell.flatten(0, 1)))
        hidden, cell = (new.view(*token.shape, -1) for new in carried)
        state = ShowAttendTellState(state.annotations, state.keys, hidden, cell)
        return self._told(hidden, word, seen), state, AttentionStep(weights, gate.squeeze(-1))

    def unroll(
        self,
        features: Float[Tensor, "b c y x"],
        captions: Int[Tensor, "r t"],
        lengths: Int[Tensor, " r"],
        owners: Int[Tensor, " r"] | None = None,
    ) -> TeacherForcedOutput:
        """Read given captions in one go; equal to `step` after `step`, several times faster.

        Keys are projected once per image, the words' part of the LSTM once for all steps, the
        three products with the hidden state are one, and so is the product with the vocabulary.
        """
        rows, steps = packed_rows(lengths)
        state = self.start(features)
        if owners is not None:
            state = state.of_images(owners)
        words = self.drop(self.embed(captions))
        hidden, seen, look = self._read(state, words, steps.bincount().tolist())
        return TeacherForcedOutput(self._told(hidden, words[rows, steps], seen), look, rows, steps)

    def _read(
        self, state: ShowAttendTellState, words: Float[Tensor, "r t e"], active: list[int]
    ) -> tuple[Float[Tensor, "p h"], Float[Tensor, "p c"], AttentionStep]:
        """Run the loop over steps, of which step t has `active[t]` rows; all results packed."""
        from_word, from_seen = self.cell.weight_ih.split((self.word_width, self.width), 1)
        bias = self.cell.bias_ih + self.cell.bias_hh
        word_parts = linear(words.transpose(0, 1), from_word, bias).unbind()  # undone in one piece
        from_hidden = torch.cat((self.look.query.weight, self.gate.weight, self.cell.weight_hh))
        annotations, keys = state.annotations, state.keys
        hidden, cell = state.hidden.squeeze(1), state.cell.squeeze(1)
        hiddens, seens, weights, gates = [], [], [], []
        for step, count in enumerate(active):
            if count < len(hidden):
                hidden, cell = hidden[:count], cell[:count]
                annotations, keys = annotations[:count], keys[:count]
            query, gate, recurrent = linear(hidden, from_hidden).split(
                (self.attention, 1, 4 * self.hidden), 1
            )
            seen, looked = self.look.look(query, annotations, keys)
            gate = (gate + self.gate.bias).sigmoid()
            seen = gate * seen
            hidden, cell = _lstm(
                word_parts[step][:count] + recurrent + linear(seen, from_seen), cell
            )
            for kept, new in zip(
                (hiddens, seens, weights, gates), (hidden, seen, looked, gate), strict=True
            ):
                kept.append(new)
        look = AttentionStep(torch.cat(weights), torch.cat(gates).squeeze(-1))
        return torch.cat(hiddens), torch.cat(seens), look

    def _told(
        self,
        hidden: Float[Tensor, "*b h"],
        word: Float[Tensor, "*b e"],
        seen: Float[Tensor, "*b c"],
    ) -> Float[Tensor, "*b v"]:
        """Score the vocabulary: the paper's deep output."""
        told = torch.tanh(self.tell_hidden(hidden) + word + self.tell_seen(seen))
        return self.tell(self.drop(told))


def _perceptron(width: int, out: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, out), nn.Tanh(), nn.Linear(out, out), nn.Tanh())


def _projection(width: int, out: int, dropout: float) -> nn.Sequential:
    return nn.Sequential(nn.Dropout(dropout), nn.Linear(width, out), nn.LayerNorm(out), nn.ReLU())


def _lstm(
    gates: Float[Tensor, "b gates"], cell: Float[Tensor, "b h"]
) -> tuple[Float[Tensor, "b h"], Float[Tensor, "b h"]]:
    """Return hidden state and cell after one step, in torch's order of gates."""
    let_in, keep, new, show = gates.chunk(4, -1)
    cell = keep.sigmoid() * cell + let_in.sigmoid() * new.tanh()
    return show.sigmoid() * cell.tanh(), cell
