"""Base class of captioners: teacher forcing, single decoding steps and beam search."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, Literal, NamedTuple, Self, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from visattn.functional.beams import (
    BeamSearchOutput,
    BeamSearchState,
    DecodingConstraints,
    beam_search,
)
from visattn.functional.captions import WordPacking
from visattn.models.base import ImageEncoder
from visattn.models.configurable import Configurable, checked_words
from visattn.results.kinds import END, PAD, START, UNKNOWN

StateT = TypeVar("StateT", bound=BeamSearchState)
Places = Literal["argmax", "sample", "expectation"]
MapChoice = Literal["last", "mean", "all"] | tuple[int, int]


@dataclass(frozen=True)
class RecurrentState:
    """State of a recurrent decoder: tensors of each image, and those of each of its hypotheses.

    Example:
        >>> @dataclass(frozen=True)
        ... class Sums(RecurrentState):
        ...     features: Tensor
        ...     hidden: Tensor
        >>> state = Sums(torch.zeros(1, 7), torch.tensor([[[1.0], [2.0]]]))
        >>> state.reorder_beams(torch.tensor([[1, 1]])).hidden.flatten()
        tensor([2., 2.])
    """

    OF_BEAMS: ClassVar[tuple[str, ...]] = ("hidden", "cell")
    """Fields with a tensor `b k h` for k hypotheses; all other tensors are those of images."""

    def reorder_beams(self, parents: Int[Tensor, "b k"]) -> Self:
        """Return the state in which hypothesis j continues hypothesis `parents[:, j]`."""
        index = parents.unsqueeze(-1)
        tensors = self.tensors()
        changed = {
            name: tensors[name].take_along_dim(index, 1)
            for name in self.OF_BEAMS
            if name in tensors
        }
        return replace(self, **changed)

    def select_images(self, index: Tensor | slice) -> Self:
        """Return the state of the images chosen by index, boolean mask or slice."""
        return replace(self, **{name: value[index] for name, value in self.tensors().items()})

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the state, by the name of their field."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}


class AttentionStep(NamedTuple):
    """Attention of a captioner for one word or for many."""

    weights: Float[Tensor, "*b n"]
    """Attention over the places of the grid, in row-major order; sums to one."""
    gate: Float[Tensor, "*b"]
    """Share of the image in the context vector, in [0, 1]: the gate that scales it, or 1 minus the
    weight of a visual sentinel."""
    heads: Float[Tensor, "*b l h n"] | None = None
    """Attention of each layer and head, if the captioner has several and returns them."""

    @classmethod
    def join(cls, steps: Sequence[Self]) -> Self:
        """Return the weights and gates of successive steps of one map per word, packed."""
        return cls(torch.cat([s.weights for s in steps]), torch.cat([s.gate for s in steps]))


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


class WordSite(NamedTuple):
    """A module of a decoder: its output are the attention weights with which decoding goes on."""

    name: str
    module: nn.Module
    cross: bool
    """Whether the weights are those of places of the image, or of the words before."""


class Captioner(Configurable, nn.Module, ABC, Generic[StateT]):
    """Base class of captioners: a decoder with an encoder; words with the attention of each.

    The constructor of a subclass builds `decoder`, whose methods `start`, `step` and
    `teacher_force` are described here; the decoder projects the features in `feature_proj`.

    Args:
        words: The vocabulary; it begins with `SPECIAL_TOKENS`.
        encoder: Encoder of images into a grid of features.
    """

    pipeline_tag = "image-to-text"
    gate_symbol = "β"
    """Symbol of the gate in figures."""
    places: Places | None = None
    """How hard attention selects the place of a word; None for other attention. It may be set."""
    maps: MapChoice | None = None
    """Weights of a word that are shown, of several layers and heads; None if there is no choice."""
    decoder: Any

    @abstractmethod
    def __init__(self, words: Sequence[str], encoder: ImageEncoder) -> None:
        super().__init__()
        self.words = checked_words(words)
        self.encoder = encoder

    @property
    def attention_site(self) -> str:
        """Name of the module whose attention the maps of words show."""
        return "decoder.attention.scorer.tap"

    def word_sites(self) -> list[WordSite]:
        """Return where the weights of words pass, for methods that need their gradients.

        A decoder whose only site attends to the image is recurrent: it calls the site once per
        word. Without sites there are no such methods.
        """
        site = self.attention_site
        return [WordSite(site, self.get_submodule(site), cross=True)]

    def head_attention(self) -> tuple[int, int] | None:
        """Return the number of layers and heads, if the attention of words has their weights."""
        return None

    def start(self, features: Float[Tensor, "b c y x"]) -> StateT:
        """Return the state before the first word, with one hypothesis per image."""
        return self.decoder.start(features)

    def step(
        self, state: StateT, token: Int[Tensor, "b k"]
    ) -> tuple[Float[Tensor, "b k v"], StateT, AttentionStep]:
        """Read one word per hypothesis; return next-word logits, the new state and attention."""
        return self.decoder.step(state, token)

    def teacher_force(
        self,
        features: Float[Tensor, "b c y x"],
        captions: Int[Tensor, "r t"],
        lengths: Int[Tensor, " r"] | WordPacking,
        image_indices: Int[Tensor, " r"] | None = None,
    ) -> TeacherForcedOutput:
        """Return logits and attention of all words of the captions (teacher forcing).

        Args:
            features: Encoder features of b images.
            captions: Input tokens, beginning with `START`; captions in order of falling length.
            lengths: Number of predicted tokens of each caption, `END` included; or the result of
                `pack_words`, with which nothing waits for a GPU.
            image_indices: Index of the image of each caption; None if caption i belongs to image i.
        """
        return self.decoder.teacher_force(features, captions, lengths, image_indices)

    def search(
        self,
        features: Float[Tensor, "b c y x"],
        *,
        beam_size: int = 5,
        num_captions: int = 1,
        max_length: int = 30,
        min_length: int = 1,
        length_penalty: float = 0.0,
        banned_tokens: Sequence[int] = (PAD, START, UNKNOWN),
    ) -> BeamSearchOutput[AttentionStep]:
        """Return the best captions of images by beam search.

        For the options see `visattn.functional.beam_search` and its `DecodingConstraints`.
        """
        return beam_search(
            self.step,
            self.start(features),
            num_images=len(features),
            start_token=START,
            constraints=DecodingConstraints(
                END, max_length, min_length, length_penalty, tuple(banned_tokens)
            ),
            beam_size=beam_size,
            num_captions=num_captions,
            device=features.device,
        )
