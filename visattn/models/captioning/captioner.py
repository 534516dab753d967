"""Captioners: an image encoder, and a decoder that attends to its grid for each word."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, Self

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from visattn.functional.beams import BeamSearchOutput, beam_search
from visattn.functional.captions import WordPacking, pack_words
from visattn.models.base import ImageEncoder
from visattn.models.configurable import Configurable
from visattn.results.kinds import (
    END,
    PAD,
    SPECIAL_TOKENS as SPECIAL_TOKENS,
    START,
    UNKNOWN,
    Places,
    checked_words,
)

MapChoice = Literal["last", "mean", "all"] | tuple[int, int]


class AttentionStep(NamedTuple):
    """Attention of a captioner for one or more words."""

    weights: Float[Tensor, "*b n"]
    """Attention over the grid positions in row-major order; sums to one."""
    gate: Float[Tensor, "*b"]
    """Share of the image in the context vector, in [0, 1]: the gate that scales it, or 1 minus the
    weight of a visual sentinel."""
    heads: Float[Tensor, "*b l h n"] | None = None
    """Attention of each layer and head, if the captioner has several and returns them."""
    probabilities: Float[Tensor, "*b n"] | None = None
    """Probabilities from which hard attention selected the `weights`."""


class TeacherForcedOutput(NamedTuple):
    """Logits and attention of all p words of a batch of captions, packed step by step."""

    logits: Float[Tensor, "p v"]
    """Next-word logits."""
    attention: AttentionStep
    """Attention from which each word was predicted."""
    rows: Int[Tensor, " p"]
    """Index of the caption that each word belongs to."""
    steps: Int[Tensor, " p"]
    """Position of each word in its caption."""


class Captioner(Configurable, nn.Module, ABC):
    """Base class of captioners: a decoder with an encoder; words with the attention of each.

    The constructor of a subclass builds `decoder`, whose methods `start`, `step` and
    `teacher_force` are described here. If the decoder projects the features once, in its module
    `feature_proj`, to `[b, n, d]`, `gradient_embedding` is that of these, else of the features.

    Args:
        words: The vocabulary; it begins with `SPECIAL_TOKENS`.
        encoder: Encoder of images into a grid of features.
    """

    places: Places | None = None
    """How hard attention selects the position of a word; None for soft attention."""
    maps: MapChoice | None = None
    """Which layers and heads are shown; None if there is no choice."""
    attention_site: str = "decoder"
    """Name of the module that passes on the attention `[b, n]`, `[b, k, n]` or `[b, h, k, n]` to
    the image, such as an identity in `decoder`, for `gradient_attention` and `relevance`."""
    decoder: Any

    @abstractmethod
    def __init__(self, words: Sequence[str], encoder: ImageEncoder) -> None:
        super().__init__()
        self.words = checked_words(words)
        self.encoder = encoder

    def start(self, features: Float[Tensor, "b c y x"]) -> Any:
        """Return the state before the first word, with one hypothesis per image."""
        return self.decoder.start(features)

    def step(
        self, state: Any, token: Int[Tensor, "b k"]
    ) -> tuple[Float[Tensor, "b k v"], Any, AttentionStep]:
        """Read one word per hypothesis; return next-word logits, the new state and attention."""
        return self.decoder.step(state, token)

    def teacher_force(
        self,
        features: Float[Tensor, "b c y x"],
        captions: Int[Tensor, "r t"],
        lengths: Int[Tensor, " r"] | WordPacking,
        image_indices: Int[Tensor, " r"] | None = None,
    ) -> TeacherForcedOutput:
        """Return logits and attention of all words of the captions: `step` after `step`.

        Args:
            features: Encoder features of b images.
            captions: Input tokens, beginning with `START`; captions in order of falling length.
            lengths: Number of predicted tokens of each caption, `END` included; or the result of
                `pack_words`, which avoids a synchronization with the GPU.
            image_indices: Index of the image of each caption; None if caption i is about image i.
        """
        return self.decoder.teacher_force(features, captions, lengths, image_indices)

    def search(
        self,
        features: Float[Tensor, "b c y x"],
        *,
        banned_tokens: Sequence[int] = (PAD, START, UNKNOWN),
        max_length: int = 30,
        **options: Any,
    ) -> BeamSearchOutput[AttentionStep]:
        """Return the best captions of images; for the options see `beam_search`."""
        return beam_search(
            self.step,
            self.start(features),
            torch.full((len(features),), START, device=features.device),
            end_token=END,
            max_length=max_length,
            banned_tokens=banned_tokens,
            **options,
        )


@dataclass(frozen=True)
class RecurrentState:
    """State of a recurrent decoder: features of an image, and LSTM states of its k hypotheses."""

    features: Float[Tensor, "b n c"]
    keys: Float[Tensor, "b n d"]
    hidden: Float[Tensor, "b k h"]
    cell: Float[Tensor, "b k h"]
    num_words: int = field(default=0, kw_only=True)
    """Number of words read so far, the start token included."""

    def reorder_beams(self, parents: Int[Tensor, "b k"]) -> Self:
        """Return the state in which hypothesis j continues hypothesis `parents[:, j]`."""
        hidden, cell = (x.take_along_dim(parents[..., None], 1) for x in (self.hidden, self.cell))
        return replace(self, hidden=hidden, cell=cell)

    def select_images(self, index: Tensor | slice) -> Self:
        """Return the state of the images chosen by index, boolean mask or slice."""
        tensors = {name: x[index] for name, x in vars(self).items() if isinstance(x, Tensor)}
        return replace(self, **tensors)

    def read(self, lstm: nn.LSTMCell, inputs: Float[Tensor, "b k e"]) -> Self:
        """Return the state after one LSTM step of each hypothesis."""
        before = (self.hidden.flatten(0, 1), self.cell.flatten(0, 1))
        hidden, cell = (x.view_as(self.hidden) for x in lstm(inputs.flatten(0, 1), before))
        return replace(self, hidden=hidden, cell=cell, num_words=self.num_words + 1)


class RecurrentDecoder(nn.Module, ABC):
    """Base class of LSTM decoders with attention to the grid.

    Subclasses build `embedding` and `dropout`, and implement the equations of their paper in
    `start`, `attend` and `predict`.
    """

    embedding: nn.Embedding
    dropout: nn.Dropout

    @abstractmethod
    def start(self, features: Float[Tensor, "b c y x"]) -> Any:
        """Return the state before the first word, with one hypothesis per image."""

    @abstractmethod
    def attend(
        self, state: Any, word: Float[Tensor, "b k e"]
    ) -> tuple[Any, Float[Tensor, "b k c"], AttentionStep]:
        """Read an embedded word; return the new state, the context vector and the attention."""

    @abstractmethod
    def predict(
        self,
        hidden: Float[Tensor, "*b h"],
        word: Float[Tensor, "*b e"],
        context: Float[Tensor, "*b c"],
    ) -> Float[Tensor, "*b v"]:
        """Return the logits of the next word."""

    def step(
        self, state: Any, token: Int[Tensor, "b k"]
    ) -> tuple[Float[Tensor, "b k v"], Any, AttentionStep]:
        """Read one word per hypothesis; return next-word logits, the new state and attention."""
        word = self.dropout(self.embedding(token))
        state, context, attention = self.attend(state, word)
        return self.predict(state.hidden, word, context), state, attention

    def teacher_force(
        self,
        features: Float[Tensor, "b c y x"],
        captions: Int[Tensor, "r t"],
        lengths: Int[Tensor, " r"] | WordPacking,
        image_indices: Int[Tensor, " r"] | None = None,
        **of_captions: Any,
    ) -> TeacherForcedOutput:
        """Read whole captions, each as the single hypothesis of its image.

        `of_captions` are additional fields of the state, with a row per caption.
        """
        # Captions of 3, 3 and 1 words: `attend` runs on the rows of each step. With padding to the
        # longest caption a training step of `flickr8k_soft` takes 1.6 times as long.
        #
        #     step     0     1   2
        #     rows   0 1 2  0 1 0 1   the order in which all words are predicted at the end
        packing = pack_words(lengths, image_indices)
        state = self.start(features)
        if image_indices is not None:
            state = state.select_images(image_indices)
        state = replace(state, **of_captions)
        words = self.dropout(self.embedding(captions)).unsqueeze(2).unbind(1)  # t of `r 1 e`
        steps: list[tuple[Tensor, Tensor, Tensor]] = []
        attentions: list[AttentionStep] = []
        for word, count in zip(words, packing.counts, strict=False):
            if count < len(state.hidden):
                state = state.select_images(slice(count))
            state, context, attention = self.attend(state, word[:count])
            steps.append((state.hidden, word[:count], context))
            attentions.append(attention)
        logits = self.predict(*(torch.cat(each)[:, 0] for each in zip(*steps, strict=True)))
        joined: Any = (
            None if each[0] is None else torch.cat(each)[:, 0]
            for each in zip(*attentions, strict=True)
        )
        return TeacherForcedOutput(logits, AttentionStep(*joined), packing.rows, packing.steps)


def feature_projection(in_dim: int, out_dim: int, dropout: float) -> nn.Sequential:
    """Return the projection of features: dropout, linear layer, layer norm and ReLU."""
    return nn.Sequential(
        nn.Dropout(dropout), nn.Linear(in_dim, out_dim), nn.LayerNorm(out_dim), nn.ReLU()
    )
