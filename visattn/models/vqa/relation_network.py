"""Relation network: an MLP for each pair of cells, without attention."""

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import max_pool2d

from visattn.blocks.base import check_choice
from visattn.functional.relations import pairwise_layer
from visattn.models.encoder import ImageEncoder, cell_coordinates
from visattn.models.vqa.grid_tokens import answer_head
from visattn.models.vqa.question_encoders import QuestionEncoder, QuestionEncoderType
from visattn.models.vqa.question_groups import QuestionGroups
from visattn.models.vqa_model import AnswerOutput, VQAModel


class RelationNetwork(VQAModel):
    """Relation network: an MLP of each pair of cells and the question, pooled over all pairs.

    It has no attention map. Its cost grows with the square of the number of cells.

    Args:
        words: Vocabulary of the questions.
        answers: The answers.
        encoder: Encoder of images into a grid of features.
        dim: Hidden size of all layers, and dimension of the question.
        num_layers: Number of layers of the MLP of pairs.
        pool: Size of the squares of cells that are merged by their maximum before pairs are made.
        reduce: `mean` over the pairs, which does not depend on the size of the grid, or `sum`, as
            in the paper.
        question_encoder: As in `QuestionEncoder`.
        dropout: Dropout rate before the last layer.

    Raises:
        ValueError: If `num_layers` or `pool` is below 1.

    Example:
        >>> from visattn.results.kinds import SPECIAL_TOKENS
        >>> from visattn.models.encoder import SmallEncoder
        >>> encoder = SmallEncoder((24, 40), channels=8)
        >>> words = (*SPECIAL_TOKENS, "what", "color")
        >>> model = RelationNetwork(words, ("red", "blue"), encoder, dim=16).eval()
        >>> model(torch.zeros(1, 3, 24, 40, dtype=torch.uint8), torch.tensor([[4, 5]])).logits.shape
        torch.Size([1, 2])

    Source:
        Santoro et al. 2017, arXiv:1706.01427, equation 1 and section 5.1. Deviation: fewer and
        narrower layers by default.
    """

    def __init__(
        self,
        words: Sequence[str],
        answers: Sequence[str],
        encoder: ImageEncoder,
        *,
        dim: int = 128,
        num_layers: int = 4,
        pool: int = 1,
        reduce: Literal["mean", "sum"] = "mean",
        question_encoder: QuestionEncoderType = "gru",
        dropout: float = 0.0,
    ) -> None:
        super().__init__(words, answers, encoder)
        check_choice("reduce", reduce, get_args(Literal["mean", "sum"]))
        if min(num_layers, pool) < 1:
            raise ValueError(f"num_layers and pool must be at least 1, got {num_layers} and {pool}")
        self.dim, self.num_layers, self.pool, self.dropout = dim, num_layers, pool, dropout
        self.reduce: Literal["mean", "sum"] = reduce
        self.question_encoder: QuestionEncoderType = question_encoder
        self.questions = QuestionEncoder(len(words), dim, encoder=question_encoder)
        self.first = nn.Linear(2 * (encoder.channels + 2) + dim, dim)
        self.pair_mlp = nn.Sequential(
            *(nn.Sequential(nn.ReLU(), nn.Linear(dim, dim)) for _ in range(num_layers - 1)),
            nn.ReLU(),
        )
        self.head = nn.Sequential(
            nn.Linear(dim, dim), nn.ReLU(), nn.Dropout(dropout), answer_head(dim, len(answers), 0)
        )

    def answer(
        self,
        features: Float[Tensor, "b c y x"],
        questions: Int[Tensor, "r t"],
        image_indices: Int[Tensor, " r"] | None = None,
    ) -> AnswerOutput:
        """Answer questions about images whose features are known; see `VQAModel.answer`."""
        groups = QuestionGroups.from_indices(image_indices, len(features))
        grid = max_pool2d(features, self.pool, ceil_mode=True)
        places = cell_coordinates(grid).expand(len(grid), -1, -1, -1)
        objects = torch.cat((grid, places), 1).flatten(2).mT
        question = groups.by_image(self.questions(questions).vector)
        relations = self.relations(objects, question)
        return AnswerOutput(self.head(groups.by_question(relations)), None)

    def relations(
        self, objects: Float[Tensor, "b n c"], question: Float[Tensor, "b m q"]
    ) -> Float[Tensor, "b m d"]:
        """Return the pooled relations of all pairs of objects, for each question."""
        pairs = pairwise_layer(objects, question, self.first.weight, self.first.bias)
        total = self.pair_mlp(pairs).sum((2, 3))
        return total / objects.shape[1] ** 2 if self.reduce == "mean" else total
