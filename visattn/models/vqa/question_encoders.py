"""Question encoders: GRU and bag of words."""

from typing import Literal, NamedTuple, get_args

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from visattn.blocks.base import check_choice
from visattn.results.kinds import PAD

QuestionEncoderType = Literal["gru", "bag"]


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
        encoder: `gru` (bidirectional with an even `dim`; the question is its last state) or `bag`
            (mean of the embeddings).

    Raises:
        ValueError: If the encoder is unknown.

    Example:
        >>> encoder = QuestionEncoder(11, 8, encoder="gru")
        >>> encoder(torch.tensor([[4, 7, 0], [4, 5, 6]])).words.shape
        torch.Size([2, 3, 8])

    Source:
        Cho et al. 2014, arXiv:1406.1078.
    """

    def __init__(
        self,
        num_words: int,
        dim: int,
        *,
        encoder: QuestionEncoderType = "gru",
    ) -> None:
        super().__init__()
        check_choice("encoder", encoder, get_args(QuestionEncoderType))
        self.encoder = encoder
        self.embedding = nn.Embedding(num_words, dim, padding_idx=PAD)
        self.layers = _GRU(dim) if encoder == "gru" else nn.Identity()

    def forward(self, questions: Int[Tensor, "r t"]) -> EncodedQuestions:
        """Return the encoded questions."""
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
    """Bidirectional GRU; the vector holds the last states of both directions."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        both = dim % 2 == 0  # an odd width cannot be halved
        self.gru = nn.GRU(dim, dim // (1 + both), batch_first=True, bidirectional=both)

    def forward(
        self, embedded: Float[Tensor, "r t d"], mask: Bool[Tensor, "r t"]
    ) -> tuple[Float[Tensor, "r d"], Float[Tensor, "r t d"]]:
        lengths = mask.sum(1)
        # Packing refuses empty questions: one word of padding is read, and its state set to 0
        # below.
        packed = pack_padded_sequence(
            embedded, lengths.clamp(min=1).cpu(), batch_first=True, enforce_sorted=False
        )
        output, last = self.gru(packed)
        words, _ = pad_packed_sequence(output, batch_first=True, total_length=mask.shape[1])
        vector = last.transpose(0, 1).flatten(1)
        return vector.masked_fill(lengths[:, None] == 0, 0.0), words


def _masked_mean(words: Float[Tensor, "r t d"], mask: Bool[Tensor, "r t"]) -> Float[Tensor, "r d"]:
    total = words.masked_fill(~mask[..., None], 0.0).sum(1)
    return total / mask.sum(1, keepdim=True).clamp(min=1)
