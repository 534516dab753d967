"""Stacked attention network: a question looks at an image several times, each time knowing more."""

from collections.abc import Sequence
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from visattn.blocks.tap import Tap
from visattn.functional.attention import additive_scores, bounded_additive_scores
from visattn.models.base import ImageEncoder
from visattn.models.vqa.model import AnswerOutput, GridTokens, QuestionGroups, VQAModel, answer_head
from visattn.models.vqa.question_encoders import QuestionEncoder, QuestionEncoderType


class StackedAttentionNetwork(VQAModel):
    """Stacked attention network (SAN): each hop attends to the grid and adds what it read.

    Args:
        words: Vocabulary of the questions.
        answers: The answers.
        encoder: Encoder of images into a grid of features.
        dim: Dimension of cells and questions.
        attention_dim: Dimension of the attention scores; `dim` if None.
        hops: Number of hops.
        question_encoder: As in `QuestionEncoder`.
        tanh_scores: Whether scores are computed as in the authors' code, with a tanh around the
            score. Its maps are diffuse, and the order of the cells by their weight is the same for
            all questions; see `bounded_additive_scores`.
        positions: Whether keys and values contain the place of their cell.
        grid_layers: Number of self-attention layers among the cells before the hops.
        hidden_size: Hidden size of the classifier; 0 for a linear one, as in the paper.
        dropout: Dropout rate before the classifier.

    Raises:
        ValueError: If `hops` is below 1.

    Example:
        >>> from visattn.results.kinds import SPECIAL_TOKENS
        >>> from visattn.models.base import SmallEncoder
        >>> encoder = SmallEncoder((24, 40), channels=8)
        >>> words = (*SPECIAL_TOKENS, "what", "color")
        >>> model = StackedAttentionNetwork(words, ("red", "blue"), encoder, dim=16).eval()
        >>> output = model(torch.zeros(1, 3, 24, 40, dtype=torch.uint8), torch.tensor([[4, 5]]))
        >>> output.logits.shape, output.attention.shape
        (torch.Size([1, 2]), torch.Size([1, 2, 15]))

    Source:
        Yang et al. 2016, arXiv:1511.02274, equations 5 and 15 to 22. Deviation: the bias of the
        scores, which the softmax ignores, is left out, except with `tanh_scores`. Positions, grid
        layers and a hidden layer in the classifier are not in the paper.
    """

    def __init__(
        self,
        words: Sequence[str],
        answers: Sequence[str],
        encoder: ImageEncoder,
        *,
        dim: int = 128,
        attention_dim: int | None = None,
        hops: int = 2,
        question_encoder: QuestionEncoderType = "gru",
        tanh_scores: bool = False,
        positions: bool = False,
        grid_layers: int = 0,
        hidden_size: int = 0,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(words, answers, encoder)
        if hops < 1:
            raise ValueError(f"hops must be at least 1, got {hops}")
        self.hop_names = tuple(f"hop {index}" for index in range(1, hops + 1))
        self.tokens = GridTokens(
            encoder.channels,
            dim,
            encoder.grid_size,
            tanh=True,
            positions=positions,
            num_layers=grid_layers,
        )
        self.questions = QuestionEncoder(len(words), dim, encoder=question_encoder)
        layers = (AttentionHop(dim, attention_dim or dim, bounded=tanh_scores) for _ in range(hops))
        self.layers = cast("Sequence[AttentionHop]", nn.ModuleList(layers))
        self.head = nn.Sequential(nn.Dropout(dropout), answer_head(dim, len(answers), hidden_size))

    def answer(
        self,
        features: Float[Tensor, "b c y x"],
        questions: Int[Tensor, "r t"],
        image_indices: Int[Tensor, " r"] | None = None,
    ) -> AnswerOutput:
        """Answer questions about images whose features are known; see `VQAModel.answer`."""
        groups = QuestionGroups.from_indices(image_indices, len(features))
        places = self.tokens(features)
        query = self.questions(questions).vector
        maps = list[Tensor]()
        for hop in self.layers:
            hop.tap.grid = self.grid_size
            read, weights = hop(query, places, groups)
            query = query + read
            maps.append(weights)
        return AnswerOutput(self.head(query), torch.stack(maps, 1))


class AttentionHop(nn.Module):
    """One hop of stacked attention: a question attends to the cells of its image.

    Example:
        >>> hop = AttentionHop(4, 8)
        >>> hop.tap.grid = (2, 3)
        >>> groups = QuestionGroups.from_indices(None, 1)
        >>> read, weights = hop(torch.zeros(1, 4), torch.zeros(1, 6, 4), groups)
        >>> read.shape, weights.shape
        (torch.Size([1, 4]), torch.Size([1, 6]))

    Source:
        Yang et al. 2016, arXiv:1511.02274, equations 18 to 21.
    """

    def __init__(self, dim: int, attention_dim: int, *, bounded: bool = False) -> None:
        super().__init__()
        self.key = nn.Linear(dim, attention_dim, bias=bounded)
        self.query = nn.Linear(dim, attention_dim)
        self.score = nn.Linear(attention_dim, 1, bias=bounded)
        self.bounded = bounded
        self.tap = Tap("tokens", single_query=True)

    def forward(
        self, query: Float[Tensor, "r d"], places: Float[Tensor, "b n d"], groups: QuestionGroups
    ) -> tuple[Float[Tensor, "r d"], Float[Tensor, "r n"]]:
        """Return what each question reads, and its weights over the cells."""
        weights = self.tap(groups.by_question(self.scores(query, places, groups)).softmax(-1))
        return groups.by_question(groups.by_image(weights) @ places), weights

    def scores(
        self, query: Float[Tensor, "r d"], places: Float[Tensor, "b n d"], groups: QuestionGroups
    ) -> Float[Tensor, "b m n"]:
        """Return the score of each cell for each question, by image."""
        queries = groups.by_image(self.query(query))
        keys = self.key(places)
        if not self.bounded:
            return additive_scores(queries, keys, self.score.weight[0])
        return bounded_additive_scores(
            queries.tanh(), keys.tanh(), self.score.weight[0], self.score.bias
        )
