"""Transformer that answers questions: words read a grid whose cells attend to each other."""

from collections.abc import Sequence
from typing import cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from visattn.blocks.transformer.mlp import FeedForward
from visattn.blocks.transformer.multi_head import MultiHeadAttention
from visattn.models.encoder import ImageEncoder
from visattn.models.vqa.grid_tokens import GridTokens, answer_head
from visattn.models.vqa.question_encoders import (
    QuestionEncoder,
    QuestionEncoderType,
    word_positions,
)
from visattn.models.vqa.question_groups import QuestionGroups
from visattn.models.vqa_model import AnswerOutput, VQAModel


class CrossAttentionVQA(VQAModel):
    """Question tokens attend to the cells of the image in several layers.

    The cells attend to each other first, once per image. The map of a layer is the mean over its
    heads of the weights of the answer token, from which the answer is predicted. With
    `read_words`, the words read the image too, and the answer token attends to them; their reading
    is not in the maps. Without, the answer token begins as the encoded question and is alone: then
    all that the answer knows of the image passes through the maps.

    Args:
        words: Vocabulary of the questions.
        answers: The answers.
        encoder: Encoder of images into a grid of features.
        dim: Dimension of the tokens.
        num_heads: Number of heads; it divides `dim`.
        grid_layers: Number of self-attention layers among the cells.
        reading_layers: Number of layers that attend to the cells.
        question_encoder: `gru`, `transformer`, `bag` or `ngram`.
        read_words: Whether the words attend to the image, or the encoded question alone.
        hidden_size: Hidden size of the classifier; 0 for a linear one.

    Raises:
        ValueError: If `reading_layers` is below 1.

    Example:
        >>> from visattn.models.captioner import SPECIAL_TOKENS
        >>> from visattn.models.encoder import SmallEncoder
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
        read_words: bool = True,
        hidden_size: int = 0,
    ) -> None:
        super().__init__(words, answers, encoder)
        if reading_layers < 1:
            raise ValueError(f"reading_layers must be at least 1, got {reading_layers}")
        self.dim, self.num_heads, self.grid_layers = dim, num_heads, grid_layers
        self.reading_layers, self.read_words = reading_layers, read_words
        self.question_encoder: QuestionEncoderType = question_encoder
        self.hidden_size = hidden_size
        self.hop_names = tuple(f"layer {index}" for index in range(1, reading_layers + 1))
        self.tokens = GridTokens(
            encoder.channels, dim, encoder.grid_size, num_layers=grid_layers, num_heads=num_heads
        )
        self.questions = QuestionEncoder(len(words), dim, encoder=question_encoder)
        layers = (
            ReadingLayer(dim, num_heads, read_words=read_words) for _ in range(reading_layers)
        )
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
        groups = QuestionGroups.from_indices(image_indices, len(features))
        places = self.tokens(features)
        tokens, mask = self._question_tokens(questions)
        maps = list[Tensor]()
        for layer in self.layers:
            layer.cross_attention.tap.grid = self.grid_size
            tokens, weights = layer(tokens, mask, places, groups)
            maps.append(weights)
        return AnswerOutput(self.head(self.norm(tokens[:, 0])), torch.stack(maps, 1))

    def _question_tokens(
        self, questions: Int[Tensor, "r t"]
    ) -> tuple[Float[Tensor, "r s d"], Bool[Tensor, "r s"]]:
        """Return the answer token and, if they read the image, the words; and which are real."""
        vector, words, mask = self.questions(questions)
        answer, is_answer = vector[:, None], mask.new_ones(len(mask), 1)
        if not self.read_words:
            return answer, is_answer
        words = words + word_positions(words)
        return torch.cat((answer, words), 1), torch.cat((is_answer, mask), 1)


class ReadingLayer(nn.Module):
    """Pre-norm transformer layer: tokens attend to each other and to the cells of their image.

    Args:
        dim: Dimension of the tokens.
        num_heads: Number of heads; it divides `dim`.
        read_words: Whether there are several tokens per question, which attend to each other.

    Example:
        >>> layer = ReadingLayer(8, 2, read_words=False)
        >>> groups = QuestionGroups.from_indices(None, 1)
        >>> mask = torch.ones(1, 1, dtype=torch.bool)
        >>> tokens, weights = layer(torch.zeros(1, 1, 8), mask, torch.zeros(1, 6, 8), groups)
        >>> weights.shape
        torch.Size([1, 6])
    """

    def __init__(self, dim: int, num_heads: int, *, read_words: bool) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim) if read_words else None
        self.attention = MultiHeadAttention(dim, num_heads=num_heads) if read_words else None
        self.norm2, self.norm3 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.cross_attention = MultiHeadAttention(dim, num_heads=num_heads)
        self.mlp = FeedForward(dim, 2 * dim)

    def forward(
        self,
        tokens: Float[Tensor, "r s d"],
        mask: Bool[Tensor, "r s"],
        places: Float[Tensor, "b n d"],
        groups: QuestionGroups,
    ) -> tuple[Float[Tensor, "r s d"], Float[Tensor, "r n"]]:
        """Return the tokens, and the weights of the answer token, the first, over the cells."""
        if self.norm1 is not None and self.attention is not None:
            normed = self.norm1(tokens)
            tokens = tokens + self.attention(normed, mask=mask[:, None])[0]
        # The tokens of all questions about an image are its queries.
        queries = groups.by_image(self.norm2(tokens))
        read, weights = self.cross_attention(queries.flatten(1, 2), places, need_weights=True)
        tokens = tokens + groups.by_question(read.unflatten(1, queries.shape[1:3]))
        answer = cast("Tensor", weights)[:, :, :: queries.shape[2]].mean(1)
        return tokens + self.mlp(self.norm3(tokens)), groups.by_question(answer)
