"""Show, Attend and Tell: LSTM captioner with soft or hard attention over the feature grid."""

from collections.abc import Sequence
from typing import Any, Literal, get_args

from jaxtyping import Float, Int
from torch import Tensor

from visattn.blocks.base import check_choice
from visattn.functional.captions import WordPacking
from visattn.models.base import ModelGraph, options_of
from visattn.models.captioner import Captioner, Places
from visattn.models.captioning.attending_decoder import (
    AttendingDecoder,
    AttendingDecoderState,
    SoftAttention,
)
from visattn.models.captioning.graphs import decoding_graphs
from visattn.models.captioning.hard_attention import (
    HardAttention,
    PlaceRollouts,
    PlaceSampler,
)
from visattn.models.encoder import ImageEncoder


class ShowAttendTell(Captioner[AttendingDecoderState]):
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

    hidden_size: int

    @options_of(AttendingDecoder)
    def __init__(
        self,
        words: Sequence[str],
        encoder: ImageEncoder,
        *,
        attention: Literal["soft", "hard"] = "soft",
        places: Places = "argmax",
        **options: Any,
    ) -> None:
        super().__init__(words, encoder)
        check_choice("attention", attention, ("soft", "hard"))
        kind = HardAttention if attention == "hard" else SoftAttention
        self.attention = attention
        self.decoder = AttendingDecoder(len(words), encoder.channels, kind, **options)
        self.places = places  # pyright: ignore[reportIncompatibleVariableOverride]

    @property
    def places(self) -> Places | None:
        """How hard attention selects the place of a word; None with soft attention."""
        return self.decoder.attention.places if self.attention == "hard" else None

    @places.setter
    def places(self, places: Places) -> None:
        check_choice("places", places, get_args(Places))
        self._places: Places = places
        if self.attention == "hard":
            self.decoder.attention.places = places

    def saved_arguments(self) -> dict[str, Any]:
        """Return the arguments that build this model as it is now; soft attention keeps places."""
        return super().saved_arguments() | {"places": self.places or self._places}

    def export_graphs(self) -> list[ModelGraph]:
        """Return the graphs of the start and of one decoding step."""
        return decoding_graphs(self)

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
