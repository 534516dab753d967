"""What every captioner can do, however it attends."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

from jaxtyping import Float, Int
from torch import Tensor, nn

from visattn.functional.captioning.beam_search import (
    BeamSearchOutput,
    DecodingConstraints,
    Searchable,
    beam_search,
)
from visattn.models.encoder import ImageEncoder

StateT = TypeVar("StateT", bound=Searchable)
SPECIALS = ("<pad>", "<start>", "<end>", "<unknown>")
PAD, START, END, UNKNOWN = range(4)


class AttentionStep(NamedTuple):
    """Where a captioner looked for a word, and how much it made of what it saw."""

    weights: Float[Tensor, "*b n"]
    """Attention over the places of the grid, row by row; sums to one."""
    gate: Float[Tensor, "*b"]
    """How much of what was seen is let in, between 0 and 1."""


class TeacherForcedOutput(NamedTuple):
    """A batch of given captions read word by word; p counts all words, step by step."""

    logits: Float[Tensor, "p v"]
    look: AttentionStep
    rows: Int[Tensor, " p"]
    steps: Int[Tensor, " p"]


class Captioner(nn.Module, ABC, Generic[StateT]):
    """A network that tells an image in words and shows, per word, where it looked.

    Args:
        words: The vocabulary; it begins with `SPECIALS`.
        encoder: What turns images into a grid of features.
    """

    def __init__(self, words: Sequence[str], encoder: ImageEncoder) -> None:
        super().__init__()
        if tuple(words[: len(SPECIALS)]) != SPECIALS:
            raise ValueError(
                f"words must begin with {', '.join(SPECIALS)}, got {list(words[:4])}; "
                "visattn.data.captions.vocabulary.Vocabulary makes such a list"
            )
        self.words = tuple(words)
        self.encoder = encoder

    @abstractmethod
    def start(self, features: Float[Tensor, "b c y x"]) -> StateT:
        """Return the state before the first word, with one hypothesis per image."""

    @abstractmethod
    def step(
        self, state: StateT, token: Int[Tensor, "b k"]
    ) -> tuple[Float[Tensor, "b k v"], StateT, AttentionStep]:
        """Read one word per hypothesis; return scores of the next, the new state and the look."""

    @abstractmethod
    def unroll(
        self,
        features: Float[Tensor, "b c y x"],
        captions: Int[Tensor, "r t"],
        lengths: Int[Tensor, " r"],
        owners: Int[Tensor, " r"] | None = None,
    ) -> TeacherForcedOutput:
        """Read given captions in one go, as training does.

        Args:
            features: Of b images.
            captions: The words that are read, `START` first; longest caption first.
            lengths: Words to be said per caption, its end included.
            owners: Which image each caption tells; None when caption i tells image i.
        """

    def search(
        self,
        features: Float[Tensor, "b c y x"],
        *,
        beam: int = 5,
        best: int = 1,
        max_length: int = 30,
        min_length: int = 1,
        length_penalty: float = 0.0,
        banned: Sequence[int] = (PAD, START, UNKNOWN),
    ) -> BeamSearchOutput[AttentionStep]:
        """Return the best captions of images, given the features that the encoder finds in them.

        See `visattn.functional.captioning.beam_search.beam_search` for what is searched and
        returned.
        """
        return beam_search(
            self.step,
            self.start(features),
            images=len(features),
            start=START,
            rules=DecodingConstraints(END, max_length, min_length, length_penalty, tuple(banned)),
            beam=beam,
            best=best,
            device=features.device,
        )
