"""Show, Attend and Tell: LSTM captioner with soft or hard attention over the feature grid."""

from collections.abc import Sequence
from functools import partial
from typing import Literal, get_args

from jaxtyping import Float, Int
from torch import Tensor, nn

from visattn.functional.captioning.packing import WordPacking
from visattn.models.captioner import DecoderCaptioner
from visattn.models.captioning.attending_decoder import (
    AttendingDecoder,
    AttendingDecoderState,
    SoftAttention,
)
from visattn.models.captioning.hard_attention import (
    HardAttention,
    PlaceRollouts,
    Places,
    PlaceSampler,
)
from visattn.models.encoder import ImageEncoder


def has_hard_attention(model: nn.Module) -> bool:
    """Return whether a model is a captioner with hard attention."""
    return isinstance(model, ShowAttendTell) and model.attention == "hard"


class ShowAttendTell(DecoderCaptioner[AttendingDecoderState]):
    """Show, Attend and Tell with soft or hard attention.

    Before each word, additive attention scores every place of the grid against the hidden state of
    the LSTM. The context vector is the expected feature with soft attention, and the feature of one
    place with hard attention, scaled by a gate. The next word is predicted from the new hidden
    state, the previous word and the context vector.

    Both have the same parameters. `HardAttentionTask` trains hard attention.

    Args:
        words: The vocabulary; it begins with `SPECIAL_TOKENS`.
        encoder: Maps images to a grid of features.
        embed_dim: Dimension of the word embeddings.
        hidden_size: Hidden size of the LSTM.
        attention_dim: Dimension in which features and hidden state are compared.
        dropout: Dropout rate on word embeddings and before the vocabulary.
        feature_proj_dim: Dimension to which features are projected, once per image; None for no
            projection.
        feature_dropout: Dropout rate on features before the projection.
        attention: `soft` or `hard`.
        places: How hard attention selects the place of a word outside of training: the most
            probable one (`argmax`), a sampled one (`sample`), or all of them, as with soft
            attention (`expectation`). The attribute `places` can be set later.

    Raises:
        ValueError: If there is feature dropout without a projection, or an option is unknown.

    Example:
        >>> import torch
        >>> from visattn.results.kinds import SPECIAL_TOKENS
        >>> from visattn.models.encoder import SmallEncoder
        >>> encoder = SmallEncoder((24, 40), channels=8)
        >>> model = ShowAttendTell((*SPECIAL_TOKENS, "red", "blue"), encoder, hidden_size=11).eval()
        >>> features = encoder(torch.zeros(1, 3, 24, 40, dtype=torch.uint8))
        >>> output = model.search(features, max_length=7)
        >>> output.attention_steps.weights.shape[-1]  # a grid of 3×5 places
        15

    Source:
        Xu et al. 2015, arXiv:1502.03044. Dropout sits on embeddings and before the vocabulary; the
        projection, with layer norm and ReLU, is not in the paper.
    """

    def __init__(
        self,
        words: Sequence[str],
        encoder: ImageEncoder,
        *,
        embed_dim: int = 128,
        hidden_size: int = 256,
        attention_dim: int = 128,
        dropout: float = 0.1,
        feature_proj_dim: int | None = None,
        feature_dropout: float = 0.0,
        attention: Literal["soft", "hard"] = "soft",
        places: Places = "argmax",
    ) -> None:
        super().__init__(words, encoder)
        if attention not in ("soft", "hard"):
            raise ValueError(f"attention must be soft or hard, got {attention!r}")
        self.attention = attention
        build = HardAttention if attention == "hard" else SoftAttention
        self.embed_dim, self.hidden_size, self.attention_dim = embed_dim, hidden_size, attention_dim
        self.dropout, self.feature_dropout = dropout, feature_dropout
        self.feature_proj_dim = feature_proj_dim
        self.decoder = AttendingDecoder(
            len(words),
            encoder.channels,
            partial(build, attention_dim=attention_dim),
            embed_dim=embed_dim,
            hidden_size=hidden_size,
            dropout=dropout,
            feature_proj_dim=feature_proj_dim,
            feature_dropout=feature_dropout,
        )
        self.places = places

    @property
    def places(self) -> Places:
        """How hard attention selects the place of a word; soft attention ignores it."""
        return self._places

    @places.setter
    def places(self, places: Places) -> None:
        if places not in get_args(Places):
            raise ValueError(f"places must be one of {', '.join(get_args(Places))}, got {places!r}")
        self._places: Places = places
        if isinstance(self.decoder.attention, HardAttention):
            self.decoder.attention.places = places

    def rollout(
        self,
        features: Float[Tensor, "b c y x"],
        captions: Int[Tensor, "r t"],
        lengths: Int[Tensor, " r"] | WordPacking,
        image_indices: Int[Tensor, " r"],
        sampler: PlaceSampler,
    ) -> PlaceRollouts:
        """Read whole captions with one place per word, as hard attention trains.

        Args:
            features: Encoder features of b images.
            captions: Input tokens, as for `teacher_force`; repeat a caption for several rollouts.
            lengths: Number of predicted tokens of each caption.
            image_indices: Index of the image of each caption.
            sampler: Chooses the places; a new one for each call.
        """
        output = self.decoder.teacher_force(
            features, captions, lengths, image_indices, selection=sampler
        )
        log_probs = sampler.log_probs
        if sampler.soft is not None:
            log_probs = log_probs.masked_fill(sampler.soft[output.rows], 0.0)
        return PlaceRollouts(output, sampler.probabilities, log_probs, sampler.hidden)
