"""Base class of visual question answering models: answers and, per hop, where they looked."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn

from visattn.models.base import Configurable, checked_words
from visattn.models.classifier import unregularized_parameters
from visattn.models.dense import DensePart, encoder_decoder_parameters
from visattn.models.encoder import ImageEncoder


class AnswerOutput(NamedTuple):
    """Answers of a model to r questions, with the attention of each hop."""

    logits: Float[Tensor, "r k"]
    """Logits of the answers."""
    attention: Float[Tensor, "r hops n"] | None
    """Attention over the cells of the grid for each hop, row by row; sums to one. None if the model
    has no attention map."""
    words: Float[Tensor, "r hops t"] | None = None
    """Attention over the words of the question for each hop; zero at padding."""
    heads: Float[Tensor, "r hops h n"] | None = None
    """Attention over the cells for each head of each hop, if a hop has several; `attention` is
    their mean."""


class VQAModel(Configurable, nn.Module, ABC):
    """Base class of models that answer questions about images.

    Images are those of the encoder: uint8 in 0 to 255, or floats that are normalized already.

    Args:
        words: Vocabulary of the questions; it begins with `SPECIAL_TOKENS`.
        answers: The answers, in the order of the logits.
        encoder: Encoder of images into a grid of features.

    Raises:
        ValueError: If the vocabulary does not begin with `SPECIAL_TOKENS`, or the answers are not
            distinct or fewer than two.
    """

    pipeline_tag = "visual-question-answering"
    SETTINGS = ("question_beginnings",)
    hop_names: tuple[str, ...] = ()
    """Names of the attention maps, in order; empty if the model has none."""
    question_beginnings: tuple[str, ...] = ()
    """The first two words of the questions of the training; empty if unknown. Saved with the
    model."""

    def __init__(self, words: Sequence[str], answers: Sequence[str], encoder: ImageEncoder) -> None:
        super().__init__()
        if len(answers) < 2 or len(set(answers)) < len(answers):
            raise ValueError(
                f"answers must be distinct, at least two, got {len(answers)}, "
                f"{len(set(answers))} of them distinct"
            )
        self.words = checked_words(words)
        self.answers = tuple(answers)
        self.encoder = encoder

    @property
    def img_size(self) -> tuple[int, int]:
        """Height and width of the input images, in pixels."""
        return self.encoder.img_size

    @property
    def grid_size(self) -> tuple[int, int]:
        """Rows and columns of the grid that the attention maps cover."""
        return self.encoder.grid_size

    def forward(
        self,
        images: UInt8[Tensor, "b 3 y x"] | Float[Tensor, "b 3 y x"],
        questions: Int[Tensor, "r t"],
        image_indices: Int[Tensor, " r"] | None = None,
    ) -> AnswerOutput:
        """Answer questions about images; each image is encoded once.

        Args:
            images: uint8, or normalized floats, of `img_size`.
            questions: Word indices, padded with 0 at the end.
            image_indices: Index of the image of each question; None if question i is about image i.

        Raises:
            TypeError: If the images are neither uint8 nor floats.
            ValueError: If the images do not fit the encoder, or there are more or fewer images than
                questions without `image_indices`.
        """
        if image_indices is None:
            if len(images) != len(questions):
                raise ValueError(
                    f"without image_indices there must be one question per image, got "
                    f"{len(images)} images and {len(questions)} questions; pass the index of the "
                    "image of each question"
                )
            image_indices = torch.arange(len(images), device=questions.device)
        return self.answer(self.encoder(images), questions, image_indices)

    def run_blank_image(self) -> None:
        """Answer a question of one word about one blank image."""
        features = self.encoder(torch.zeros(1, 3, *self.img_size))
        self.answer(features, torch.ones(1, 1, dtype=torch.long))

    @abstractmethod
    def answer(
        self,
        features: Float[Tensor, "b c y x"],
        questions: Int[Tensor, "r t"],
        image_indices: Int[Tensor, " r"] | None = None,
    ) -> AnswerOutput:
        """Answer questions about images whose features are known.

        Args:
            features: Encoder features of b images.
            questions: Word indices, padded with 0 at the end.
            image_indices: Index of the image of each question; None if question i is about image i.
        """

    def parameter_groups(self) -> Mapping[DensePart, list[nn.Parameter]]:
        """Return the parameters of the encoder, and all others; each belongs to one group."""
        return encoder_decoder_parameters(self, self.encoder)

    def no_weight_decay_parameters(self) -> list[nn.Parameter]:
        """Return the parameters that are excluded from weight decay, as in `ImageClassifier`."""
        return unregularized_parameters(self)
