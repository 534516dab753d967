"""Shared parts of models that answer questions: grid tokens, question encoder, base class."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from visattn.functional.captions import WordPacking, pack_words
from visattn.models.base import ImageEncoder, ModelWithEncoder, cell_coordinates
from visattn.models.configurable import Configurable
from visattn.models.vit import EncoderLayer
from visattn.results.kinds import PAD, checked_words

QuestionEncoderType = Literal["gru", "bag"]


class GridTokens(nn.Module):
    """One token per cell: its features, projected, with the position of the cell.

    All questions about an image share its tokens. With layers, the cells attend to each other.
    """

    NO_WEIGHT_DECAY = ("cells",)

    def __init__(
        self,
        in_channels: int,
        dim: int,
        grid_size: tuple[int, int],
        *,
        num_layers: int = 0,
        num_heads: int = 4,
    ) -> None:
        super().__init__()
        self.grid_size = grid_size
        self.project = nn.Linear(in_channels, dim)
        cells = torch.empty(grid_size[0] * grid_size[1], dim)
        self.cells = nn.Parameter(nn.init.trunc_normal_(cells, std=0.02))
        self.coordinates = nn.Linear(2, dim, bias=False)
        self.layers = nn.ModuleList(
            EncoderLayer(dim, num_heads, 2 * dim) for _ in range(num_layers)
        )
        self.norm = nn.LayerNorm(dim) if num_layers else nn.Identity()

    def forward(self, features: Float[Tensor, "b c y x"]) -> Float[Tensor, "b n d"]:
        """Return the tokens, row by row."""
        coordinates = cell_coordinates(features).flatten(2).mT
        tokens = self.project(features.flatten(2).mT)
        tokens = tokens + self.coordinates(coordinates) + self.cells
        for layer in self.layers:
            tokens = layer(tokens, self.grid_size)
        return self.norm(tokens)


class EncodedQuestions(NamedTuple):
    """Encoded questions; words at padding are 0."""

    vector: Float[Tensor, "r d"]
    """One vector per question."""
    words: Float[Tensor, "r t d"]
    """One vector per word, with its context."""
    mask: Bool[Tensor, "r t"]
    """True where there is a word."""


class QuestionEncoder(nn.Module):
    """Encode questions; padding has no effect.

    Args:
        num_words: Size of the vocabulary.
        dim: Dimension of questions and words.
        encoder: `gru` (bidirectional, `dim` is even; the question is its last state) or `bag`
            (mean of the embeddings).

    Source:
        Cho et al. 2014, arXiv:1406.1078.
    """

    def __init__(self, num_words: int, dim: int, encoder: QuestionEncoderType) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_words, dim, padding_idx=PAD)
        self.layers = nn.ModuleDict()
        if encoder == "gru":
            self.layers["gru"] = nn.GRU(dim, dim // 2, batch_first=True, bidirectional=True)

    def forward(self, questions: Int[Tensor, "r t"]) -> EncodedQuestions:
        """Return the encoded questions."""
        # Generated questions repeat: a batch of 640 may have only 40 distinct ones.
        distinct, index = questions.unique(dim=0, return_inverse=True)
        mask = distinct != PAD
        words = self.embedding(distinct).masked_fill(~mask[..., None], 0.0)
        lengths = mask.sum(1, keepdim=True)
        if self.layers:
            # Packing does not allow empty questions, so these read one word of padding.
            host = lengths[:, 0].clamp(min=1).cpu()
            packed = pack_padded_sequence(words, host, batch_first=True, enforce_sorted=False)
            output, last = self.layers["gru"](packed)
            words, _ = pad_packed_sequence(output, batch_first=True, total_length=mask.shape[1])
            words = words.masked_fill(~mask[..., None], 0.0)
            vector = last.transpose(0, 1).flatten(1).masked_fill(lengths == 0, 0.0)
        else:
            vector = words.sum(1) / lengths.clamp(min=1)
        return EncodedQuestions(vector[index], words[index], mask[index])


def questions_by_image(
    questions: Int[Tensor, "r t"], image_indices: Int[Tensor, " r"] | None
) -> WordPacking:
    """Return the position of each question among those about its image.

    Attention of questions to images is then one batched matrix product.
    """
    return pack_words(torch.ones_like(questions[:, 0]), image_indices)


def answer_head(dim: int, num_answers: int, hidden_size: int) -> nn.Module:
    """Return a linear classifier, or an MLP if a hidden size is given."""
    if not hidden_size:
        return nn.Linear(dim, num_answers)
    return nn.Sequential(
        nn.Linear(dim, hidden_size), nn.ReLU(), nn.Linear(hidden_size, num_answers)
    )


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


class VQAModel(Configurable, ModelWithEncoder, ABC):
    """Base class of models that answer questions about images.

    Images are uint8 in 0 to 255, or normalized floats.

    Args:
        words: Vocabulary of the questions; it begins with `SPECIAL_TOKENS`.
        answers: The answers, in the order of the logits.
        encoder: Encoder of images into a grid of features.

    Raises:
        ValueError: If the vocabulary does not begin with `SPECIAL_TOKENS`, or the answers are not
            distinct or fewer than two.
    """

    SETTINGS = ("question_beginnings",)
    hop_names: tuple[str, ...] = ()
    """Names of the attention maps, in order; empty if the model has none."""
    question_beginnings: tuple[str, ...] = ()
    """The first two words of the training questions; empty if unknown. Saved with the model."""

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
            ValueError: If there are more or fewer images than questions without `image_indices`.
        """
        if image_indices is None and len(images) != len(questions):
            raise ValueError(
                f"without image_indices there must be one question per image, got {len(images)} "
                f"images and {len(questions)} questions; pass the index of the image of each "
                "question"
            )
        return self.answer(self.encoder(images), questions, image_indices)

    @abstractmethod
    def answer(
        self,
        features: Float[Tensor, "b c y x"],
        questions: Int[Tensor, "r t"],
        image_indices: Int[Tensor, " r"] | None = None,
    ) -> AnswerOutput:
        """Answer questions about images whose encoder features are known; see `forward`."""
