"""Baselines of question answering: relation network and CNN with MLP, without attention."""

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import linear, max_pool2d

from visattn.blocks.base import check_choice
from visattn.models.base import ImageEncoder, cell_coordinates
from visattn.models.vqa.model import AnswerOutput, QuestionGroups, VQAModel, answer_head
from visattn.models.vqa.question_encoders import QuestionEncoder, QuestionEncoderType


def pairwise_layer(
    objects: Float[Tensor, "b n c"],
    question: Float[Tensor, "*#b m q"],
    weight: Float[Tensor, "hidden c_c_q"],
    bias: Float[Tensor, " hidden"],
) -> Float[Tensor, "b m n n hidden"]:
    """Return a linear layer of [object i; object j; question] for all pairs, without joining them.

    Since the layer is linear, it is the sum of three small products, which are added for each pair.

    The columns of the weight belong to the first object, the second object and the question.

    Example:
        >>> import torch
        >>> objects, question = torch.tensor([[[1.0], [2.0]]]), torch.tensor([[[0.5]]])
        >>> weight, bias = torch.tensor([[10.0, 1.0, 1.0]]), torch.zeros(1)
        >>> pairwise_layer(objects, question, weight, bias)[..., 0]
        tensor([[[[11.5000, 12.5000],
                  [21.5000, 22.5000]]]])

    Source:
        Santoro et al. 2017, arXiv:1706.01427, equation 1.
    """
    width = objects.shape[-1]
    first, second, rest = weight.split((width, width, question.shape[-1]), 1)
    pairs = linear(objects, first, bias)[:, :, None] + linear(objects, second)[:, None]
    return pairs[:, None] + linear(question, rest)[:, :, None, None]


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
        >>> from visattn.models.base import SmallEncoder
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
        self.pool = pool
        self.reduce: Literal["mean", "sum"] = reduce
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


class CNNMLP(VQAModel):
    """Baseline without attention: an MLP of all features of the grid and the question.

    Args:
        words: Vocabulary of the questions.
        answers: The answers.
        encoder: Encoder of images into a grid of features.
        dim: Hidden size of the MLP, and dimension of the question.
        num_layers: Number of hidden layers.
        pool: Size of the squares of cells that are merged by their maximum.
        question_encoder: As in `QuestionEncoder`.
        dropout: Dropout rate before the last layer.

    Raises:
        ValueError: If `num_layers` or `pool` is below 1.

    Example:
        >>> from visattn.results.kinds import SPECIAL_TOKENS
        >>> from visattn.models.base import SmallEncoder
        >>> encoder = SmallEncoder((24, 40), channels=8)
        >>> model = CNNMLP((*SPECIAL_TOKENS, "what"), ("red", "blue"), encoder, dim=16).eval()
        >>> model(torch.zeros(1, 3, 24, 40, dtype=torch.uint8), torch.tensor([[4]])).logits.shape
        torch.Size([1, 2])

    Source:
        Santoro et al. 2017, arXiv:1706.01427, section 5.1, the CNN+MLP baseline.
    """

    def __init__(
        self,
        words: Sequence[str],
        answers: Sequence[str],
        encoder: ImageEncoder,
        *,
        dim: int = 256,
        num_layers: int = 2,
        pool: int = 1,
        question_encoder: QuestionEncoderType = "gru",
        dropout: float = 0.0,
    ) -> None:
        super().__init__(words, answers, encoder)
        if min(num_layers, pool) < 1:
            raise ValueError(f"num_layers and pool must be at least 1, got {num_layers} and {pool}")
        self.pool = pool
        self.questions = QuestionEncoder(len(words), dim, encoder=question_encoder)
        rows, columns = (-(-size // pool) for size in encoder.grid_size)
        self.image = nn.Linear(encoder.channels * rows * columns, dim)
        self.question = nn.Linear(dim, dim, bias=False)
        hidden = (nn.Sequential(nn.Linear(dim, dim), nn.ReLU()) for _ in range(num_layers - 1))
        self.head = nn.Sequential(
            nn.ReLU(), *hidden, nn.Dropout(dropout), answer_head(dim, len(answers), 0)
        )

    def answer(
        self,
        features: Float[Tensor, "b c y x"],
        questions: Int[Tensor, "r t"],
        image_indices: Int[Tensor, " r"] | None = None,
    ) -> AnswerOutput:
        """Answer questions about images whose features are known; see `VQAModel.answer`."""
        # The first layer of the image and the question together, computed once per image.
        image = self.image(max_pool2d(features, self.pool, ceil_mode=True).flatten(1))
        image = image if image_indices is None else image[image_indices]
        return AnswerOutput(
            self.head(image + self.question(self.questions(questions).vector)), None
        )
