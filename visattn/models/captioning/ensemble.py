"""Ensemble of captioners: the mean of their word probabilities and of their attention."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from visattn.functional.captions import WordPacking, pack_words
from visattn.models.base import ImageEncoder
from visattn.models.captioning.captioner import (
    AttentionStep,
    Captioner,
    TeacherForcedOutput,
    WordSite,
)


@dataclass(frozen=True)
class EnsembleState:
    """The state of each member, with the same images and hypotheses."""

    members: tuple[Any, ...]

    def reorder_beams(self, parents: Int[Tensor, "b k"]) -> Self:
        """Return the state in which hypothesis j continues hypothesis `parents[:, j]`."""
        return type(self)(tuple(state.reorder_beams(parents) for state in self.members))

    def select_images(self, index: Tensor) -> Self:
        """Return the state of the images chosen by index or boolean mask."""
        return type(self)(tuple(state.select_images(index) for state in self.members))


class EnsembleEncoder(ImageEncoder):
    """The features of encoders with the same input and grid, concatenated.

    Their modules belong to the captioners.
    """

    def __init__(self, encoders: Sequence[ImageEncoder]) -> None:
        super().__init__(encoders[0].img_size, encoders[0].mean, encoders[0].std)
        self.encoders = tuple(encoders)  # a tuple: their weights are saved with the captioners
        self.grid_size = encoders[0].grid_size
        self.channels = sum(encoder.channels for encoder in encoders)
        self.to(encoders[0].shift)  # same precision and device

    def forward_features(
        self, images: Float[Tensor, "b 3 y x"]
    ) -> tuple[Float[Tensor, "b c gy gx"]]:
        """Return the features of all encoders, for normalized images."""
        return (torch.cat([encoder(images) for encoder in self.encoders], 1),)


class CaptionerEnsemble(Captioner[EnsembleState]):
    """Captioners that decode together: each word has the mean of their probabilities.

    The attention of a word is the mean of the attention of the members, and so is its gate. All
    members see the same image and may be of different classes. An ensemble is used for inference;
    its members are trained one by one.

    Args:
        members: Captioners with the same vocabulary, image size, normalization and feature grid.

    Raises:
        ValueError: If there are no members, or they differ in one of these.

    Example:
        >>> from visattn.results.kinds import SPECIAL_TOKENS
        >>> from visattn.models.captioning.show_attend_tell import ShowAttendTell
        >>> from visattn.models.base import SmallEncoder
        >>> words = (*SPECIAL_TOKENS, "red", "blue")
        >>> members = [ShowAttendTell(words, SmallEncoder((24, 40), channels=8)) for _ in range(2)]
        >>> model = CaptionerEnsemble(members).eval()
        >>> features = model.encoder(torch.zeros(1, 3, 24, 40, dtype=torch.uint8))
        >>> model.search(features, max_length=3).attention_steps.weights.shape[-1]  # 3×5 places
        15

    Source:
        Rennie et al. 2017, arXiv:1612.00563, section 6, for ensembles of captioners.
    """

    def __init__(self, members: Sequence[Captioner[Any]]) -> None:
        _check_members(members)
        super().__init__(members[0].words, EnsembleEncoder([model.encoder for model in members]))
        self.members = nn.ModuleList(members)
        self.pieces = members[0].pieces
        symbols = {model.gate_symbol for model in members}
        self.gate_symbol = symbols.pop() if len(symbols) == 1 else "of image"

    @property
    def attention_site(self) -> str:
        """Name of the module whose attention the maps of words show."""
        return "members"

    def word_sites(self) -> list[WordSite]:
        """Return no sites: the members can be explained one by one."""
        return []

    def start(self, features: Float[Tensor, "b c y x"]) -> EnsembleState:
        """Return the state before the first word, with one hypothesis per image."""
        return EnsembleState(tuple(model.start(own) for model, own in self._split(features)))

    def step(
        self, state: EnsembleState, token: Int[Tensor, "b k"]
    ) -> tuple[Float[Tensor, "b k v"], EnsembleState, AttentionStep]:
        """Read one word per hypothesis; return log-probabilities, the new state and attention."""
        members = cast("Sequence[Captioner[Any]]", self.members)
        logits, states, attention = zip(
            *(model.step(own, token) for model, own in zip(members, state.members, strict=True)),
            strict=True,
        )
        return _mean_log_probs(logits), EnsembleState(states), _mean_attention(attention)

    def teacher_force(
        self,
        features: Float[Tensor, "b c y x"],
        captions: Int[Tensor, "r t"],
        lengths: Int[Tensor, " r"] | WordPacking,
        image_indices: Int[Tensor, " r"] | None = None,
    ) -> TeacherForcedOutput:
        """Return the log-probabilities and the attention of all words of the captions."""
        packing = pack_words(lengths, image_indices)
        outputs = [
            model.teacher_force(own, captions, packing, image_indices)
            for model, own in self._split(features)
        ]
        return TeacherForcedOutput(
            _mean_log_probs([output.logits for output in outputs]),
            _mean_attention([output.attention for output in outputs]),
            packing.rows,
            packing.steps,
        )

    def _split(
        self, features: Float[Tensor, "b c y x"]
    ) -> list[tuple[Captioner[Any], Float[Tensor, "b _ y x"]]]:
        """Return each member with its channels of the features."""
        members = [*cast("Sequence[Captioner[Any]]", self.members)]
        channels = [model.encoder.channels for model in members]
        return [*zip(members, features.split(channels, 1), strict=True)]


def _check_members(members: Sequence[Captioner[Any]]) -> None:
    """Refuse members that cannot decode together."""
    if not members:
        raise ValueError("an ensemble needs at least one captioner, got none")
    first = members[0]
    for index, other in enumerate(members[1:], 1):
        if other.words != first.words:
            raise ValueError(
                f"members must have the same vocabulary: member 0 has {len(first.words)} words, "
                f"member {index} has {len(other.words)} or others; train them on the same captions"
            )
        for name in ("img_size", "mean", "std", "grid_size"):
            expected = getattr(first.encoder, name)
            value = getattr(other.encoder, name)
            if value != expected:
                raise ValueError(
                    f"members must have the same {name}: member 0 has {expected}, member {index} "
                    f"has {value}"
                )


def _mean_log_probs(logits: Sequence[Float[Tensor, "*b v"]]) -> Float[Tensor, "*b v"]:
    return torch.stack(list(logits)).log_softmax(-1).logsumexp(0) - math.log(len(logits))


def _mean_attention(steps: Sequence[AttentionStep]) -> AttentionStep:
    return AttentionStep(
        torch.stack([step.weights for step in steps]).mean(0),
        torch.stack([step.gate for step in steps]).mean(0),
    )
