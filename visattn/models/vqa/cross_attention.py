"""Transformer that answers questions: words read a grid whose cells attend to each other."""

from collections.abc import Sequence
from typing import cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from visattn.blocks.transformer.layer import FeedForward
from visattn.blocks.transformer.multi_head import MultiHeadAttention
from visattn.models.base import ImageEncoder, cell_coordinates
from visattn.models.vqa.model import AnswerOutput, GridTokens, QuestionGroups, VQAModel, answer_head
from visattn.models.vqa.question_encoders import (
    QuestionEncoder,
    QuestionEncoderType,
    word_positions,
)


class CrossAttentionVQA(VQAModel):
    """Question tokens attend to the cells of the image in several layers.

    The cells attend to each other first, once per image. The map of a layer is the mean over its
    heads of the weights of the answer token, from which the answer is predicted. With
    `read_words`, the words read the image too, and the answer token attends to them; their reading
    is not in the maps. Without, all that the answer knows of the image passes through the maps: the
    answer token begins as the encoded question and, with `word_attention`, attends to its words
    before it attends to the cells, in each layer.

    Args:
        words: Vocabulary of the questions.
        answers: The answers.
        encoder: Encoder of images into a grid of features.
        dim: Dimension of the tokens.
        num_heads: Number of heads; it divides `dim`.
        grid_layers: Number of self-attention layers among the cells.
        reading_layers: Number of layers that attend to the cells.
        question_encoder: As in `QuestionEncoder`.
        read_words: Whether the words attend to the image, or the encoded question alone.
        read_positions: Whether each layer adds the mean position of what it attends to, as
            coordinates, to the answer token, and the classifier gets all of them and the encoded
            question too: features alone say little about where they were read.
        word_attention: Whether the encoded question attends to its words, if these do not attend to
            the image; the output then has these weights.
        hidden_size: Hidden size of the classifier; 0 for a linear one.

    Raises:
        ValueError: If `reading_layers` is below 1, or both `read_words` and `word_attention` are
            set.

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
        read_words: bool = True,
        read_positions: bool = False,
        word_attention: bool = False,
        hidden_size: int = 0,
    ) -> None:
        super().__init__(words, answers, encoder)
        if reading_layers < 1:
            raise ValueError(f"reading_layers must be at least 1, got {reading_layers}")
        if read_words and word_attention:
            raise ValueError(
                "with read_words the words are tokens, to which the answer token attends anyway: "
                "set only one of read_words and word_attention"
            )
        self.num_heads = num_heads
        self.read_words = read_words
        self.read_positions = read_positions
        self.hop_names = tuple(f"layer {index}" for index in range(1, reading_layers + 1))
        self.tokens = GridTokens(
            encoder.channels, dim, encoder.grid_size, num_layers=grid_layers, num_heads=num_heads
        )
        self.questions = QuestionEncoder(len(words), dim, encoder=question_encoder)
        layers = (
            ReadingLayer(dim, num_heads, words=read_words or word_attention)
            for _ in range(reading_layers)
        )
        self.layers = cast("Sequence[ReadingLayer]", nn.ModuleList(layers))
        self.positions = cast(
            "Sequence[nn.Linear]",
            nn.ModuleList(nn.Linear(2, dim) for _ in range(reading_layers * read_positions)),
        )
        self.norm = nn.LayerNorm(dim)
        head_dim = 2 * (dim + reading_layers) if read_positions else dim
        self.head = answer_head(head_dim, len(answers), hidden_size)

    def answer(
        self,
        features: Float[Tensor, "b c y x"],
        questions: Int[Tensor, "r t"],
        image_indices: Int[Tensor, " r"] | None = None,
    ) -> AnswerOutput:
        """Answer questions about images whose features are known; see `VQAModel.answer`."""
        groups = QuestionGroups.from_indices(image_indices, len(features))
        places = self.tokens(features)
        vector, words, mask = self.questions(questions)
        tokens = vector[:, None]
        words = words + word_positions(words)
        if self.read_words:
            tokens = torch.cat((tokens, words), 1)
            words = None
            mask = torch.cat((mask.new_ones(len(mask), 1), mask), 1)
        heads = list[Tensor]()
        word_maps = list[Tensor]()
        coordinates = cell_coordinates(features[:1]).flatten(2)[0].mT
        positions = list[Tensor]()
        for index, layer in enumerate(self.layers):
            layer.cross_attention.tap.grid = self.grid_size
            tokens, weights, word_weights = layer(tokens, words, mask, places, groups)
            heads.append(weights)
            if self.read_positions:
                positions.append(weights.mean(1) @ coordinates)
                answer = tokens[:, :1] + self.positions[index](positions[-1])[:, None]
                tokens = torch.cat((answer, tokens[:, 1:]), 1)
            if word_weights is not None:
                word_maps.append(word_weights)
        maps = torch.stack(heads, 1)
        read = self.norm(tokens[:, 0])
        return AnswerOutput(
            self.head(torch.cat((read, vector, *positions), 1) if positions else read),
            maps.mean(2),
            words=torch.stack(word_maps, 1) if word_maps else None,
            heads=maps if self.num_heads > 1 else None,
        )


class ReadingLayer(nn.Module):
    """Pre-norm transformer layer: tokens attend to words, and then to the cells of their image.

    Without `words` they attend to the cells alone.

    Example:
        >>> layer = ReadingLayer(8, 2, words=False)
        >>> groups = QuestionGroups.from_indices(None, 1)
        >>> mask, cells = torch.ones(1, 1, dtype=torch.bool), torch.zeros(1, 6, 8)
        >>> tokens, weights, _ = layer(torch.zeros(1, 1, 8), None, mask, cells, groups)
        >>> weights.shape
        torch.Size([1, 2, 6])
    """

    def __init__(self, dim: int, num_heads: int, *, words: bool) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim) if words else None
        self.attention = MultiHeadAttention(dim, num_heads=num_heads) if words else None
        self.norm2 = nn.LayerNorm(dim)
        self.norm3 = nn.LayerNorm(dim)
        self.cross_attention = MultiHeadAttention(dim, num_heads=num_heads)
        self.mlp = FeedForward(dim, 2 * dim)

    def forward(
        self,
        tokens: Float[Tensor, "r s d"],
        words: Float[Tensor, "r t d"] | None,
        mask: Bool[Tensor, "r t"],
        places: Float[Tensor, "b n d"],
        groups: QuestionGroups,
    ) -> tuple[Float[Tensor, "r s d"], Float[Tensor, "r h n"], Float[Tensor, "r t"] | None]:
        """Return the tokens, and the weights of the answer token, the first, over cells and words.

        Those over cells are given for each head, those over words are their mean.

        Args:
            tokens: The answer token, and others.
            words: The words to which the tokens attend; None for the tokens themselves.
            mask: Which words are real.
            places: The cells of the images.
            groups: Places of the questions beside the others about their image.
        """
        word_weights = None
        if self.norm1 is not None and self.attention is not None:
            read, weights = self.attention(
                self.norm1(tokens), words, mask=mask[:, None], need_weights=words is not None
            )
            tokens = tokens + read
            word_weights = None if weights is None else weights[:, :, 0].mean(1)
        # The tokens of all questions about an image are its queries.
        queries = groups.by_image(self.norm2(tokens))
        read, weights = self.cross_attention(queries.flatten(1, 2), places, need_weights=True)
        tokens = tokens + groups.by_question(read.unflatten(1, queries.shape[1:3]))
        # Queries are the tokens of question after question: the first of each is its answer token.
        answer = cast("Tensor", weights)[:, :, :: queries.shape[2]].transpose(1, 2)
        return tokens + self.mlp(self.norm3(tokens)), groups.by_question(answer), word_weights
