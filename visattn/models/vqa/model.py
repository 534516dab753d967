"""Base of models that answer questions: tokens of the grid, and several questions per image."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn

from visattn.models.base import ImageEncoder, ModelWithEncoder, cell_coordinates
from visattn.models.configurable import Configurable
from visattn.models.vit import EncoderLayer
from visattn.results.kinds import checked_words


class GridTokens(nn.Module):
    """One token per cell: its features, projected, with the place of the cell.

    All questions about an image share its tokens.

    Args:
        in_channels: Number of channels of the features.
        dim: Dimension of the tokens.
        grid_size: Rows and columns of the grid.
        positions: Whether a learned embedding of each cell and a projection of its coordinates are
            added.
        num_layers: Number of self-attention layers among the cells.
        num_heads: Number of heads of these layers; it divides `dim`.

    Example:
        >>> GridTokens(7, 8, (2, 3), num_layers=1)(torch.zeros(1, 7, 2, 3)).shape
        torch.Size([1, 6, 8])
    """

    NO_WEIGHT_DECAY = ("cells",)

    def __init__(
        self,
        in_channels: int,
        dim: int,
        grid_size: tuple[int, int],
        *,
        positions: bool = True,
        num_layers: int = 0,
        num_heads: int = 4,
    ) -> None:
        super().__init__()
        self.grid_size = grid_size
        self.project = nn.Linear(in_channels, dim)
        cells = torch.empty(grid_size[0] * grid_size[1], dim) if positions else None
        self.cells = None if cells is None else nn.Parameter(nn.init.trunc_normal_(cells, std=0.02))
        self.coordinates = nn.Linear(2, dim, bias=False) if positions else None
        self.layers = nn.ModuleList(
            EncoderLayer(dim, num_heads, 2 * dim) for _ in range(num_layers)
        )
        self.norm = nn.LayerNorm(dim) if num_layers else nn.Identity()

    def forward(self, features: Float[Tensor, "b c y x"]) -> Float[Tensor, "b n d"]:
        """Return the tokens, row by row."""
        tokens = self.project(features.flatten(2).mT)
        if self.coordinates is not None:
            places = cell_coordinates(features).flatten(2).mT
            tokens = tokens + self.coordinates(places) + self.cells
        for layer in self.layers:
            tokens = layer(tokens, self.grid_size)
        return self.norm(tokens)


def answer_head(dim: int, num_answers: int, hidden_size: int) -> nn.Module:
    """Return a linear classifier, or with a hidden size an MLP.

    Example:
        >>> answer_head(3, 5, 0)
        Linear(in_features=3, out_features=5, bias=True)
    """
    if not hidden_size:
        return nn.Linear(dim, num_answers)
    return nn.Sequential(
        nn.Linear(dim, hidden_size), nn.ReLU(), nn.Linear(hidden_size, num_answers)
    )


@dataclass(frozen=True)
class QuestionGroups:
    """Places of r questions in an array `b m` of at most m questions about each of b images.

    Attention of questions to images is then one batched product per image, and keys and values are
    computed once per image.

    Args:
        index: Place of each question in the flattened array; None if the questions are in order and
            equally many for each image.
        shape: Number of images and the most questions about one image.

    Example:
        >>> groups = QuestionGroups.from_indices(torch.tensor([1, 0, 1]), 2)
        >>> groups.by_image(torch.tensor([[5.0], [6.0], [7.0]])).squeeze(-1)
        tensor([[6., 0.],
                [5., 7.]])
    """

    index: Int[Tensor, " r"] | None
    shape: tuple[int, int]

    @classmethod
    def from_indices(cls, image_indices: Int[Tensor, " r"] | None, num_images: int) -> Self:
        """Create it from the index of the image of each question; None: one question each."""
        if image_indices is None:
            return cls(None, (num_images, 1))
        per_image = max(1, len(image_indices) // num_images)
        images = torch.arange(num_images, device=image_indices.device)
        # The usual batch, with as many questions for each image, in order, is grouped by a view.
        if torch.equal(images.repeat_interleave(per_image), image_indices):
            return cls(None, (num_images, per_image))
        counts = image_indices.bincount(minlength=num_images)
        order = image_indices.argsort(stable=True)
        first = counts.cumsum(0) - counts
        # Rank of a question: its place in the stable order by image, less where its image begins
        # there.
        rank = torch.empty_like(order)
        rank[order] = torch.arange(len(order), device=order.device) - first[image_indices[order]]
        most = int(counts.max())
        return cls(image_indices * most + rank, (num_images, most))

    def by_image(self, rows: Float[Tensor, "r ..."]) -> Float[Tensor, "b m ..."]:
        """Return the rows of the questions by image; places without a question are 0."""
        if self.index is None:
            return rows.unflatten(0, self.shape)
        padded = rows.new_zeros(self.shape[0] * self.shape[1], *rows.shape[1:])
        return padded.index_copy(0, self.index, rows).unflatten(0, self.shape)

    def by_question(self, rows: Float[Tensor, "b m ..."]) -> Float[Tensor, "r ..."]:
        """Return the rows of the questions in their order."""
        flat = rows.flatten(0, 1)
        return flat if self.index is None else flat.index_select(0, self.index)


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

    Images are those of the encoder: uint8 in 0 to 255, or floats that are normalized already.

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
