"""Transformer for questions about images: a question attends to the cells of a grid.

cells      features -> tokens with positions -> encoder layers, once per image
question   mean of its words, or a GRU -> L x [attention to the cells, MLP] -> answer
"""

from collections.abc import Sequence
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from visattn.blocks.multi_head import MultiHeadAttention
from visattn.functional.captions import WordPacking
from visattn.models.base import ImageEncoder
from visattn.models.vit import feed_forward
from visattn.models.vqa.model import (
    AnswerOutput,
    GridTokens,
    QuestionEncoder,
    QuestionEncoderType,
    VQAModel,
    answer_head,
    questions_by_image,
)


class ReadingLayer(nn.Module):
    """Pre-norm transformer layer in which questions attend to the cells of their image."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.norm2 = nn.LayerNorm(dim)
        self.norm3 = nn.LayerNorm(dim)
        self.cross_attention = MultiHeadAttention(dim, num_heads=num_heads)
        self.mlp = feed_forward(dim, 2 * dim)

    def forward(
        self, questions: Float[Tensor, "r d"], cells: Float[Tensor, "b n d"], packing: WordPacking
    ) -> tuple[Float[Tensor, "r d"], Float[Tensor, "r h n"]]:
        """Return the questions, and the weights of each head over the cells.

        Args:
            questions: State of each question.
            cells: The cells of the images.
            packing: Positions of the questions among those about the same image.
        """
        queries = packing.by_image(self.norm2(questions), len(cells))
        read, weights = self.cross_attention(queries, cells, need_weights=True)
        questions = questions + packing.from_images(read)
        weights = packing.from_images(cast("Tensor", weights).transpose(1, 2))
        return questions + self.mlp(self.norm3(questions)), weights


class CrossAttentionVQA(VQAModel):
    """The encoded question attends to the cells of the image in several layers.

    The cells attend to each other first, once per image. The map of a layer is the mean over its
    heads; image information reaches the answer only through the maps.

    Args:
        words: Vocabulary of the questions.
        answers: The answers.
        encoder: Encoder of images into a grid of features.
        dim: Dimension of the tokens.
        num_heads: Number of heads; it divides `dim`.
        grid_layers: Number of self-attention layers among the cells.
        reading_layers: Number of layers that attend to the cells.
        question_encoder: As in `QuestionEncoder`.
        hidden_size: Hidden size of the classifier; 0 for a linear one.

    Example:
        >>> from visattn.results.kinds import SPECIAL_TOKENS
        >>> from visattn.models.base import SmallEncoder
        >>> encoder = SmallEncoder((24, 40), channels=8)
        >>> words = (*SPECIAL_TOKENS, "what", "color")
        >>> model = CrossAttentionVQA(words, ("red", "blue"), encoder, dim=16).eval()
        >>> output = model(torch.zeros(1, 3, 24, 40, dtype=torch.uint8), torch.tensor([[4, 5]]))
        >>> output.logits.shape, output.attention.shape
        (torch.Size([1, 2]), torch.Size([1, 3, 15]))

    Source:
        Vaswani et al. 2017, arXiv:1706.03762; pre-norm: Xiong et al. 2020, arXiv:2002.04745.
    """

    def __init__(
        self,
        words: Sequence[str],
        answers: Sequence[str],
        encoder: ImageEncoder,
        *,
        dim: int = 128,
        num_heads: int = 4,
        grid_layers: int = 2,
        reading_layers: int = 3,
        question_encoder: QuestionEncoderType = "bag",
        hidden_size: int = 0,
    ) -> None:
        super().__init__(words, answers, encoder)
        self.num_heads = num_heads
        self.hop_names = tuple(f"layer {index}" for index in range(1, reading_layers + 1))
        self.tokens = GridTokens(
            encoder.channels, dim, encoder.grid_size, num_layers=grid_layers, num_heads=num_heads
        )
        self.questions = QuestionEncoder(len(words), dim, question_encoder)
        layers = (ReadingLayer(dim, num_heads) for _ in range(reading_layers))
        self.layers = cast("Sequence[ReadingLayer]", nn.ModuleList(layers))
        self.norm = nn.LayerNorm(dim)
        self.head = answer_head(dim, len(answers), hidden_size)

    def answer(
        self,
        features: Float[Tensor, "b c y x"],
        questions: Int[Tensor, "r t"],
        image_indices: Int[Tensor, " r"] | None = None,
    ) -> AnswerOutput:
        """Answer questions about images whose features are known; see `VQAModel.answer`."""
        packing = questions_by_image(questions, image_indices)
        cells = self.tokens(features)
        question = self.questions(questions).vector
        heads: list[Tensor] = []
        for layer in self.layers:
            layer.cross_attention.tap.grid = self.grid_size
            question, weights = layer(question, cells, packing)
            heads.append(weights)
        maps = torch.stack(heads, 1)
        logits = self.head(self.norm(question))
        return AnswerOutput(logits, maps.mean(2), heads=maps if self.num_heads > 1 else None)
