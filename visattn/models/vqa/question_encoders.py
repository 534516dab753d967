"""Question encoders: GRU, transformer, bag of words and n-gram convolutions."""

from collections.abc import Sequence
from typing import Literal, NamedTuple, cast, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from visattn.blocks.base import check_choice
from visattn.blocks.transformer.layer import FeedForward
from visattn.blocks.transformer.multi_head import MultiHeadAttention
from visattn.functional.positions import sincos_pos_embed
from visattn.results.kinds import PAD

QuestionEncoderType = Literal["gru", "gru_max", "transformer", "bag", "ngram"]


class EncodedQuestions(NamedTuple):
    """Encoded questions; the words at padding are 0."""

    vector: Float[Tensor, "r d"]
    """The question as a whole."""
    words: Float[Tensor, "r t d"]
    """Each word in its context."""
    mask: Bool[Tensor, "r t"]
    """True where there is a word."""


class QuestionEncoder(nn.Module):
    """Encode questions; equal questions of a batch are encoded once, and padding has no effect.

    Args:
        num_words: Size of the vocabulary.
        dim: Dimension of questions and words.
        encoder: `gru` (bidirectional with an even `dim`; the question is its last state), `gru_max`
            (the maximum over all states is added), `transformer` (the question is the mean of its
            words), `bag` (mean of the embeddings) or `ngram` (convolutions over 1, 2 and 3 words;
            the question is their maximum).
        num_layers: Number of transformer layers.
        num_heads: Number of heads of the transformer; it divides `dim`.

    Raises:
        ValueError: If the encoder is unknown.

    Example:
        >>> encoder = QuestionEncoder(11, 8, encoder="gru")
        >>> encoder(torch.tensor([[4, 7, 0], [4, 5, 6]])).words.shape
        torch.Size([2, 3, 8])

    Source:
        Yang et al. 2016, arXiv:1511.02274, section 3.2 (n-grams: equations 6 to 11; instead of an
        LSTM, a GRU: Cho et al. 2014, arXiv:1406.1078). Padding is masked before the maximum.
    """

    def __init__(
        self,
        num_words: int,
        dim: int,
        *,
        encoder: QuestionEncoderType = "gru",
        num_layers: int = 1,
        num_heads: int = 4,
    ) -> None:
        super().__init__()
        check_choice("encoder", encoder, get_args(QuestionEncoderType))
        self.encoder = encoder
        self.embedding = nn.Embedding(num_words, dim, padding_idx=PAD)
        self.layers: nn.Module = {
            "gru": lambda: _GRU(dim),
            "gru_max": lambda: _GRU(dim, maximum=True),
            "transformer": lambda: _Transformer(dim, num_layers, num_heads),
            "bag": nn.Identity,
            "ngram": lambda: _Ngrams(dim),
        }[encoder]()

    def forward(self, questions: Int[Tensor, "r t"]) -> EncodedQuestions:
        """Return the encoded questions."""
        if questions.is_meta:  # shapes are checked without values
            return self.encode(questions)
        # Generated questions repeat: a batch of 640 may have 40 distinct ones.
        distinct, index = questions.unique(dim=0, return_inverse=True)
        vector, words, mask = self.encode(distinct)
        return EncodedQuestions(vector[index], words[index], mask[index])

    def encode(self, questions: Int[Tensor, "r t"]) -> EncodedQuestions:
        """Return the encoded questions, each computed anew."""
        mask = questions != PAD
        embedded = self.embedding(questions).masked_fill(~mask[..., None], 0.0)
        if self.encoder == "bag":
            return EncodedQuestions(_masked_mean(embedded, mask), embedded, mask)
        vector, words = self.layers(embedded, mask)
        return EncodedQuestions(vector, words.masked_fill(~mask[..., None], 0.0), mask)


class _GRU(nn.Module):
    """Bidirectional GRU; the vector holds the last states of both directions.

    With `maximum`, the maximum over the states of all words is added.
    """

    def __init__(self, dim: int, *, maximum: bool = False) -> None:
        super().__init__()
        self.maximum = maximum
        both = dim % 2 == 0  # an odd width cannot be halved
        self.gru = nn.GRU(dim, dim // (1 + both), batch_first=True, bidirectional=both)

    def forward(
        self, embedded: Float[Tensor, "r t d"], mask: Bool[Tensor, "r t"]
    ) -> tuple[Float[Tensor, "r d"], Float[Tensor, "r t d"]]:
        if embedded.is_meta:  # shapes are checked without values
            words, last = self.gru(embedded)
            return last.transpose(0, 1).flatten(1), words
        lengths = mask.sum(1)
        # Packing refuses empty questions: one word of padding is read, and its state set to 0
        # below.
        packed = pack_padded_sequence(
            embedded, lengths.clamp(min=1).cpu(), batch_first=True, enforce_sorted=False
        )
        output, last = self.gru(packed)
        words, _ = pad_packed_sequence(output, batch_first=True, total_length=mask.shape[1])
        vector = last.transpose(0, 1).flatten(1)
        if self.maximum:
            vector = vector + words.masked_fill(~mask[..., None], -torch.inf).amax(1)
        return vector.masked_fill(lengths[:, None] == 0, 0.0), words


class _Transformer(nn.Module):
    """Pre-norm transformer encoder; the vector is the mean of the words."""

    def __init__(self, dim: int, num_layers: int, num_heads: int) -> None:
        super().__init__()
        self.dim = dim
        self.layers = nn.ModuleList(QuestionEncoderLayer(dim, num_heads) for _ in range(num_layers))
        self.norm = nn.LayerNorm(dim)

    def forward(
        self, embedded: Float[Tensor, "r t d"], mask: Bool[Tensor, "r t"]
    ) -> tuple[Float[Tensor, "r d"], Float[Tensor, "r t d"]]:
        words = embedded + word_positions(embedded)
        for layer in self.layers:
            words = layer(words, mask)
        words = self.norm(words)
        return _masked_mean(words, mask), words


class QuestionEncoderLayer(nn.Module):
    """Pre-norm transformer layer among the words of a question; padding is masked.

    Source:
        Vaswani et al. 2017, arXiv:1706.03762; pre-norm: Xiong et al. 2020, arXiv:2002.04745.
    """

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.norm2 = nn.LayerNorm(dim)
        self.attention = MultiHeadAttention(dim, num_heads=num_heads)
        self.mlp = FeedForward(dim, 2 * dim)

    def forward(
        self, words: Float[Tensor, "r t d"], mask: Bool[Tensor, "r t"]
    ) -> Float[Tensor, "r t d"]:
        """Return the words after the layer."""
        normed = self.norm1(words)
        words = words + self.attention(normed, mask=mask[:, None])[0]
        return words + self.mlp(self.norm2(words))


class _Ngrams(nn.Module):
    """Convolutions over 1, 2 and 3 words; the vector is their maximum over the question."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        widths = (dim - 2 * (dim // 3), dim // 3, dim // 3)
        convs = (nn.Conv1d(dim, width, size) for size, width in enumerate(widths, 1))
        self.convs = cast("Sequence[nn.Conv1d]", nn.ModuleList(convs))

    def forward(
        self, embedded: Float[Tensor, "r t d"], mask: Bool[Tensor, "r t"]
    ) -> tuple[Float[Tensor, "r d"], Float[Tensor, "r t d"]]:
        # The n-grams that begin at each word; the words after the last are 0.
        padded = (nn.functional.pad(embedded.mT, (0, length)) for length in range(len(self.convs)))
        ngrams = [conv(x).tanh().mT for conv, x in zip(self.convs, padded, strict=True)]
        words = torch.cat(ngrams, -1)
        highest = words.masked_fill(~mask[..., None], -torch.inf).amax(1)
        return highest.masked_fill(~mask.any(1, keepdim=True), 0.0), words


def word_positions(words: Float[Tensor, "r t d"]) -> Float[Tensor, "t d"]:
    """Return sine-cosine position embeddings of words.

    Example:
        >>> word_positions(torch.zeros(1, 3, 4)).shape
        torch.Size([3, 4])
    """
    count, dim = words.shape[1:]
    # The second half of the embedding of a grid encodes the column.
    embedded = sincos_pos_embed((1, count), 2 * dim, device=words.device)
    return embedded[:, dim:].to(words.dtype)


def _masked_mean(words: Float[Tensor, "r t d"], mask: Bool[Tensor, "r t"]) -> Float[Tensor, "r d"]:
    total = words.masked_fill(~mask[..., None], 0.0).sum(1)
    return total / mask.sum(1, keepdim=True).clamp(min=1)
